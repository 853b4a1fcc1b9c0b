//! A single take, for a tool that counts instructions and cache misses:
//!
//! ```text
//! valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*one_take*measured*' \\
//!     target/release/examples/one_take METHOD GIB DIRTY_PAGES SPREAD_OVER_GIB
//! ```
//!
//! `METHOD` is `write-protection`, `pml`, `dirty-flags` or `walk` (of all tables, the baseline).
//! The leaves have 4 KiB. A fifth argument is the number of rounds. With a sixth argument (also a
//! number), the caches are flushed before each round. Prints the times.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // measuring is for people to read

#[path = "../benches/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{GIB, Host, dirty_in, guest, take_by_walking};
use hikkoshi_ept::{Guest, Level, LogMethod};

#[inline(never)]
fn measured(guest: &Guest<Host>, walk: bool) -> u64 {
    if walk {
        take_by_walking(guest)
    } else {
        guest.take_log(guest.all(), &(), &mut |_| ()).unwrap()
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let method = match arguments.next().as_deref() {
        Some("write-protection") => Some(LogMethod::WriteProtection),
        Some("pml") => Some(LogMethod::Pml),
        Some("dirty-flags" | "walk") => Some(LogMethod::DirtyFlags),
        _ => None,
    };
    let walk = std::env::args().nth(1).as_deref() == Some("walk");
    let numbers: Vec<u64> = arguments.map(|text| text.parse().unwrap()).collect();
    let (Some(method), [gib, count, spread, cold @ ..]) = (method, &numbers[..]) else {
        println!("usage: one_take METHOD GIB DIRTY_PAGES SPREAD_OVER_GIB [ROUNDS [COLD]]");
        return;
    };
    let guest = guest(gib * GIB, Level::Size4K);
    let vcpu = guest.add_vcpu().unwrap();
    guest.start_log(method, guest.all(), &()).unwrap();
    let mut times = Vec::new();
    for _ in 0..cold.first().copied().unwrap_or(1) {
        dirty_in(&guest, vcpu, *count, spread * GIB);
        if cold.get(1).is_some() {
            flush_caches();
        }
        let start = Instant::now();
        assert_eq!(measured(&guest, walk), *count);
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
