//! The exit "page-modification log full" comes exactly when the SDM says: when the log has 512 entries
//! and a 513th is to be written. Under the crate's tables and its handling of the exit.

use crate::guest_program::{Program, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::{Exit, Host, Registers};
use alloc::vec::Vec;
use hikkoshi_ept::{Level, LogMethod};

/// Pages that the guest writes, in order and without reading anything: five full logs and 440 entries.
const PAGES: u64 = 3000;

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    report.part(format_args!(
        "full logs: {PAGES} pages written without a read"
    ));
    let mut machine = Machine::new(host, Level::Size4K);
    let all = frames(0, FRAMES);
    machine.start(LogMethod::Pml, all);
    warm_up(&mut machine);
    write(&mut machine, WRITE_AREA, PAGES);
    let mut left_at_exit = Vec::new();
    loop {
        match machine.step(0, None) {
            Some(Exit::PmlFull) => left_at_exit.push(left(&machine)),
            Some(Exit::Vmcall) => break,
            other => crate::fail(format_args!("exit {other:?} instead of a full log")),
        }
    }
    let expected: Vec<u64> = (1..=(PAGES - 1) / 512)
        .map(|full| PAGES - 512 * full)
        .collect();
    report.equal(
        "an exit at the 513th page, the 1,025th, … and no other",
        left_at_exit,
        expected,
    );
    let index = machine.vcpus[0].vmx.pml_index();
    report.equal(
        "the rest is in the log",
        u64::from(index),
        511 - PAGES % 512,
    );
    let before = machine.invalidations.get();
    let taken = machine.take(all);
    report.equal(
        "taken: translations invalidated once",
        machine.invalidations.get(),
        before + 1,
    );
    report.equal(
        "taken: as many pages as were written",
        taken.len() as u64,
        PAGES,
    );
    report.check(
        "taken: those pages",
        taken.iter().copied().eq((0..PAGES).map(frame)),
    );
    report.equal(
        "taking emptied the log",
        machine.vcpus[0].vmx.pml_index(),
        511,
    );

    warm_up(&mut machine);
    write(&mut machine, WRITE_AREA, 512);
    report.equal(
        "512 pages: no full log",
        machine.step(0, None),
        Some(Exit::Vmcall),
    );
    report.equal(
        "the index is ffff",
        machine.vcpus[0].vmx.pml_index(),
        0xffff,
    );
    report.equal("and all 512 are taken", machine.take(all).len(), 512);

    write(&mut machine, WRITE_AREA, 300);
    machine.finish(0);
    write(&mut machine, WRITE_AREA, 300);
    machine.finish(0);
    report.equal(
        "written twice, logged once",
        machine.vcpus[0].vmx.pml_index(),
        511 - 300,
    );
    report.equal("peeking finds them", machine.peek(all), 300);
    report.equal("and leaves them", machine.take(all).len(), 300);
}

/// Has the guest fetch its code once, so that no accessed flag is left to be set but the pages' own:
/// setting one counts, too, when the log is full.
fn warm_up(machine: &mut Machine) {
    let registers = Registers {
        rcx: 1,
        rdi: WRITE_AREA,
        ..Registers::default()
    };
    machine.prepare(0, Program::ReadStride, registers);
    machine.finish(0);
}

fn write(machine: &mut Machine, first: u64, pages: u64) {
    let registers = Registers {
        rax: 3,
        rcx: pages,
        rdx: 4096,
        rdi: first,
        ..Registers::default()
    };
    machine.prepare(0, Program::WriteStride, registers);
}

fn left(machine: &Machine) -> u64 {
    machine.vcpus[0].vmx.registers.rcx & 0xffff_ffff
}

fn frame(page: u64) -> u64 {
    (WRITE_AREA >> 12) + page
}
