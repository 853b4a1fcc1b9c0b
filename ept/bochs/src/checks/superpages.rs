//! Superpages are write-protected while they are logged, and the first write splits them: the log
//! has 4 KiB granularity with every method.

use super::log_methods::LOG_METHODS;
use crate::guest_program::{self, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::memory::GUEST;
use crate::report::Report;
use crate::vmx::vcpu::Host;
use crate::write_patterns;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hikkoshi_ept::{Gfn, HostFrame, Level, LogMethod, Mapping, View};

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    for pattern in write_patterns::all() {
        let expected = pattern.frames();
        let large: BTreeSet<u64> = expected.iter().map(|frame| frame >> 9).collect();
        report.part(format_args!(
            "2 MiB leaves, {}: {} pages of {} leaves",
            pattern.name,
            expected.len(),
            large.len()
        ));
        for (method, name) in LOG_METHODS {
            let mut machine = Machine::new(host, Level::Size2M);
            machine.start(method, frames(0, FRAMES));
            guest_program::write_list(&pattern.addresses);
            machine.prepare_list(0, 0, pattern.addresses.len(), 7);
            machine.finish(0);
            let least = match method {
                LogMethod::WriteProtection => expected.len(),
                LogMethod::DirtyFlags | LogMethod::Pml => large.len(),
            };
            let violations = machine.vcpus[0].vmx.exits.violations;
            report.equal(
                format_args!("{name}: no more violations than necessary"),
                violations,
                least as u64,
            );
            let whole = |index: &u64| machine.level(index << 9) == Some(Level::Size2M);
            let whole: BTreeSet<u64> = (0..FRAMES >> 9).filter(whole).collect();
            report.check(
                format_args!("{name}: only leaves that were written to are split"),
                whole
                    == (0..FRAMES >> 9)
                        .filter(|index| !large.contains(index))
                        .collect(),
            );
            let taken = machine.take(frames(0, FRAMES));
            report.check(
                format_args!("{name}: the log is the pages written"),
                taken == expected,
            );
        }
    }
    merged(report, host);
    huge(report, host);
}

/// After logging, the leaves are merged again.
fn merged(report: &mut Report, host: Host) {
    report.part("2 MiB leaves, split by the log and merged afterwards");
    let mut machine = Machine::new(host, Level::Size2M);
    let all = frames(0, FRAMES);
    let before = crate::frame_pool::POOL.in_use();
    machine.start(LogMethod::Pml, all);
    let addresses: Vec<u32> = (0..1500).map(|page| in_write_area(page * 4096)).collect();
    guest_program::write_list(&addresses);
    machine.prepare_list(0, 0, addresses.len(), 9);
    machine.finish(0);
    machine.stop(all);
    report.equal("three leaves are split", split_leaves(&machine), 3);
    for index in 0..FRAMES >> 9 {
        let at = Gfn::new(index << 9);
        if machine.level(at.index()) == Some(Level::Size4K) {
            match machine.guest.merge(View::MAIN, at, Level::Size2M) {
                Ok(flush) => machine.guest.flush(flush, &machine),
                Err(error) => crate::fail(error),
            }
        }
    }
    report.equal("after merging, none is", split_leaves(&machine), 0);
    machine.prepare_list(0, 0, addresses.len(), 10);
    let violations = machine.vcpus[0].vmx.exits.violations;
    machine.finish(0);
    report.equal(
        "after merging, the guest writes without an exit",
        machine.vcpus[0].vmx.exits.violations,
        violations,
    );
    report.check(
        "after merging, all writes are in memory",
        addresses
            .iter()
            .all(|address| guest_program::read_word(u64::from(*address)) == 10),
    );
    // The reverse map keeps the frames it has allocated.
    report.check(
        "the tables of the split leaves are released",
        crate::frame_pool::POOL.in_use() <= before + 3,
    );
}

fn split_leaves(machine: &Machine) -> usize {
    (0..FRAMES >> 9)
        .filter(|index| machine.level(index << 9) == Some(Level::Size4K))
        .count()
}

fn in_write_area(offset: u64) -> u32 {
    u32::try_from(WRITE_AREA + offset).unwrap_or(0)
}

/// A 1 GiB leaf. It maps all of physical memory, including this program; the guest writes only to
/// the addresses of its list, which are in its own memory.
fn huge(report: &mut Report, host: Host) {
    report.part("a 1 GiB leaf");
    const GIB: u64 = 1 << 18;
    let pages = [0_u64, 1, 511, 512, 2000, 5000, 7000];
    let first = GIB + ((GUEST.start as u64 + WRITE_AREA) >> 12);
    for (method, name) in LOG_METHODS {
        let memory = Mapping::ram(frames(GIB, GIB), HostFrame::new(0));
        let mut machine = Machine::with(host, 2 * GIB, &memory);
        // Code and list, in 2 MiB leaves.
        let code = Mapping::ram(
            frames(0, WRITE_AREA >> 12),
            HostFrame::containing(GUEST.start as u64),
        );
        if let Err(error) = machine.guest.map(View::MAIN, &code) {
            crate::fail(error);
        }
        report.equal(
            format_args!("{name}: the memory is one leaf"),
            machine.level(first),
            Some(Level::Size1G),
        );
        machine.start(method, frames(0, 2 * GIB));
        let addresses: Vec<u32> = pages
            .iter()
            .filter_map(|page| u32::try_from((first + page) << 12).ok())
            .collect();
        guest_program::write_list(&addresses);
        machine.prepare_list(0, 0, addresses.len(), 11);
        machine.finish(0);
        let expected: BTreeSet<u64> = pages.iter().map(|page| first + page).collect();
        let taken = machine.take(frames(0, 2 * GIB));
        report.check(
            format_args!("{name}: the log is the pages written"),
            taken == expected,
        );
        let levels = (
            machine.level(first + 5000),
            machine.level(first + 6000),
            machine.level(GIB),
        );
        let pieces = (
            Some(Level::Size4K),
            Some(Level::Size2M),
            Some(Level::Size2M),
        );
        report.equal(
            format_args!("{name}: split only where it was written"),
            levels,
            pieces,
        );
        let arrived = pages
            .iter()
            .all(|page| guest_program::read_word(WRITE_AREA + (page << 12)) == 11);
        report.check(format_args!("{name}: all writes are in memory"), arrived);
    }
}
