//! Other programs access the guest's memory at the destination: monitors read it, other processes
//! write to it.

use std::sync::Arc;

use hikkoshi_engine::Mode;
use hikkoshi_handover::Outcome;
use hikkoshi_pages::{PAGE_SIZE, RamLayout};

use crate::guests::Script;
use crate::machine::{Machine, Side};
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::Setup;

const MODES: [Mode; 2] = [Mode::Postcopy, Mode::Hybrid];

/// A page with content that loading the device state does not touch.
fn a_page(machine: &Machine) -> u64 {
    let has_content = |page: &u64| machine.expected(*page) != [0; PAGE_SIZE];
    (64..128).find(has_content).unwrap()
}

/// Does `what` when `script` reaches the call `name`.
fn at(
    script: &Script,
    name: &'static str,
    machine: &Arc<Machine>,
    what: impl Fn(&Machine) + Send + 'static,
) {
    let machine = Arc::clone(machine);
    script.at(name, move || {
        what(&machine);
        Ok(())
    });
}

fn migrate_after_reading(mode: Mode, layout: &RamLayout) {
    let setup = Setup::with(mode, layout, layout, true);
    // Stale pages are already dropped then, and their memory is registered.
    for call in ["pause", "save_device_state half-way"] {
        at(&setup.source.script, call, &setup.machine, |machine| {
            machine.memory(Side::Destination).read_all_elsewhere();
        });
    }
    setup.run().moved(true);
}

#[test]
fn pages_read_before_the_switch_arrive() {
    for mode in MODES {
        migrate_after_reading(mode, &layout(&[(MIB, SMALL), (2 * MIB, SMALL)]));
    }
}

/// The monitor may begin at any moment, also before the memory is registered.
#[test]
fn a_monitor_that_reads_before_the_switch_waits_for_the_pages() {
    for (mode, call) in MODES.into_iter().zip(["prepare_pause", "pause"]) {
        let layout = layout(&[(MIB, SMALL), (2 * MIB, SMALL)]);
        let setup = Setup::with(mode, &layout, &layout, true);
        at(&setup.source.script, call, &setup.machine, |machine| {
            let memory = Arc::clone(machine.memory(Side::Destination));
            std::thread::spawn(move || memory.read_all());
        });
        setup.run().moved(true);
    }
}

#[test]
fn huge_pages_read_before_the_switch_arrive() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    for mode in MODES {
        migrate_after_reading(
            mode,
            &layout(&[(2 * HUGE, HUGE), (MIB, SMALL), (HUGE, HUGE)]),
        );
    }
}

#[test]
fn a_page_that_cannot_be_dropped_ends_the_migration_before_ready() {
    let layout = layout(&[(3 * MIB, SMALL)]);
    // A paused guest: nothing else must be dropped after the memory is sealed.
    let setup = Setup::with(Mode::Postcopy, &layout, &layout, false);
    at(&setup.source.script, "pause", &setup.machine, |machine| {
        let memory = machine.memory(Side::Destination);
        memory.read_all_elsewhere();
        memory.seal();
    });
    let done = setup.run();
    let ((source, why), (destination, cause)) = done.errors();
    assert_eq!(
        (source, destination),
        (Outcome::AtSource, Outcome::AtSource)
    );
    assert!(cause.starts_with("dropping pages "), "{cause}");
    assert!(why.contains(&cause), "{why}");
    assert_eq!(done.destination_calls.count("load_device_state"), 0);
    assert_eq!((done.commits, done.source_calls.count("resume")), (0, 1));
    done.machine.check(Side::Source);
}

#[test]
fn a_page_filled_by_another_process_ends_the_guest() {
    let setup = Setup::new(Mode::Postcopy);
    let call = "load_device_state done";
    at(&setup.destination.script, call, &setup.machine, |machine| {
        // As another process does: this causes no fault.
        let memory = machine.memory(Side::Destination);
        memory.write_through_file(a_page(machine), &[7; PAGE_SIZE]);
    });
    let done = setup.run();
    let ((source, why), (destination, cause)) = done.errors();
    for text in [cause, why] {
        assert!(text.contains("holds something else already"), "{text}");
    }
    assert_eq!(done.destination_calls.count("kill"), 1);
    assert_eq!(done.machine.runs(), None);
    assert!(done.notices.all().contains("corrupted"));
    // Neither side lets the guest run again, or reports the migration as complete.
    let ends = [
        (Outcome::Lost, Outcome::AtDestination),
        // The error was found before the source knew that the guest runs.
        (Outcome::Paused, Outcome::Paused),
    ];
    assert!(
        ends.contains(&(source, destination)),
        "{source:?} {destination:?}"
    );
    assert_eq!(done.source_calls.count("resume"), 0);
    assert!(!done.destination_journal.is_closed());
}

#[test]
fn a_page_filled_with_the_right_content_does_no_harm() {
    let layout = layout(&[(3 * MIB, SMALL)]);
    let setup = Setup::with(Mode::Postcopy, &layout, &layout, false);
    let call = "load_device_state done";
    at(&setup.destination.script, call, &setup.machine, |machine| {
        let memory = machine.memory(Side::Destination);
        let page = a_page(machine);
        memory.write_through_file(page, &machine.expected(page));
    });
    setup.run().moved(false);
}
