//! A model of what a guest's throughput loses while its writes are logged.
//!
//! The guest does some work before each write, and the log is taken in intervals. Exits, kicks and
//! instructions are counted. The model adds a stated number of cycles for each exit and kick, and
//! one for each instruction. It has no caches, no misses in the TLB after a flush, and one vCPU,
//! which pays for the take as well.
//!
//! The checks are those of the counts, which follow from the rules.

use super::log_methods::LOG_METHODS;
use crate::cpu;
use crate::guest_program::{self, Program, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::{Host, Registers};
use crate::write_patterns::Random;
use alloc::vec::Vec;
use core::fmt;
use hikkoshi_ept::{GfnRange, Level, LogMethod};

/// Cycles of an exit and the entry after it, in addition to the handler's instructions; and cycles
/// of a kick.
const EXIT_CYCLES: [u64; 3] = [1000, 2000, 4000];
/// Number of writes of the guest.
const WRITES: usize = 2000;
/// Rounds of work before each write: two instructions each.
const WORK: u64 = 3750;
/// Instructions between two takes.
const INTERVALS: [u64; 3] = [1_000_000, 4_000_000, 16_000_000];
/// First frame of the write area, and its number of frames.
const FIRST: u64 = WRITE_AREA >> 12;
const COUNT: u64 = FRAMES - FIRST;
/// The guest's video memory: its last 256 pages.
const SCREEN: u64 = 256;

/// What is counted in one run of the guest's program.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Exits for writes.
    exits: u64,
    /// Interruptions of the vCPU by a take: to drain its log, and to invalidate translations.
    kicks: u64,
    takes: u64,
    /// Pages in all takes.
    pages: u64,
    /// Instructions of the guest.
    guest: u64,
    /// Instructions of the hypervisor in exits.
    handling: u64,
    /// Instructions of the takes.
    taking: u64,
}

impl Counts {
    /// Returns the model's cycles, for a guest whose program has so many instructions.
    ///
    /// The guest's own count is not used: in Bochs it has the instructions of the entries, too.
    fn cycles(self, program: u64, exit: u64) -> u64 {
        program + self.handling + self.taking + (self.exits + self.kicks) * exit
    }
}

/// A share in tenths of a percent.
struct Share(u64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} %", self.0 / 10, self.0 % 10)
    }
}

/// Runs the checks and prints the figures.
pub fn run(report: &mut Report, host: Host) {
    let addresses = addresses();
    let screen = frames(FRAMES - SCREEN, SCREEN);
    let bare = run_guest(host, None, u64::MAX);
    report.part(format_args!(
        "figures: a model of throughput; {WRITES} writes, {} instructions in all",
        bare.guest
    ));
    let written = |range: GfnRange| {
        let inside =
            |address: &&u32| range.contains(hikkoshi_ept::Gfn::new(u64::from(**address) >> 12));
        addresses.iter().filter(inside).count()
    };
    for (what, range) in [("all memory", frames(0, FRAMES)), ("video memory", screen)] {
        report.part(format_args!(
            "figures: {what} is logged, {} writes to it",
            written(range)
        ));
        for interval in INTERVALS {
            let counts = LOG_METHODS
                .map(|(method, name)| (name, run_guest(host, Some((method, range)), interval)));
            compare(report, bare.guest, interval, &counts);
        }
    }
}

/// Returns the addresses that the guest writes to: of 100 writes, 5 are to the video memory, 85 to
/// a tenth of the rest, and 10 to all of the rest.
fn addresses() -> Vec<u32> {
    let mut random = Random(0x7a6b_5c4d_3e2f_1a0b);
    let rest = COUNT - SCREEN;
    let addresses: Vec<u32> = (0..WRITES)
        .filter_map(|_| {
            let page = match random.below(100) {
                0..5 => rest + random.below(SCREEN),
                5..90 => random.below(rest / 10) * 10,
                _ => random.below(rest),
            };
            u32::try_from((FIRST + page) << 12).ok()
        })
        .collect();
    guest_program::write_list(&addresses);
    addresses
}

/// Runs the guest's program, and takes the log in intervals and at its end.
fn run_guest(host: Host, log: Option<(LogMethod, GfnRange)>, interval: u64) -> Counts {
    let mut machine = Machine::new(host, Level::Size4K);
    if let Some((method, range)) = log {
        machine.start(method, range);
    }
    let registers = Registers {
        rax: 16,
        rcx: WRITES as u64,
        rdx: WORK,
        rsi: guest_program::LIST,
        ..Registers::default()
    };
    machine.prepare(0, Program::WorkList, registers);
    let kicked = (machine.invalidations.get(), machine.drains.get());
    let mut counts = Counts::default();
    let mut finished = false;
    while !finished {
        if log.is_some() {
            finished = machine.run_for(0, interval);
        } else {
            machine.finish(0);
            finished = true;
        }
        if let Some((_, range)) = log {
            let from = cpu::instructions();
            let taken = machine.guest.take_log(range, &machine, &mut |_| ());
            counts.taking += cpu::instructions() - from;
            counts.pages += taken.unwrap_or_else(|error| crate::fail(error));
            counts.takes += 1;
        }
    }
    let vmx = &machine.vcpus[0].vmx;
    counts.exits = vmx.exits.violations + vmx.exits.pml_full;
    counts.kicks = machine.invalidations.get() - kicked.0 + machine.drains.get() - kicked.1;
    counts.guest = vmx.guest_instructions;
    counts.handling = machine.handling;
    counts
}

fn compare(report: &mut Report, program: u64, interval: u64, counts: &[(&str, Counts); 3]) {
    let [(_, protected), (_, flags), (_, pml)] = *counts;
    report.check(
        format_args!("a take each {interval} instructions: each method logs the same pages"),
        // The turns end at slightly different instructions, before or after a write.
        flags.pages.abs_diff(pml.pages) <= flags.takes
            && protected.pages.abs_diff(pml.pages) <= protected.takes,
    );
    report.check(
        format_args!(
            "write protection: an exit for each of {} pages",
            protected.pages
        ),
        protected.exits == protected.pages && flags.exits == 0 && pml.exits <= pml.pages / 512,
    );
    for (name, counts) in counts {
        report.figure(format_args!(
            "{name}: {} takes, {} pages (one for {} instructions), {} exits, {} kicks; \
             {} instructions in exits, {} in takes",
            counts.takes,
            counts.pages,
            program / counts.pages,
            counts.exits,
            counts.kicks,
            counts.handling,
            counts.taking
        ));
        for exit in EXIT_CYCLES {
            let cycles = counts.cycles(program, exit);
            report.figure(format_args!(
                "{name}: {exit} cycles an exit: time +{}, throughput {} of that by write protection",
                Share(1000 * (cycles - program) / program),
                Share(1000 * protected.cycles(program, exit) / cycles),
            ));
        }
    }
}
