//! The cost of each method of logging, in exits and in instructions of the guest and of the
//! hypervisor. The exits are checked, because they follow from the rules; the instructions are only
//! measured.
//!
//! In Bochs an exit costs no more than any other instruction. On a processor it costs about as much
//! as a thousand instructions, so there the exits matter more than the instructions that handle
//! them.

use super::log_methods::LOG_METHODS;
use crate::guest_program::{Program, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::{Exits, Host, Registers};
use hikkoshi_ept::{GfnRange, Level, LogMethod};

/// Number of pages that the guest may write to.
const WRITE_AREA_PAGES: u64 = FRAMES - (WRITE_AREA >> 12);

/// The cost of one run.
#[derive(Clone, Copy)]
struct Cost {
    exits: Exits,
    /// Instructions between entries and exits, both included.
    guest: u64,
    /// Instructions between exits and entries.
    handling: u64,
}

impl Cost {
    /// Returns the number of exits, except the one that ends the guest's program.
    fn log_exits(self) -> u64 {
        self.exits.violations + self.exits.pml_full
    }
}

/// Runs the checks and prints the measurements.
pub fn run(report: &mut Report, host: Host) {
    for pages in [1000, WRITE_AREA_PAGES] {
        report.part(format_args!(
            "figures: {pages} pages written in order, 4 KiB leaves, all tracked"
        ));
        let mut off = Machine::new(host, Level::Size4K);
        let bare = write(&mut off, pages);
        report.figure(format_args!(
            "no log: {} exits, guest {} instructions",
            bare.log_exits(),
            bare.guest
        ));
        for (method, name) in LOG_METHODS {
            logged(report, host, method, name, pages);
        }
    }
    takes(report, host);
    video_memory(report, host);
}

/// Makes the guest write once to each of `pages` pages.
fn write(machine: &mut Machine, pages: u64) -> Cost {
    let registers = Registers {
        rax: 15,
        rcx: pages,
        rdx: 4096,
        rdi: WRITE_AREA,
        ..Registers::default()
    };
    machine.prepare(0, Program::WriteStride, registers);
    let vmx = &machine.vcpus[0].vmx;
    let (exits, guest, handling) = (vmx.exits, vmx.guest_instructions, machine.handling);
    machine.finish(0);
    let vmx = &machine.vcpus[0].vmx;
    Cost {
        exits: Exits {
            violations: vmx.exits.violations - exits.violations,
            pml_full: vmx.exits.pml_full - exits.pml_full,
            vmcalls: vmx.exits.vmcalls - exits.vmcalls,
        },
        guest: vmx.guest_instructions - guest,
        handling: machine.handling - handling,
    }
}

/// Takes the log of a range. Returns the number of pages and of instructions.
fn take(machine: &Machine, range: GfnRange) -> (u64, u64) {
    let from = crate::cpu::instructions();
    let pages = machine.guest.take_log(range, machine, &mut |_| ());
    let instructions = crate::cpu::instructions() - from;
    (
        pages.unwrap_or_else(|error| crate::fail(error)),
        instructions,
    )
}

fn logged(report: &mut Report, host: Host, method: LogMethod, name: &str, pages: u64) {
    let all = frames(0, FRAMES);
    let mut machine = Machine::new(host, Level::Size4K);
    machine.start(method, all);
    // A first pass, so that the tables' accessed flags are set as in a guest that has been running.
    write(&mut machine, pages);
    take(&machine, all);
    let cost = write(&mut machine, pages);
    let (taken, instructions) = take(&machine, all);
    let expected = match method {
        LogMethod::WriteProtection => pages,
        LogMethod::DirtyFlags => 0,
        LogMethod::Pml => (pages - 1) / 512,
    };
    report.check(
        format_args!("{name}: {pages} dirty pages: {} exits", cost.log_exits()),
        cost.log_exits() == expected && taken == pages,
    );
    report.figure(format_args!(
        "{name}: guest {} instructions, hypervisor {} in exits ({} a page), {instructions} in the take ({} a page)",
        cost.guest,
        cost.handling,
        cost.handling / pages,
        instructions / pages
    ));
}

/// The cost of a take by the number of dirty pages, in a guest of fixed size.
fn takes(report: &mut Report, host: Host) {
    report.part(format_args!(
        "figures: takes of all {FRAMES} pages, by number of dirty pages"
    ));
    let all = frames(0, FRAMES);
    for (method, name) in LOG_METHODS {
        let mut machine = Machine::new(host, Level::Size4K);
        machine.start(method, all);
        for pages in [0, 1, 10, 100, 1000, WRITE_AREA_PAGES] {
            if pages > 0 {
                write(&mut machine, pages);
            }
            let (taken, instructions) = take(&machine, all);
            report.check(
                format_args!("{name}: {pages} dirty: a take has {instructions} instructions"),
                taken == pages,
            );
        }
    }
}

/// The number of exits if only a small range is logged, such as a guest's video memory, and the
/// guest writes everything.
fn video_memory(report: &mut Report, host: Host) {
    const SCREEN: u64 = 256;
    report.part(format_args!(
        "figures: {WRITE_AREA_PAGES} pages written, all or {SCREEN} of them tracked"
    ));
    for (method, name) in LOG_METHODS {
        let watch = |range: GfnRange| {
            let mut machine = Machine::new(host, Level::Size4K);
            machine.start(method, range);
            let cost = write(&mut machine, WRITE_AREA_PAGES);
            (cost.log_exits(), take(&machine, frames(0, FRAMES)).0)
        };
        let (exits, taken) = watch(frames(0, FRAMES));
        let (screen_exits, screen_taken) = watch(frames((WRITE_AREA >> 12) + 1000, SCREEN));
        report.check(
            format_args!("{name}: {exits} exits if all are tracked, {screen_exits} for the range"),
            taken == WRITE_AREA_PAGES && screen_taken == SCREEN && screen_exits <= SCREEN,
        );
    }
}
