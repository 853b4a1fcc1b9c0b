//! A second view of the same memory, with another EPT pointer: writes through either view are
//! logged. Then a view is removed, and the root of another view is in the same frame. (Whether
//! stale translations are used there is tested with the software processor: Bochs caches none from
//! one entry to the next.)

use super::log_methods::LOG_METHODS;
use crate::guest_program::{self, WRITE_AREA};
use crate::machine::{FRAMES, Machine, frames};
use crate::memory::GUEST;
use crate::report::Report;
use crate::vmx::vcpu::Host;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hikkoshi_ept::{HostFrame, Level, LogMethod, MAX_VIEWS, Mapping, View};

/// Frames that each vCPU writes. The second half of the first vCPU's frames is the first half of
/// the second's.
const COUNT: usize = 40;

/// Runs the checks.
pub fn run(report: &mut Report, host: Host) {
    for (method, name) in LOG_METHODS {
        report.part(format_args!("two views, {name}"));
        one(report, host, method);
    }
}

/// Returns the frame at `index` of the list: every third frame of the write area.
fn frame(index: usize) -> u64 {
    (WRITE_AREA >> 12) + 3 * index as u64
}

fn one(report: &mut Report, host: Host, method: LogMethod) {
    let all = frames(0, FRAMES);
    let mapping = Mapping {
        max_level: Level::Size4K,
        ..Mapping::ram(all, HostFrame::containing(GUEST.start as u64))
    };
    let mut machine = Machine::new(host, Level::Size4K);
    let second = add(&machine, &mapping);
    machine.add_vcpu();
    machine.enter_view(1, second);
    machine.start(method, all);
    let addresses: Vec<u32> = (0..COUNT * 3 / 2)
        .filter_map(|index| u32::try_from(frame(index) << 12).ok())
        .collect();
    guest_program::write_list(&addresses);
    let by_first: BTreeSet<u64> = (0..COUNT).map(frame).collect();
    let by_second: BTreeSet<u64> = (COUNT / 2..COUNT * 3 / 2).map(frame).collect();
    let write = |machine: &mut Machine, number: usize, stamp: u32| {
        machine.prepare_list(number, number * COUNT / 2, COUNT, stamp);
        machine.finish(number);
    };

    write(&mut machine, 0, 1);
    write(&mut machine, 1, 2);
    report.check(
        "the log is what was written through both views",
        machine.take(all) == &by_first | &by_second,
    );
    write(&mut machine, 1, 3);
    report.check(
        "pages written again through the second view are logged again",
        machine.take(all) == by_second,
    );
    write(&mut machine, 0, 4);
    report.check(
        "pages written again through the first view are logged again",
        machine.take(all) == by_first,
    );

    // Remove the second view while its pages are dirty.
    write(&mut machine, 1, 5);
    let pointer = machine.guest.eptp(second);
    machine.enter_view(1, View::MAIN);
    let flush = machine.guest.remove_view(second);
    let other = add(&machine, &mapping);
    machine.guest.flush(flush, &machine);
    machine.take(all);
    // Add views until one has its root in the frame of the removed view's root.
    let mut views = Vec::from([other]);
    let mut found = other;
    while machine.guest.eptp(found) != pointer && views.len() < MAX_VIEWS - 1 {
        found = add(&machine, &frames_of(&mapping, 0));
        views.push(found);
    }
    report.check(
        "a later view has the EPT pointer of the removed one",
        machine.guest.eptp(found) == pointer,
    );
    let mapped = machine.guest.map(found, &mapping);
    machine.enter_view(1, found);
    write(&mut machine, 1, 6);
    report.check(
        "pages written through the later view are logged",
        mapped.is_ok() && machine.take(all) == by_second,
    );
    machine.enter_view(1, View::MAIN);
    for view in views {
        let flush = machine.guest.remove_view(view);
        machine.guest.flush(flush, &machine);
    }
}

/// Returns the mapping of the first `count` frames of a mapping.
fn frames_of(mapping: &Mapping, count: u64) -> Mapping {
    Mapping {
        guest: frames(mapping.guest.start().index(), count),
        ..*mapping
    }
}

/// Adds a view with this mapping.
fn add(machine: &Machine, mapping: &Mapping) -> View {
    let view = machine
        .guest
        .add_view()
        .unwrap_or_else(|error| crate::fail(error));
    if let Err(error) = machine.guest.map(view, mapping) {
        crate::fail(error);
    }
    view
}
