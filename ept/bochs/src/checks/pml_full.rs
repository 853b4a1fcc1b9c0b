//! The exit "page-modification log full" comes exactly when the SDM specifies it: when the log has
//! 512 entries and a 513th is to be written. Tested with the crate's tables and its handling of the
//! exit.

use crate::guest_program::{Program, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::{Exit, Host, Registers};
use alloc::vec::Vec;
use hikkoshi_ept::{Level, LogMethod};

/// Pages that the guest writes, in order and without reading anything: five full logs and 440
/// entries.
const PAGES: u64 = 3000;

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    report.part(format_args!(
        "full logs: {PAGES} pages written without reads"
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
            other => crate::fail(format_args!("exit {other:?}, expected a full log")),
        }
    }
    let expected: Vec<u64> = (1..=(PAGES - 1) / 512)
        .map(|full| PAGES - 512 * full)
        .collect();
    report.equal(
        "exits at the 513th page, the 1,025th, ..., and no others",
        left_at_exit,
        expected,
    );
    let index = machine.vcpus[0].vmx.pml_index();
    report.equal(
        "the remaining pages are in the log",
        u64::from(index),
        511 - PAGES % 512,
    );
    let before = machine.invalidations.get();
    let taken = machine.take(all);
    report.equal(
        "the take invalidates translations once",
        machine.invalidations.get(),
        before + 1,
    );
    report.equal(
        "the take returns as many pages as were written",
        taken.len() as u64,
        PAGES,
    );
    report.check(
        "the take returns those pages",
        taken.iter().copied().eq((0..PAGES).map(frame)),
    );
    report.equal(
        "the take drains the log",
        machine.vcpus[0].vmx.pml_index(),
        511,
    );

    warm_up(&mut machine);
    write(&mut machine, WRITE_AREA, 512);
    report.equal(
        "512 pages: no exit for a full log",
        machine.step(0, None),
        Some(Exit::Vmcall),
    );
    report.equal(
        "512 pages: the index is ffff",
        machine.vcpus[0].vmx.pml_index(),
        0xffff,
    );
    report.equal("512 pages: all are taken", machine.take(all).len(), 512);

    write(&mut machine, WRITE_AREA, 300);
    machine.finish(0);
    write(&mut machine, WRITE_AREA, 300);
    machine.finish(0);
    report.equal(
        "300 pages written twice: logged once",
        machine.vcpus[0].vmx.pml_index(),
        511 - 300,
    );
    report.equal(
        "300 pages written twice: counted without taking",
        machine.peek(all),
        300,
    );
    report.equal(
        "300 pages written twice: taken",
        machine.take(all).len(),
        300,
    );
}

/// Makes the guest fetch its code once, so that only the pages' own accessed flags are still clear:
/// with a full log, setting any accessed flag exits, too.
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
