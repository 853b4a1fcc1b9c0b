//! When pre-copy ends. The guest's writes are tied to the calls of the log, not to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{LimitChange, MAX_DOWNTIME, Mode, WhenStalled};
use hikkoshi_wire::Frame;

use crate::machine::{Machine, Side};
use crate::memory::{MIB, SMALL, layout};
use crate::run::Setup;
use hikkoshi_lab::relay::Fate;

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
        let mut setup = setup;
        (setup.options.max_rounds, setup.options.precopy_rounds) = (8, 8);
        setup.write_in_each_round();
        let done = setup.run();
        let counts = done.source_calls.count("count");
        let (source, _) = done.moved(true);
        assert_eq!(source.rounds, 8);
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

/// Stops the guest, which writes again when the pause is prepared, and then `tries` times while
/// pages are on their way. Returns whether something is written that is not taken.
fn write_before_the_pause(setup: &mut Setup, tries: u32) -> Arc<AtomicBool> {
    setup.machine.stop(Side::Source, Duration::from_secs(20));
    let write = |machine: &Machine| {
        machine.run(Side::Source);
        machine.work(20);
        machine.stop(Side::Source, Duration::from_secs(20));
    };
    let (prepared, machine) = (Arc::new(AtomicBool::new(false)), Arc::clone(&setup.machine));
    setup.source.script.at("prepare_pause", {
        let prepared = Arc::clone(&prepared);
        move || {
            write(&machine);
            prepared.store(true, Ordering::Relaxed);
            Ok(())
        }
    });
    // While the pages are on their way; they are not in the log until it is taken again.
    let (times, in_log) = (AtomicU32::new(0), Arc::new(AtomicBool::new(false)));
    let (machine, written) = (Arc::clone(&setup.machine), Arc::clone(&in_log));
    setup.relay(move |message| {
        let is_page = matches!(message.frame, Frame::Pages { .. });
        if is_page
            && prepared.load(Ordering::Relaxed)
            && !written.load(Ordering::Relaxed)
            && times.fetch_add(1, Ordering::Relaxed) < tries
        {
            write(&machine);
            written.store(true, Ordering::Relaxed);
        }
        Fate::Pass
    });
    let taken = Arc::clone(&in_log);
    setup.source.script.at("take", move || {
        taken.store(false, Ordering::Relaxed);
        Ok(())
    });
    in_log
}

/// A guest that begins to write when the pages before the pause are sent: it is not paused before
/// they fit.
#[test]
fn the_guest_is_not_paused_with_pages_that_it_has_written_since_the_rounds() {
    for tries in [1, 2, 10] {
        let mut setup = strict(Mode::Precopy);
        let in_log = write_before_the_pause(&mut setup, tries);
        setup.source.script.at("pause", move || {
            assert!(!in_log.load(Ordering::Relaxed), "paused too soon");
            Ok(())
        });
        let (source, _) = setup.run().moved(true);
        assert!(!source.postcopy);
    }
}

/// The rounds converge, and what the guest writes before the pause does not fit: that does not go
/// on for longer than the rounds may.
#[test]
fn the_check_before_the_pause_counts_as_a_round_too_many() {
    let says = "pre-copy does not converge: after 1 rounds ";
    let limited = |when_stalled, tries| {
        let mut setup = strict(Mode::Precopy);
        setup.options.max_rounds = 1;
        setup.options.when_stalled = when_stalled;
        setup.options.set_command = "hikkoshi set web".into();
        write_before_the_pause(&mut setup, tries);
        setup.run()
    };
    let (source, _) = limited(WhenStalled::Stop, u32::MAX).at_source();
    assert!(source.starts_with(says), "{source}");

    let done = limited(WhenStalled::Continue, 10);
    let notices = done.notices.all();
    assert_eq!(notices.matches(says).count(), 1, "{notices}");
    assert!(
        notices.contains("`hikkoshi set web --max-downtime "),
        "{notices}"
    );
    done.moved(true);
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

/// The log of a large guest is read while the guest is paused. Here, reading it once takes 100 ms
/// or more: the guest is not paused with a limit of 150 ms, however little it writes, and the
/// message names a limit with which it is.
#[test]
fn a_guest_whose_log_takes_longer_than_the_downtime_is_not_paused() {
    let says = "pre-copy does not converge: however little is dirty, the paused guest would wait \
                for about ";
    let slow = |when_stalled| {
        let mut setup = Setup::with(Mode::Precopy, &layout(&LAYOUT), &layout(&LAYOUT), true);
        setup.machine.stop(Side::Source, Duration::from_secs(20));
        setup.options.max_downtime = Duration::from_millis(150);
        setup.options.max_rounds = 2;
        setup.options.when_stalled = when_stalled;
        setup.options.set_command = "hikkoshi set web".into();
        setup.source.script.at("peek", || {
            thread::sleep(Duration::from_millis(100));
            Ok(())
        });
        setup
    };

    let done = slow(WhenStalled::Stop).run();
    assert_eq!(done.source_calls.count("pause"), 0);
    let (source, _) = done.at_source();
    assert!(source.starts_with(says), "{source}");

    let (source, _) = slow(WhenStalled::Switch).run().moved(true);
    assert!(source.postcopy);

    // It is said after the first round already. In the second one, a higher limit is set.
    let mut setup = slow(WhenStalled::Continue);
    setup.options.max_rounds = 1000;
    let (control, script) = (
        setup.source_control.clone(),
        Arc::clone(&setup.source.script),
    );
    setup.source.script.at("take", move || {
        if script.count("peek") > 0 {
            // Refused while it is decided about the pause.
            let _ = control.change(LimitChange {
                max_downtime: Some(MAX_DOWNTIME),
                ..LimitChange::default()
            });
        }
        Ok(())
    });
    let done = setup.run();
    let notices = done.notices.all();
    assert_eq!(notices.matches(says).count(), 1, "{notices}");
    assert!(
        notices.contains("; continuing (`hikkoshi set web --max-downtime "),
        "{notices}"
    );
    let (source, _) = done.moved(true);
    assert!(!source.postcopy);
}
