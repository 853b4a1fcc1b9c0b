//! Other uses of the tables by a hypervisor, with real exits: mapping on the first access, emulated
//! devices, its own protection, and ageing by accessed flags.

use crate::guest_program::{self, Program};
use crate::machine::{FRAMES, Machine, frames};
use crate::memory::GUEST;
use crate::report::Report;
use crate::vmx::vcpu::{Exit, Host, Registers};
use hikkoshi_ept::{
    ExitQualification, Gfn, GfnRange, HostFrame, Level, LogMethod, Mapping, Permissions, View,
    ViolationOutcome,
};

/// Frames that are mapped at first, from frame 0 on.
const MAPPED: u64 = 4096;
/// A frame that is not mapped.
const ABSENT: u64 = 5000;
/// A frame that is a device.
const DEVICE: u64 = 6000;

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    report.part("exits not related to the log");
    let memory = Mapping {
        max_level: Level::Size4K,
        ..ram(frames(0, MAPPED))
    };
    let mut machine = Machine::with(host, FRAMES, &memory);
    machine.start(LogMethod::Pml, frames(0, FRAMES));
    absent(report, &mut machine);
    device(report, &mut machine);
    denied(report, &mut machine);
    let taken = machine.take(frames(0, FRAMES));
    report.check(
        "the log is the two pages that were written",
        taken.into_iter().eq([700, ABSENT]),
    );
    age(report, &mut machine);
}

/// Maps guest frames to their place in the guest's memory.
fn ram(range: GfnRange) -> Mapping {
    let first = HostFrame::containing(GUEST.start as u64).plus(range.start().index());
    Mapping::ram(range, first)
}

/// Makes one access to a frame; returns the crate's answer to the exit.
fn access(machine: &mut Machine, program: Program, frame: u64) -> Option<ViolationOutcome> {
    let registers = Registers {
        rax: 17,
        rcx: 1,
        rdi: (frame << 12) + 0x10,
        ..Registers::default()
    };
    machine.prepare(0, program, registers);
    again(machine)
}

/// Resumes the guest; returns `None` when its program has finished.
fn again(machine: &mut Machine) -> Option<ViolationOutcome> {
    match machine.vcpus[0].vmx.run() {
        Exit::Vmcall => None,
        Exit::Violation {
            address,
            qualification,
        } => Some(machine.guest.handle_ept_violation(
            View::MAIN,
            address,
            ExitQualification(qualification),
        )),
        other => crate::fail(format_args!("exit {other:?}, expected a violation")),
    }
}

fn absent(report: &mut Report, machine: &mut Machine) {
    let found = access(machine, Program::WriteStride, ABSENT);
    report.equal(
        "an unmapped page: absent",
        found,
        Some(ViolationOutcome::Absent(Gfn::new(ABSENT))),
    );
    if let Err(error) = machine.guest.map(View::MAIN, &ram(frames(ABSENT, 1))) {
        crate::fail(error);
    }
    report.equal(
        "after it is mapped, the write succeeds",
        again(machine),
        None,
    );
    report.equal(
        "the write is in memory",
        guest_program::read_word((ABSENT << 12) + 0x10),
        17,
    );
}

fn device(report: &mut Report, machine: &mut Machine) {
    if let Err(error) = machine.guest.map_mmio(View::MAIN, frames(DEVICE, 1)) {
        crate::fail(error);
    }
    let address = (DEVICE << 12) + 0x10;
    for (program, name) in [
        (Program::WriteStride, "written"),
        (Program::ReadStride, "read"),
    ] {
        let found = access(machine, program, DEVICE);
        report.equal(
            format_args!("a device {name}: the access is to be emulated"),
            found,
            Some(ViolationOutcome::Mmio { address }),
        );
        // Emulate the access: skip the instruction, which has two bytes in both programs.
        let vmx = &machine.vcpus[0].vmx;
        vmx.set_rip(vmx.rip() + 2);
        report.equal(
            format_args!("a device {name}: the guest continues after it"),
            again(machine),
            None,
        );
    }
}

fn denied(report: &mut Report, machine: &mut Machine) {
    let page = frames(700, 1);
    protect(machine, page, Permissions::Read);
    report.equal(
        "read-only: a read succeeds",
        access(machine, Program::ReadStride, 700),
        None,
    );
    let found = access(machine, Program::WriteStride, 700);
    report.equal(
        "read-only: a write is denied",
        found,
        Some(ViolationOutcome::Denied(Gfn::new(700))),
    );
    protect(machine, page, Permissions::All);
    report.equal(
        "write permission restored: the write succeeds",
        again(machine),
        None,
    );
}

fn protect(machine: &Machine, range: GfnRange, permissions: Permissions) {
    let (flush, outcome) = machine.guest.protect(View::MAIN, range, permissions);
    machine.guest.flush(flush, machine);
    if let Err(error) = outcome {
        crate::fail(error);
    }
}

/// Accessed flags: the frames of a range that were used since the previous scan.
fn age(report: &mut Report, machine: &mut Machine) {
    let range = frames(1000, 500);
    aged(machine, range);
    let registers = Registers {
        rcx: 40,
        rdx: 4096,
        rdi: 1100 << 12,
        ..Registers::default()
    };
    machine.prepare(0, Program::ReadStride, registers);
    machine.finish(0);
    report.equal(
        "40 pages read: ageing reports them",
        aged(machine, range),
        40,
    );
    report.equal("ageing reports them once", aged(machine, range), 0);
    machine.prepare(0, Program::ReadStride, registers);
    machine.finish(0);
    report.equal(
        "pages read again are reported again",
        aged(machine, range),
        40,
    );
}

fn aged(machine: &Machine, range: GfnRange) -> u64 {
    let mut pages = 0;
    let aged = machine
        .guest
        .age(View::MAIN, range, &mut |run| pages += run.len());
    machine
        .guest
        .flush(aged.unwrap_or_else(|error| crate::fail(error)), machine);
    pages
}
