//! When pre-copy ends. The guest's writes are tied to the calls of the log, not to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hikkoshi_engine::{Mode, WhenStalled};

use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::Setup;

const LAYOUT: [(u64, u64); 1] = [(12 * MIB, SMALL)];

/// A guest that may not be paused for any page.
fn strict(mode: Mode) -> Setup {
    let layout = layout(&LAYOUT);
    may_not_be_paused(Setup::with(mode, &layout, &layout, true))
}

fn may_not_be_paused(mut setup: Setup) -> Setup {
    setup.options.links = 1;
    setup.options.max_downtime = Duration::ZERO;
    setup.options.max_rounds = 25;
    setup.options.precopy_rounds = 25;
    setup.options.when_stalled = WhenStalled::Switch;
    setup
}

/// Lets the guest write while three rounds, of six takes each, are sent, and then nothing more.
fn write_for_three_rounds(setup: &Setup) {
    let takes = AtomicU32::new(0);
    let machine = Arc::clone(&setup.machine);
    setup.source.script.at("take", move || {
        match takes.fetch_add(1, Ordering::Relaxed) {
            0..18 => machine.work(20),
            18 => machine.stop(Side::Source, Duration::from_secs(20)),
            _ => {}
        }
        Ok(())
    });
}

/// While the guest writes, the estimate shows that it has not converged. Pre-copy reads the log
/// before it is given up. Hybrid needs no number.
#[test]
fn the_whole_log_is_not_read_after_each_round() {
    for (what, setup, expected) in [
        ("pre-copy", strict(Mode::Precopy), 1),
        ("hybrid", strict(Mode::Hybrid), 0),
        (
            "pre-copy with drains",
            may_not_be_paused(Setup::with_direct_io(Mode::Precopy, &layout(&LAYOUT), 100)),
            1,
        ),
    ] {
        setup.write_in_each_round();
        let done = setup.run();
        let counts = done.source_calls.count("count");
        let (source, _) = done.moved(true);
        assert_eq!(source.rounds, 25);
        assert_eq!(counts, expected, "{what}");
    }
}

/// A guest that stops writing: the estimate falls to nothing, and the log is read once, before the
/// guest is paused.
#[test]
fn pre_copy_ends_when_the_guest_writes_nothing_more() {
    let setup = strict(Mode::Precopy);
    write_for_three_rounds(&setup);
    let done = setup.run();
    assert_eq!(done.source_calls.count("count"), 1);
    let (source, _) = done.moved(true);
    assert!(!source.postcopy);
    // The fourth round finds what was written before, the fifth finds nothing. The last one is
    // that with the guest paused.
    assert!((4..=6).contains(&source.rounds), "{} rounds", source.rounds);
}

/// After the last round, the estimate says that there is more to send, by what the round before has
/// left. But the guest has written nothing since.
#[test]
fn pre_copy_is_not_given_up_because_of_an_estimate() {
    let mut setup = strict(Mode::Precopy);
    setup.options.max_rounds = 4;
    setup.options.when_stalled = WhenStalled::Stop;
    write_for_three_rounds(&setup);
    let done = setup.run();
    assert_eq!(done.source_calls.count("count"), 1);
    let (source, _) = done.moved(true);
    assert!(!source.postcopy);
}

/// A guest that begins to write when pre-copy seems to have converged: more than the estimate is
/// dirty, and it is not paused.
#[test]
fn the_guest_is_not_paused_because_of_an_estimate() {
    let setup = strict(Mode::Precopy);
    // A guest that its owner has paused writes nothing by itself.
    setup.machine.stop(Side::Source, Duration::from_secs(20));
    let counts = Arc::new(AtomicU32::new(0));
    let machine = Arc::clone(&setup.machine);
    let counted = Arc::clone(&counts);
    setup.source.script.at("count", move || {
        if counted.fetch_add(1, Ordering::Relaxed) < 3 {
            machine.run(Side::Source);
            machine.work(20);
            machine.stop(Side::Source, Duration::from_secs(20));
        }
        Ok(())
    });
    let script = Arc::clone(&setup.source.script);
    let counted = Arc::clone(&counts);
    script.at("pause", move || {
        assert_eq!(counted.load(Ordering::Relaxed), 4, "the last one was 0");
        Ok(())
    });
    let done = setup.run();
    let (source, _) = done.moved(true);
    assert!(source.rounds >= 5, "{} rounds", source.rounds);
}
