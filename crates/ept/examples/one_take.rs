//! A single take, for a tool that counts instructions and cache misses:
//!
//! ```text
//! valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*one_take*measured*' \\
//!     target/release/examples/one_take GIB DIRTY_PAGES SPREAD_OVER_GIB
//! ```
//!
//! Uses write protection and 4 KiB leaves. A fourth argument is the number of rounds. With a fifth
//! argument (also a number), the caches are flushed before each round. Prints the times.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // measuring is for people to read

#[path = "../benches/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{GIB, Host, dirty_in, guest};
use hikkoshi_ept::{Guest, Level, LogMethod};

#[inline(never)]
fn measured(guest: &Guest<Host>) -> u64 {
    guest.take_log(guest.all(), &(), &mut |_| ()).unwrap()
}

fn main() {
    let arguments: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap())
        .collect();
    let [gib, count, spread, cold @ ..] = &arguments[..] else {
        println!("usage: one_take GIB DIRTY_PAGES SPREAD_OVER_GIB [ROUNDS [COLD]]");
        return;
    };
    let guest = guest(gib * GIB, Level::Size4K);
    let vcpu = guest.add_vcpu().unwrap();
    guest
        .start_log(LogMethod::WriteProtection, guest.all(), &())
        .unwrap();
    let mut times = Vec::new();
    for _ in 0..cold.first().copied().unwrap_or(1) {
        dirty_in(&guest, vcpu, *count, spread * GIB);
        if cold.get(1).is_some() {
            flush_caches();
        }
        let start = Instant::now();
        assert_eq!(measured(&guest), *count);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("best {:?}, median of {}: {median:?}", times[0], times.len());
}

/// Flushes the caches by reading more memory than they hold.
fn flush_caches() {
    thread_local! {
        static LARGE: Vec<u64> = vec![1; 16 << 20];
    }
    let sum: u64 = LARGE.with(|words| words.iter().step_by(8).sum());
    assert_ne!(std::hint::black_box(sum), 0);
}
