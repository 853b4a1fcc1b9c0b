//! Several vCPUs, each with its own page-modification log, which is taken while they are writing.
//!
//! They share one processor and take turns: a timer makes each exit after some hundred
//! instructions, at any point of its program. The crate's loom models test what happens if two
//! processors act at the same time.

use super::log_methods::LOG_METHODS;
use crate::guest_program;
use crate::machine::{FRAMES, Machine, frames};
use crate::report::Report;
use crate::vmx::vcpu::Host;
use crate::write_patterns::{Pattern, Random, all};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hikkoshi_ept::{GfnRange, Level, LogMethod};

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    own_logs(report, host);
    for max_level in [Level::Size4K, Level::Size2M] {
        for (method, name) in LOG_METHODS {
            report.part(format_args!(
                "taken while two vCPUs write: {name}, {max_level} leaves"
            ));
            for pattern in all()
                .iter()
                .filter(|pattern| pattern.addresses.len() >= 2000)
            {
                taken_while_running(report, host, method, max_level, pattern);
            }
        }
    }
}

/// Two vCPUs, a third that is added while logging is on, and the removal of one.
fn own_logs(report: &mut Report, host: Host) {
    report.part("several vCPUs, each with its own log");
    const EACH: usize = 700;
    let whole = frames(0, FRAMES);
    let mut machine = Machine::new(host, Level::Size4K);
    machine.add_vcpu();
    machine.start(LogMethod::Pml, whole);
    machine.add_vcpu();
    let buffers: BTreeSet<_> = machine
        .vcpus
        .iter()
        .filter_map(|cpu| {
            machine
                .guest
                .pml_address(cpu.id)
                .map(hikkoshi_ept::HostFrame::index)
        })
        .collect();
    report.equal(
        "each has its own buffer, including the one added last",
        buffers.len(),
        3,
    );

    let addresses: Vec<u32> = (0_u32..)
        .take(3 * EACH)
        .map(|page| 0x40_0000 + (page << 12))
        .collect();
    guest_program::write_list(&addresses);
    for number in 0..3 {
        machine.prepare_list(number, number * EACH, EACH, 13);
        machine.finish(number);
    }
    let left: Vec<u16> = machine
        .vcpus
        .iter()
        .map(|cpu| cpu.vmx.pml_index())
        .collect();
    report.check(
        "none of the logs is empty",
        left.iter().all(|index| *index != 511),
    );
    machine.remove_vcpu();
    let expected: BTreeSet<u64> = addresses
        .iter()
        .map(|address| u64::from(*address >> 12))
        .collect();
    report.check(
        "one vCPU removed: the log is what all three wrote",
        machine.take(whole) == expected,
    );
    let left: Vec<u16> = machine
        .vcpus
        .iter()
        .map(|cpu| cpu.vmx.pml_index())
        .collect();
    report.equal("the take drains every log", left, alloc::vec![511, 511]);
}

/// The progress of a vCPU in its part of the list.
struct Writer {
    /// The first entry of the list that it has not written to yet.
    done: usize,
    finished: bool,
    part: core::ops::Range<usize>,
}

/// Two vCPUs write one half of the pattern each, in turns; between turns a piece of the guest is
/// taken. Each take must return exactly the pages of the piece that were written since the piece
/// was last taken.
///
/// With write protection, a vCPU can be interrupted between the exit, which logs the page, and the
/// write. The page is then in a log before the write, and must be in the next log again.
fn taken_while_running(
    report: &mut Report,
    host: Host,
    method: LogMethod,
    max_level: Level,
    pattern: &Pattern,
) {
    const PIECE: u64 = 1500;
    let mut machine = Machine::new(host, max_level);
    machine.add_vcpu();
    machine.start(method, frames(0, FRAMES));
    guest_program::write_list(&pattern.addresses);
    let half = pattern.addresses.len() / 2;
    let mut writers = [0..half, half..pattern.addresses.len()].map(|part| Writer {
        done: part.start,
        finished: false,
        part,
    });
    for (number, writer) in writers.iter().enumerate() {
        machine.prepare_list(number, writer.part.start, writer.part.len(), 14);
    }

    let mut random = Random(pattern.addresses.len() as u64);
    let mut due: BTreeSet<u64> = BTreeSet::new();
    let (mut takes, mut pages, mut early, mut wrong) = (0, 0, 0, 0);
    while !writers.iter().all(|writer| writer.finished) {
        for (number, writer) in writers.iter_mut().enumerate() {
            if !writer.finished {
                let turn = 50 + random.below(1500);
                writer.finished = machine.run_for(number, turn);
                due.extend(advance(&machine, number, writer, pattern));
            }
        }
        let piece = frames(random.below(FRAMES), PIECE);
        let expected = remove(&mut due, piece);
        let taken = machine.take(piece);
        let before_write: BTreeSet<u64> = taken.difference(&expected).copied().collect();
        let explained = method == LogMethod::WriteProtection
            && before_write.is_subset(&next_writes(&writers, pattern));
        wrong += usize::from(!taken.is_superset(&expected));
        wrong += usize::from(!before_write.is_empty() && !explained);
        early += before_write.len();
        takes += 1;
        pages += taken.len();
    }
    let taken = machine.take(frames(0, FRAMES));
    wrong += usize::from(taken != due);
    pages += taken.len();
    report.equal(
        format_args!(
            "{}: {} takes, {pages} pages, {early} of them just before their write; every log is correct",
            pattern.name,
            takes + 1
        ),
        wrong,
        0,
    );
}

/// Returns the frames that the vCPUs were about to write to when they were interrupted.
fn next_writes(writers: &[Writer], pattern: &Pattern) -> BTreeSet<u64> {
    let running = writers.iter().filter(|writer| !writer.finished);
    let next = running.filter_map(|writer| pattern.addresses.get(writer.done));
    next.map(|address| u64::from(*address >> 12)).collect()
}

/// Returns the frames that a writer has written to since the previous call.
fn advance(machine: &Machine, number: usize, writer: &mut Writer, pattern: &Pattern) -> Vec<u64> {
    let vmx = &machine.vcpus[number].vmx;
    let end = if writer.finished {
        writer.part.end
    } else {
        guest_program::written(&vmx.registers, vmx.rip())
    };
    let start = core::mem::replace(&mut writer.done, end);
    pattern.addresses[start..end]
        .iter()
        .map(|address| u64::from(*address >> 12))
        .collect()
}

/// Removes the frames of a range from the set and returns them.
fn remove(due: &mut BTreeSet<u64>, range: GfnRange) -> BTreeSet<u64> {
    let mut inside = due.split_off(&range.start().index());
    due.append(&mut inside.split_off(&range.end().index()));
    inside
}
