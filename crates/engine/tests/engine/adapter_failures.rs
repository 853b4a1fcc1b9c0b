//! Every call of a guest's adapter fails, at each point, on both sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hikkoshi_engine::report::GuestState;
use hikkoshi_engine::{GuestError, Mode};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationStage, SourceStage};

use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::{Done, Setup};

/// Runs a migration in which the `nth` call of the source's `name` fails.
fn source_fails(mode: Mode, name: &'static str, nth: u32) -> Done {
    let setup = Setup::new(mode);
    let calls = AtomicU32::new(0);
    setup.source.script.at(name, move || {
        if calls.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            return Err(GuestError::new(format!("{name} does not work")));
        }
        Ok(())
    });
    setup.run()
}

fn destination_fails(mode: Mode, name: &'static str) -> Done {
    let setup = Setup::new(mode);
    setup.destination.script.fail(name);
    setup.run()
}

#[test]
fn a_failure_before_commit_leaves_the_guest_at_the_source() {
    for (mode, name, nth) in [
        (Mode::Precopy, "start_dirty_log", 1),
        (Mode::Hybrid, "start_dirty_log", 1),
        (Mode::Precopy, "prepare_pause", 1),
        (Mode::Postcopy, "prepare_pause", 1),
        (Mode::Hybrid, "prepare_pause", 1),
        (Mode::Precopy, "pause", 1),
        (Mode::Postcopy, "pause", 1),
        (Mode::Hybrid, "pause", 1),
        (Mode::Precopy, "save_device_state", 1),
        (Mode::Postcopy, "save_device_state", 1),
        (Mode::Precopy, "save_device_state half-way", 1),
        (Mode::Hybrid, "save_device_state half-way", 1),
    ] {
        let done = source_fails(mode, name, nth);
        let (source, destination) = done.at_source();
        assert_eq!(source, format!("{name} does not work"));
        let told = format!("the source ended the migration: {name} does not work");
        // After device state that is not being read there may be no room for a message; the source
        // does not wait for it.
        let cut_short = name.ends_with("half-way") && destination.contains("the connection");
        assert!(destination == told || cut_short, "{destination}");
        // Once in `Setup`; again only if it had been stopped.
        let stopped = name.starts_with("save");
        assert_eq!(done.machine.starts(Side::Source), 1 + u32::from(stopped));
        assert_eq!(done.source_calls.count("resume"), 1);
        assert_eq!(done.destination_calls.count("release"), 1);
        assert_eq!(done.commits, 0);
    }
}

/// A monitor that stalls while it saves the device state.
#[test]
fn a_stalled_save_is_cancelled_and_the_guest_stays_at_the_source() {
    for (mode, cancel) in [
        (Mode::Precopy, true),
        (Mode::Precopy, false),
        (Mode::Postcopy, true),
        (Mode::Hybrid, false),
    ] {
        let mut setup = Setup::new(mode);
        setup.source.save_stalls = true;
        if cancel {
            let flag = setup.source_cancel.clone();
            let cancels = move || {
                flag.cancel();
                Ok(())
            };
            let script = &setup.source.script;
            script.at("save_device_state half-way", cancels);
        } else {
            setup.options.max_downtime = Duration::from_millis(20);
            setup.options.peer_timeout = Duration::from_secs(1);
        }
        let done = setup.run();
        let (source, _) = done.at_source();
        let why = "the guest was paused for 1.02 s, and could not be handed over in that time: \
                   save_device_state was cancelled";
        assert_eq!(source, if cancel { "cancelled" } else { why });
        assert_eq!(done.machine.starts(Side::Source), 2);
        assert_eq!(done.source_calls.count("resume"), 1);
        assert_eq!(done.commits, 0);
    }
}

#[test]
fn a_dirty_log_that_cannot_be_read_ends_the_migration() {
    // 3 MiB are two chunks a pass: the first round, then the passes before the pause, then those
    // with the guest paused.
    for (mode, name, nth) in [
        (Mode::Precopy, "take", 1),
        (Mode::Precopy, "take", 2),
        (Mode::Precopy, "count", 1),
        (Mode::Precopy, "peek", 1),
        (Mode::Hybrid, "take", 3),
        (Mode::Hybrid, "peek", 1),
    ] {
        let done = source_fails(mode, name, nth);
        let (source, destination) = done.at_source();
        assert_eq!(
            source,
            "reading the dirty log of process 4711: it has ended"
        );
        assert_eq!(
            destination,
            format!("the source ended the migration: {source}")
        );
    }
    // The last passes: with the guest paused.
    for mode in [Mode::Precopy, Mode::Hybrid] {
        let setup = Setup::new(mode);
        let script = Arc::clone(&setup.source.script);
        let log = Arc::clone(&script);
        script.at("save_device_state", move || {
            log.fail("peek");
            Ok(())
        });
        let done = setup.run();
        done.at_source();
        assert_eq!(done.machine.starts(Side::Source), 2);
    }
}

#[test]
fn the_source_does_not_commit_without_a_record() {
    for mode in [Mode::Precopy, Mode::Postcopy] {
        let setup = Setup::new(mode);
        setup.source_journal.before(|record| match record.stage {
            SourceStage::Owned => Ok(()),
            _ => Err(std::io::Error::other("there is no room")),
        });
        let done = setup.run();
        let (source, destination) = done.at_source();
        assert_eq!(
            source,
            "recording the migration's progress: there is no room"
        );
        assert_eq!(
            destination,
            format!("the source ended the migration: {source}")
        );
        assert_eq!(done.machine.starts(Side::Source), 2);
        // It had loaded the guest, and dropped it.
        assert_eq!(done.destination_calls.count("load_device_state"), 1);
        assert_eq!(done.destination_calls.count("release"), 1);
        assert!(!done.abandoned);
    }
}

#[test]
fn a_guest_that_cannot_be_resumed_is_paused() {
    let setup = Setup::new(Mode::Hybrid);
    setup.source.script.fail("save_device_state");
    setup.source.script.fail("resume");
    let done = setup.run();
    let (source, destination) = done.errors();
    assert_eq!(source.0, Outcome::Stopped);
    assert_eq!(
        source.1,
        "save_device_state does not work; then: resume does not work"
    );
    // As far as this side knows.
    assert_eq!(destination.0, Outcome::AtSource);
    assert_eq!(done.machine.runs(), None);
    assert_eq!(done.commits, 0);
    // What is needed to resume the guest remains, in the process and in the journal.
    assert_eq!(done.source_calls.count("release"), 0);
    assert_eq!(done.source_calls.count("leave"), 1);
    assert!(!done.source_journal.is_closed());
    done.returned_to_source();
}

/// If the guest's process has ended, there is nothing to resume and no record to
/// keep.
#[test]
fn a_guest_whose_process_has_exited_leaves_no_record() {
    let setup = Setup::new(Mode::Hybrid);
    let ended = Arc::clone(&setup.source.ended);
    setup.source.script.at("save_device_state", move || {
        ended.store(true, Ordering::Relaxed);
        Err(GuestError::new("its machine has ended"))
    });
    setup.source.script.fail("resume");
    let done = setup.run();
    let (source, _) = done.errors();
    assert_eq!(source.0, Outcome::AtSource);
    assert!(source.1.contains("resume does not work"), "{}", source.1);
    assert_eq!(done.commits, 0);
    assert!(done.source_journal.is_closed());
}

#[test]
fn the_record_remains_if_the_guest_cannot_be_released() {
    let setup = Setup::new(Mode::Hybrid);
    setup.source.script.fail("save_device_state");
    setup.source.script.fail("release");
    let done = setup.run();
    let (source, _) = done.at_source();
    assert!(source.ends_with("then: release does not work"), "{source}");
    assert_eq!(
        done.source_journal.last().unwrap().stage,
        SourceStage::Owned
    );
    assert!(!done.source_journal.is_closed());
}

#[test]
fn a_failed_release_is_reported() {
    let setup = Setup::new(Mode::Hybrid);
    setup.source.script.fail("release");
    setup.destination.script.fail("release");
    let done = setup.run();
    let notices = done.notices.all();
    done.moved(true);
    for expected in [
        "the guest has moved, but: release does not work",
        "the guest runs here, and all its pages have arrived, but: release does not work",
    ] {
        assert!(notices.contains(expected), "{notices}");
    }
}

/// A guest that has shut itself down does not run, whatever else is reported of it.
#[test]
fn a_failed_release_of_a_guest_that_has_shut_down_is_reported() {
    let layout = layout(&[(MIB, SMALL)]);
    let mut setup = Setup::with(Mode::Postcopy, &layout, &layout, false);
    setup.options.background_delay = Duration::from_secs(3600);
    setup.destination.shuts_down = true;
    let ended = Arc::clone(&setup.destination.ended);
    setup.destination.script.at("resume", move || {
        ended.store(true, Ordering::Relaxed);
        Ok(())
    });
    setup.destination.script.fail("release");
    let done = setup.run();
    let notices = done.notices.all();
    for account in [done.source.unwrap(), done.destination.unwrap()] {
        assert_eq!(account.guest_state, GuestState::ShutDown);
    }
    let expected = "the guest has shut itself down here, but: release does not work";
    assert!(notices.contains(expected), "{notices}");
    assert!(!notices.contains("runs here"), "{notices}");
}

/// The machine does not answer whether the guest has shut down: it is not said that it runs.
#[test]
fn what_is_not_known_of_a_guest_is_not_claimed() {
    for (running, expected) in [
        (true, GuestState::Unknown),
        // A paused one does not shut down.
        (false, GuestState::Paused),
    ] {
        let layout = layout(&[(MIB, SMALL)]);
        let mut setup = Setup::with(Mode::Hybrid, &layout, &layout, running);
        setup.destination.is_shut_down = None;
        setup.destination.script.fail("release");
        let done = setup.run();
        let notices = done.notices.all();
        assert_eq!(done.destination.unwrap().guest_state, expected);
        done.source.unwrap();
        let says = "its machine has not said whether it runs or has shut down";
        // When it is found out, and with the failed release.
        let times = if running { 2 } else { 0 };
        assert_eq!(notices.matches(says).count(), times, "{notices}");
        assert!(!notices.contains("the guest runs here, and"), "{notices}");
    }
}

#[test]
fn a_destination_that_cannot_be_prepared_refuses() {
    for (mode, name) in [
        (Mode::Precopy, "prepare"),
        (Mode::Hybrid, "prepare"),
        (Mode::Hybrid, "take_userfault"),
        (Mode::Postcopy, "take_userfault"),
    ] {
        let done = destination_fails(mode, name);
        let (source, destination) = done.at_source();
        assert_eq!(
            source,
            format!("the destination refuses the guest: {name} does not work")
        );
        // It kept waiting, until the test stopped it.
        assert_eq!(destination, "cancelled");
        assert_eq!(done.destination_calls.count("release"), 1);
        assert_eq!(done.source_calls.count("pause"), 0);
        assert!(
            done.notices
                .all()
                .contains(&format!(": {name} does not work"))
        );
    }
}

#[test]
fn a_guest_that_does_not_fit_is_refused() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.destination.description.cpus = 3;
    let done = setup.run();
    let (source, _) = done.at_source();
    assert!(
        source.starts_with("the destination refuses the guest: "),
        "{source}"
    );
    assert!(source.contains("number of virtual CPUs"), "{source}");
    assert_eq!(done.destination_calls.count("prepare"), 0);
}

/// It is noticed while memory is received: the source sends nothing until the destination has given
/// up.
#[test]
fn a_machine_that_cannot_take_the_guest_any_more_is_noticed_in_precopy() {
    for mode in [Mode::Precopy, Mode::Hybrid] {
        for ended in [false, true] {
            let setup = Setup::new(mode);
            let script = Arc::clone(&setup.destination.script);
            let process = Arc::clone(&setup.destination.ended);
            match ended {
                true => script.at("check_receiving", move || {
                    process.store(true, Ordering::Relaxed);
                    Ok(())
                }),
                false => script.fail("check_receiving"),
            }
            setup.source.script.at("take", move || {
                while script.count("release") == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let done = setup.run();
            let (source, destination) = done.at_source();
            match ended {
                true => assert!(destination.contains("has ended"), "{destination}"),
                false => assert_eq!(destination, "check_receiving does not work"),
            }
            assert_eq!(source, format!("the destination failed: {destination}"));
            assert_eq!(done.source_calls.count("pause"), 0);
            assert_eq!(done.destination_calls.count("load_device_state"), 0);
        }
    }
}

#[test]
fn a_device_state_that_cannot_be_loaded() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        for name in ["load_device_state", "load_device_state done"] {
            let done = destination_fails(mode, name);
            let (source, destination) = done.at_source();
            assert_eq!(destination, format!("{name} does not work"));
            assert_eq!(source, format!("the destination failed: {destination}"));
            assert_eq!(done.machine.starts(Side::Source), 2);
            assert_eq!(done.destination_calls.count("release"), 1);
            assert!(!done.abandoned);
            assert_eq!(done.commits, 0);
        }
    }
}

/// After the handover the adapter fails to resume the guest: another engine can.
#[test]
fn a_guest_that_fails_to_run_after_commit_can_be_resumed() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        let setup = Setup::new(mode);
        setup.destination.script.fail("resume");
        let done = setup.run();
        let (source, destination) = done.interrupted();
        assert_eq!(destination, "resume does not work");
        assert_eq!(source, "the destination failed: resume does not work");
        assert_eq!(done.machine.runs(), None);
        assert_eq!(done.commits, 1);
        assert!(done.abandoned);
        // Nothing is lost: the source still has every page.
        done.machine.check(Side::Source);
        done.resumed(&format!("{mode:?}"));
    }
}

/// After the handover the monitor refuses to run the guest, and it certainly never ran:
/// the source resumes it.
#[test]
fn a_guest_that_never_ran_returns_to_the_source() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        let mut setup = Setup::new(mode);
        setup.destination.never_ran = true;
        setup.destination.script.fail("resume");
        let done = setup.run();
        let (source, destination) = done.errors();
        assert_eq!(
            (source.0, destination.0),
            (Outcome::AtSource, Outcome::AtSource),
            "{source:?}\n{destination:?}"
        );
        assert_eq!(destination.1, "resume does not work");
        assert_eq!(
            source.1,
            "the destination never ran the guest and never will: resume does not work"
        );
        let record = done.destination_journal.last().unwrap();
        assert_eq!(record.stage, DestinationStage::Declined);
        assert!(!record.started);
        assert_eq!(done.destination_calls.count("release"), 1);
        assert!(done.source_journal.is_closed() && done.destination_journal.is_closed());
        assert_eq!(done.machine.runs(), Some(Side::Source));
        done.machine.work(200);
        done.machine.check(Side::Source);
    }
}
