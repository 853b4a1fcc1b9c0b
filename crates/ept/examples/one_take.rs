//! One take, for a tool that counts instructions and cache misses:
//!
//! ```text
//! valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*one_take*measured*' \\
//!     target/release/examples/one_take GIB DIRTY_PAGES SPREAD_OVER_GIB
//! ```
//!
//! Write protection, 4 KiB leaves. With a fourth argument, so many rounds; with a fifth (a number too), what
//! the guest's writes left in the caches is driven out before each. Prints the times.
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
            drive_out();
        }
        let start = Instant::now();
        assert_eq!(measured(&guest), *count);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("best {:?}, median of {}: {median:?}", times[0], times.len());
}

/// Reads more than the caches hold.
fn drive_out() {
    thread_local! {
        static MUCH: Vec<u64> = vec![1; 16 << 20];
    }
    let sum: u64 = MUCH.with(|much| much.iter().step_by(8).sum());
    assert_ne!(std::hint::black_box(sum), 0);
}
