//! Only some ranges are logged, such as a guest's video memory: the guest's other pages cost
//! nothing.

use super::log_methods::LOG_METHODS;
use crate::guest_program;
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::Host;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hikkoshi_ept::{Gfn, GfnRange, Level, LogMethod};

/// The first tracked range: 4 MiB that begin and end inside 2 MiB leaves.
const SCREEN: (u64, u64) = (3000, 1024);
/// The second tracked range.
const SECOND: (u64, u64) = (6000, 300);

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    for (max_level, size) in [(Level::Size4K, "4 KiB"), (Level::Size2M, "2 MiB")] {
        report.part(format_args!(
            "one range of 1,024 pages is tracked, {size} leaves"
        ));
        for (method, name) in LOG_METHODS {
            one(report, host, method, name, max_level);
        }
    }
}

/// Returns 6,999 frames, from frame 1,000 on, each once and not in order. Some of them are tracked.
fn written() -> Vec<u64> {
    (0..6999).map(|step| 1000 + step * 8 % 6999).collect()
}

fn one(report: &mut Report, host: Host, method: LogMethod, name: &str, max_level: Level) {
    let screen = frames(SCREEN.0, SCREEN.1);
    let second = frames(SECOND.0, SECOND.1);
    let all = frames(0, FRAMES);
    let mut machine = Machine::new(host, max_level);
    machine.start(method, screen);
    let frames_written = written();
    let addresses: Vec<u32> = frames_written
        .iter()
        .filter_map(|frame| u32::try_from(frame << 12).ok())
        .collect();
    guest_program::write_list(&addresses);
    write_all(&mut machine, addresses.len());

    let inside = chosen(&frames_written, &[screen]);
    let exits = machine.vcpus[0].vmx.exits;
    let large: BTreeSet<u64> = inside.iter().map(|frame| frame >> 9).collect();
    let most = match (method, max_level) {
        (LogMethod::WriteProtection, Level::Size4K) => inside.len(),
        (LogMethod::WriteProtection, _) => inside.len() + large.len(),
        (_, Level::Size4K) => 0,
        _ => large.len(),
    };
    report.check(
        format_args!(
            "{name}: {} pages written, {} of them tracked: {} violations",
            frames_written.len(),
            inside.len(),
            exits.violations
        ),
        exits.violations <= most as u64,
    );
    let full = if method == LogMethod::Pml {
        inside.len() as u64 / 512
    } else {
        0
    };
    report.check(
        format_args!(
            "{name}: {} full logs: pages outside the range fill none",
            exits.pml_full
        ),
        exits.pml_full <= full && exits.pml_full + 1 >= full,
    );
    report.check(
        format_args!("{name}: the log is the pages written in the range"),
        machine.take(all) == inside,
    );
    let untouched = machine.level(4500);
    report.equal(
        format_args!("{name}: leaves outside the range are not split"),
        untouched,
        Some(max_level),
    );

    machine.start(method, second);
    write_all(&mut machine, addresses.len());
    let both = chosen(&frames_written, &[screen, second]);
    report.check(
        format_args!("{name}: after a second range is added, both are logged"),
        machine.take(all) == both,
    );

    machine.stop(screen);
    write_all(&mut machine, addresses.len());
    let rest = chosen(&frames_written, &[second]);
    report.check(
        format_args!("{name}: after the first is stopped, only the second is logged"),
        machine.take(all) == rest,
    );

    machine.stop(second);
    report.check(
        format_args!("{name}: without a range, logging is off"),
        machine.guest.log_method().is_none(),
    );
    let exits = machine.vcpus[0].vmx.exits;
    write_all(&mut machine, addresses.len());
    let after = machine.vcpus[0].vmx.exits;
    report.equal(
        format_args!("{name}: with logging off, there are no exits"),
        (after.violations, after.pml_full),
        (exits.violations, exits.pml_full),
    );
}

fn write_all(machine: &mut Machine, count: usize) {
    machine.prepare_list(0, 0, count, 12);
    machine.finish(0);
}

/// Returns the frames that are in one of the ranges.
fn chosen(frames: &[u64], ranges: &[GfnRange]) -> BTreeSet<u64> {
    let tracked = |frame: &u64| ranges.iter().any(|range| range.contains(Gfn::new(*frame)));
    frames.iter().copied().filter(tracked).collect()
}
