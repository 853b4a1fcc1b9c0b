//! The total number of pages that a pre-copy sends if it takes the log in 1, 4, 16 or 64 ranges,
//! each right before that range is sent, from a guest that keeps writing: `cargo bench -p
//! hikkoshi-ept --bench ranges`. Prints CSV.
//!
//! No time is measured. The guest writes a given number of pages while one page is sent, so the
//! result is the same on every machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // measuring is for people to read

use std::collections::BTreeSet;

use hikkoshi_ept::testing::{Access, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping, View,
};

/// 64 MiB.
const PAGES: u64 = 16 * 1024;
/// The guest is stopped when at most this many pages are left, or after `MAX_ROUNDS` rounds.
const LEFT: u64 = 64;
const MAX_ROUNDS: u32 = 30;

/// A pseudo-random generator with the same output on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The guest's write pattern.
#[derive(Clone, Copy, Debug)]
enum Workload {
    /// Random pages in a quarter of its memory.
    Random,
    /// Repeatedly through a quarter of its memory, in order.
    Sequential,
}

fn main() {
    println!("workload,writes per page sent,ranges,rounds,pages sent,stale pages sent,left");
    for workload in [Workload::Random, Workload::Sequential] {
        for writes_in_100 in [25, 50, 75] {
            for ranges in [1, 4, 16, 64] {
                let (rounds, sent, stale, left) = migrate(workload, writes_in_100, ranges);
                let rate = writes_in_100 as f64 / 100.0;
                println!("{workload:?},{rate},{ranges},{rounds},{sent},{stale},{left}");
            }
        }
    }
}

/// Migrates a guest. Returns the number of rounds, of pages sent while the guest ran, of those that
/// had been written again before they were sent (so the later copy would have been enough), and of
/// pages left when the guest is stopped.
fn migrate(workload: Workload, writes_in_100: u64, ranges: u64) -> (u32, u64, u64, u64) {
    let guest = Guest::new(TestMemory::new(200), PAGES, 1, Capabilities::ALL).unwrap();
    let mapping = Mapping {
        max_level: Level::Size4K,
        ..Mapping::ram(guest.all(), HostFrame::new(1 << 18))
    };
    guest.map(View::MAIN, &mapping).unwrap();
    let machine = Machine::new(&guest, 1).unwrap();
    guest
        .start_log(LogMethod::Pml, guest.all(), &machine)
        .unwrap();
    guest.mark_dirty(guest.all());
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut sent, mut stale, mut due, mut at) = (0, 0, 0, 0);
    let mut rounds = 0;
    loop {
        rounds += 1;
        for number in 0..ranges {
            let part = PAGES / ranges;
            let range = GfnRange::from_len(Gfn::new(number * part), part);
            let mut pages = Vec::new();
            guest
                .take_log(range, &machine, &mut |run| pages.extend(run.iter()))
                .unwrap();
            // Pages of the taken range that are written before they are sent: they are sent twice.
            let mut again = BTreeSet::new();
            for page in pages {
                sent += 1;
                stale += u64::from(again.contains(&page));
                due += writes_in_100;
                while due >= 100 {
                    due -= 100;
                    at = match workload {
                        Workload::Random => numbers.below(PAGES / 4),
                        Workload::Sequential => (at + 1) % (PAGES / 4),
                    };
                    // Spread over the whole memory.
                    let target = Gfn::new(at * 4);
                    machine
                        .access(0, target.address(), Access::Write, |_| ())
                        .unwrap();
                    again.insert(target);
                }
            }
        }
        let left = guest.count_dirty(guest.all(), &machine).unwrap();
        if left <= LEFT || rounds == MAX_ROUNDS {
            return (rounds, sent, stale, left);
        }
    }
}
