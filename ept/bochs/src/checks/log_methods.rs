//! A guest with each method of logging: every log equals what the guest wrote.

use crate::guest_program;
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::Host;
use crate::write_patterns::{self, Pattern};
use hikkoshi_ept::{Level, LogMethod};

/// The methods, with their names.
pub const LOG_METHODS: [(LogMethod, &str); 3] = [
    (LogMethod::WriteProtection, "write protection"),
    (LogMethod::DirtyFlags, "dirty flags"),
    (LogMethod::Pml, "page-modification logging"),
];

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    for pattern in write_patterns::all() {
        let pages = pattern.frames().len();
        report.part(format_args!(
            "{}: {pages} pages, in 4 KiB leaves",
            pattern.name
        ));
        for (method, name) in LOG_METHODS {
            one(report, host, method, name, &pattern);
        }
    }
}

fn one(report: &mut Report, host: Host, method: LogMethod, name: &str, pattern: &Pattern) {
    const FIRST: u32 = 0x1111_1111;
    const SECOND: u32 = 0x2222_2222;
    let expected = pattern.frames();
    let mut machine = Machine::new(host, Level::Size4K);
    let all = frames(0, FRAMES);
    machine.start(method, all);
    report.check(
        format_args!("{name}: the log is empty after the start"),
        machine.take(all).is_empty(),
    );

    guest_program::write_list(&pattern.addresses);
    machine.prepare_list(0, 0, pattern.addresses.len(), FIRST);
    machine.finish(0);
    exits(report, &machine, method, name, expected.len() as u64);
    report.check(
        format_args!("{name}: all writes are in memory"),
        all_written(pattern, FIRST),
    );
    report.check(
        format_args!("{name}: the log is the pages written"),
        machine.take(all) == expected,
    );
    report.check(
        format_args!("{name}: the pages are taken once"),
        machine.take(all).is_empty(),
    );

    machine.prepare_list(0, 0, pattern.addresses.len(), SECOND);
    machine.finish(0);
    report.check(
        format_args!("{name}: pages written again are logged again"),
        machine.take(all) == expected && all_written(pattern, SECOND),
    );
}

fn all_written(pattern: &Pattern, stamp: u32) -> bool {
    pattern
        .addresses
        .iter()
        .all(|address| guest_program::read_word(u64::from(*address)) == stamp)
}

/// Checks that the exits are those that the method costs, and no others.
fn exits(report: &mut Report, machine: &Machine, method: LogMethod, name: &str, pages: u64) {
    let found = machine.vcpus[0].vmx.exits;
    let what = format_args!(
        "{name}: {} violations, {} full logs",
        found.violations, found.pml_full
    );
    match method {
        LogMethod::WriteProtection => {
            report.check(what, found.violations == pages && found.pml_full == 0);
        }
        LogMethod::DirtyFlags => report.check(what, found.violations == 0 && found.pml_full == 0),
        LogMethod::Pml => {
            // If the 512th entry was the last one, there is no need for an exit. In Bochs, reading
            // the list can still cause one (see the notes).
            let (least, most) = ((pages - 1) / 512, pages / 512);
            let within = (least..=most).contains(&found.pml_full);
            report.check(what, found.violations == 0 && within);
        }
    }
}
