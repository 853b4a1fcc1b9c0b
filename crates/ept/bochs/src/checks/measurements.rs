//! What each form of the log costs, in exits and in instructions of guest and hypervisor. The exits are
//! checked, for they follow from the rules; the instructions are measured.
//!
//! In Bochs an exit costs no more than any instruction. On a processor it costs about as much as a
//! thousand, so there the exits weigh more than the instructions that handle them.

use super::log_methods::LOG_METHODS;
use crate::guest_program::{Program, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::{Exits, Host, Registers};
use hikkoshi_ept::{GfnRange, Level, LogMethod};

/// Pages that the guest may write to.
const WRITE_AREA_PAGES: u64 = FRAMES - (WRITE_AREA >> 12);

/// What one run cost.
#[derive(Clone, Copy)]
struct Cost {
    exits: Exits,
    /// Instructions between entries and exits, both included.
    guest: u64,
    /// Instructions between exits and entries.
    handling: u64,
}

impl Cost {
    /// Exits beside the one that ends the guest's program.
    fn log_exits(self) -> u64 {
        self.exits.violations + self.exits.pml_full
    }
}

/// Runs the checks and prints the figures.
pub fn run(report: &mut Report, host: Host) {
    for pages in [1000, WRITE_AREA_PAGES] {
        report.part(format_args!(
            "figures: {pages} pages written in order, 4 KiB leaves, all logged"
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

/// The guest writes to each of so many pages once.
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

/// Takes a range; the pages and the instructions.
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
    // Once before: the guest's code and the tables' accessed flags are as in a guest that has run.
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
        format_args!(
            "{name}: {pages} dirty pages cost {} exits",
            cost.log_exits()
        ),
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

/// What a take costs by the number of dirty pages, in a guest of one size.
fn takes(report: &mut Report, host: Host) {
    report.part(format_args!(
        "figures: takes of all {FRAMES} pages, by dirty pages"
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
                format_args!("{name}: {pages} dirty: {instructions} instructions to take them"),
                taken == pages,
            );
        }
    }
}

/// Exits when only a small range is watched, as a guest's video memory is, and the guest writes all.
fn video_memory(report: &mut Report, host: Host) {
    const SCREEN: u64 = 256;
    report.part(format_args!(
        "figures: {WRITE_AREA_PAGES} pages written, all of them or {SCREEN} of them logged"
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
            format_args!("{name}: {exits} exits for all, {screen_exits} for the range"),
            taken == WRITE_AREA_PAGES && screen_taken == SCREEN && screen_exits <= SCREEN,
        );
    }
}
