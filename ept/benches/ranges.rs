//! The total number of pages that a pre-copy sends if it takes the log in 1, 4, 16 or 64 ranges,
//! each right before that range is sent, from a guest that keeps writing: `cargo bench -p
//! hikkoshi-ept --bench ranges`. Prints CSV.
//!
//! No time is measured. The guest writes a given number of pages while one page is sent, so the
//! result is the same on every machine. The takes' flushes of the TLB and drains of the
//! page-modification logs are counted: each interrupts the vCPU. What they cost the guest is a
//! model with [`KICK_MICROSECONDS`], beside the time to send the pages.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // measuring is for people to read

use std::cell::Cell;
use std::collections::BTreeSet;

use hikkoshi_ept::testing::{Access, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping, Processors, TlbFlush,
    Vcpu, View,
};

/// 64 MiB.
const PAGES: u64 = 16 * 1024;
/// The guest is stopped when at most this many pages are left, or after `MAX_ROUNDS` rounds.
const LEFT: u64 = 64;
const MAX_ROUNDS: u32 = 30;
/// The model: the time that one kick takes from the guest (an interrupt, an exit, the flush or the
/// drain, an entry), and the time to send one page at 10 Gbit/s.
const KICK_MICROSECONDS: f64 = 5.0;
const PAGE_MICROSECONDS: f64 = 3.3;

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

/// What a migration has cost.
#[derive(Default)]
struct Cost {
    rounds: u32,
    /// Pages that were sent while the guest ran.
    sent: u64,
    /// Those of them that had been written again before they were sent, so that the later copy
    /// would have been enough.
    stale: u64,
    /// Pages that are left when the guest is stopped.
    left: u64,
    takes: u64,
    flushes: u64,
    drains: u64,
}

/// Counts the kicks of a machine.
struct Kicked<'m, 'g> {
    machine: &'m Machine<'g, TestMemory>,
    flushes: Cell<u64>,
    drains: Cell<u64>,
}

impl Processors for Kicked<'_, '_> {
    fn invalidate(&self, flush: &TlbFlush) {
        self.flushes.set(self.flushes.get() + 1);
        self.machine.invalidate(flush);
    }

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        self.drains.set(self.drains.get() + 1);
        self.machine.drain_pml(drain);
    }

    fn set_pml(&self, on: bool) {
        self.machine.set_pml(on);
    }
}

fn main() {
    println!(
        "workload,writes per page sent,ranges,rounds,pages sent,stale pages sent,left,\
         takes,flushes,drains,kicks (model ms),sending (model ms)"
    );
    for workload in [Workload::Random, Workload::Sequential] {
        for writes_in_100 in [25, 50, 75] {
            for ranges in [1, 4, 16, 64] {
                let Cost {
                    rounds,
                    sent,
                    stale,
                    left,
                    takes,
                    flushes,
                    drains,
                } = migrate(workload, writes_in_100, ranges);
                let rate = writes_in_100 as f64 / 100.0;
                let kicks = (flushes + drains) as f64 * KICK_MICROSECONDS / 1000.0;
                let sending = sent as f64 * PAGE_MICROSECONDS / 1000.0;
                println!(
                    "{workload:?},{rate},{ranges},{rounds},{sent},{stale},{left},\
                     {takes},{flushes},{drains},{kicks:.2},{sending:.1}"
                );
            }
        }
    }
}

/// Migrates a guest.
fn migrate(workload: Workload, writes_in_100: u64, ranges: u64) -> Cost {
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
    let kicked = Kicked {
        machine: &machine,
        flushes: Cell::new(0),
        drains: Cell::new(0),
    };
    let mut cost = Cost::default();
    let (mut due, mut at) = (0, 0);
    loop {
        cost.rounds += 1;
        for number in 0..ranges {
            let part = PAGES / ranges;
            let range = GfnRange::from_len(Gfn::new(number * part), part);
            let mut pages = Vec::new();
            guest
                .take_log(range, &kicked, &mut |run| pages.extend(run.iter()))
                .unwrap();
            cost.takes += 1;
            // Pages of the taken range that are written before they are sent: they are sent twice.
            let mut again = BTreeSet::new();
            for page in pages {
                cost.sent += 1;
                cost.stale += u64::from(again.contains(&page));
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
        cost.left = guest.count_dirty(guest.all(), &kicked).unwrap();
        if cost.left <= LEFT || cost.rounds == MAX_ROUNDS {
            cost.flushes = kicked.flushes.get();
            cost.drains = kicked.drains.get();
            return cost;
        }
    }
}
