//! Links break at each message; operators cancel at each message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::Mode;
use hikkoshi_handover::Outcome;
use hikkoshi_handover::SourceStage;
use hikkoshi_wire::Role;

use crate::machine::Side;
use crate::run::{Done, Setup};
use hikkoshi_lab::relay::{Fate, Message, Towards};

/// The result of one side: where the guest is, or that it has moved.
type Verdict = Result<(), Outcome>;

const MOVED: Verdict = Ok(());
const AT_SOURCE: Verdict = Err(Outcome::AtSource);
const PAUSED: Verdict = Err(Outcome::Paused);
const LACKS_PAGES: Verdict = Err(Outcome::AtDestination);

/// Breaks all links at the first message with that name.
fn break_at(mode: Mode, name: &'static str, fate: Fate) -> Done {
    // On a busy machine the guest may not have written any page that must be discarded.
    for _ in 0..20 {
        let broken = Arc::new(AtomicBool::new(false));
        let ended = try_to_break_at(mode, name, fate, &broken);
        if broken.load(Ordering::Relaxed) {
            return ended;
        }
    }
    panic!("{mode:?}: no message {name} was sent")
}

fn try_to_break_at(mode: Mode, name: &'static str, fate: Fate, done: &Arc<AtomicBool>) -> Done {
    let mut setup = Setup::new(mode);
    let cancel = setup.destination_cancel.clone();
    let done = Arc::clone(done);
    let after_commit = matches!(name, "Commit" | "GuestResumed");
    if (name, fate) == ("Switch", Fate::CutAfter) {
        // Loading takes longer than both sides take to detect the cut.
        let source = Arc::clone(&setup.source.script);
        setup.destination.script.at("load_device_state", move || {
            while source.count("resume") == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            // Not one long sleep: the whole machine may be paused for a while.
            (0..300).for_each(|_| thread::sleep(Duration::from_millis(1)));
            Ok(())
        });
    }
    let switched = AtomicBool::new(false);
    setup.relay(move |message: &Message| {
        if message.name == "Switch" {
            switched.store(true, Ordering::Relaxed);
        }
        let background = matches!(message.role, Role::Background { .. });
        if after_commit && background && switched.load(Ordering::Relaxed) {
            // Otherwise every page might have arrived before the cut.
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if message.name != name || done.swap(true, Ordering::Relaxed) {
            return Fate::Pass;
        }
        if name == "Offer" {
            // It gets no offer from this source, or cannot answer it, and would wait for another.
            cancel.cancel();
        }
        fate
    });
    setup.run()
}

/// Asserts the results, that the guest runs at no more than one side, and that it is undamaged.
#[track_caller]
fn check_outcomes(done: &Done, what: &str, source: Verdict, destination: Verdict) {
    let verdicts = (
        done.source.as_ref().map(|_| ()).map_err(|e| e.outcome),
        done.destination.as_ref().map(|_| ()).map_err(|e| e.outcome),
    );
    let texts = (
        done.source
            .as_ref()
            .err()
            .map(|e| Report::new(e).to_string()),
        done.destination
            .as_ref()
            .err()
            .map(|e| Report::new(e).to_string()),
    );
    assert_eq!(verdicts, (source, destination), "{what}: {texts:?}");
    let runs = match verdicts {
        // It waits for missing pages.
        (_, Ok(()) | Err(Outcome::AtDestination)) => Some(Side::Destination),
        (Err(Outcome::AtSource), _) => Some(Side::Source),
        _ => None,
    };
    assert_eq!(done.machine.runs(), runs, "{what}: {texts:?}");
    match runs {
        Some(side) if verdicts.1 != LACKS_PAGES => {
            done.machine.work(100);
            done.machine.check(side);
        }
        _ => done.machine.undamaged(),
    }
    // Only the source knows whether it committed.
    if done.commits == 0 {
        assert_eq!(source, AT_SOURCE, "{what}");
    }
    // The guest may return, or this side has pages that are needed.
    let left = verdicts.0 == PAUSED || verdicts.0 == LACKS_PAGES;
    assert_eq!(
        done.source_calls.count("release"),
        usize::from(!left),
        "{what}"
    );
    assert_eq!(
        done.source_calls.count("leave"),
        usize::from(left),
        "{what}"
    );
}

#[test]
fn a_link_lost_before_commit_leaves_the_guest_at_the_source() {
    for name in [
        "Offer",
        "Accept",
        "Discard",
        "DiscardEnd",
        "Discarded",
        "DeviceStateChunk",
        "Switch",
    ] {
        for fate in [Fate::CutBefore, Fate::CutAfter, Fate::CutInside] {
            let done = break_at(Mode::Hybrid, name, fate);
            check_outcomes(&done, &format!("{fate:?} {name}"), AT_SOURCE, AT_SOURCE);
            // Everything that was prepared was released.
            assert_eq!(
                done.destination_calls.count("release"),
                done.destination_calls.count("prepare")
            );
            assert!(!done.abandoned);
        }
    }
    for mode in [Mode::Precopy, Mode::Postcopy] {
        let done = break_at(mode, "Switch", Fate::CutAfter);
        check_outcomes(&done, &format!("{mode:?}"), AT_SOURCE, AT_SOURCE);
    }
}

#[test]
fn a_link_lost_inside_a_page_frame() {
    for fate in [
        Fate::CutBefore,
        Fate::CutAfter,
        Fate::CutInside,
        Fate::CutLink,
    ] {
        for name in ["Pages", "Zeros", "Ack"] {
            let done = break_at(Mode::Precopy, name, fate);
            check_outcomes(&done, &format!("{fate:?} {name}"), AT_SOURCE, AT_SOURCE);
        }
        // The first request is made while the device state is loaded.
        let done = break_at(Mode::Postcopy, "Request", fate);
        check_outcomes(&done, &format!("{fate:?} Request"), AT_SOURCE, AT_SOURCE);
        let done = break_at(Mode::Postcopy, "Pages", fate);
        check_outcomes(&done, &format!("{fate:?} urgent"), AT_SOURCE, AT_SOURCE);
        assert_eq!(done.destination_calls.count("release"), 1);
    }
}

/// The destination has sent *Ready* and receives nothing: it cannot know whether the source
/// committed.
#[test]
fn a_link_lost_between_ready_and_commit_keeps_the_destination_paused() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        for fate in [Fate::CutBefore, Fate::CutInside] {
            let mut setup = Setup::new(mode);
            setup.relay(move |message: &Message| match message.name.as_str() {
                "Ready" => fate,
                // It is not notified, either, that the source keeps the guest.
                "ResumeRequest" => Fate::CutBefore,
                _ => Fate::Pass,
            });
            let done = setup.run();
            check_outcomes(
                &done,
                &format!("{mode:?} {fate:?} Ready"),
                AT_SOURCE,
                PAUSED,
            );
            assert!(done.abandoned);
        }
    }
}

#[test]
fn a_migration_interrupted_after_commit_can_be_resumed() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        for (name, fate, source, destination) in [
            ("Commit", Fate::CutBefore, PAUSED, PAUSED),
            ("Commit", Fate::CutInside, PAUSED, PAUSED),
            ("Commit", Fate::CutAfter, PAUSED, LACKS_PAGES),
            ("GuestResumed", Fate::CutBefore, PAUSED, LACKS_PAGES),
            ("GuestResumed", Fate::CutInside, PAUSED, LACKS_PAGES),
            ("GuestResumed", Fate::CutAfter, LACKS_PAGES, LACKS_PAGES),
        ] {
            let done = break_at(mode, name, fate);
            // *GuestResumed* may have passed before the cut.
            let reported = done.source.as_ref().map_err(|e| e.outcome);
            let source = match reported {
                Err(Outcome::AtDestination) if (name, fate) == ("Commit", Fate::CutAfter) => {
                    LACKS_PAGES
                }
                Ok(_) => MOVED,
                _ => source,
            };
            // With every page received the guest no longer needs the source.
            let destination = match destination {
                LACKS_PAGES if done.destination.is_ok() => MOVED,
                _ => destination,
            };
            let what = format!("{mode:?} {fate:?} {name}");
            check_outcomes(&done, &what, source, destination);
            assert_eq!(done.source_calls.count("resume"), 0);
            if destination != MOVED {
                assert!(done.abandoned, "missing pages would read as zeros");
                assert_eq!(done.destination_calls.count("release"), 0);
            }
            if source != MOVED {
                done.resumed(&what);
            }
        }
    }
}

/// In post-copy the loss of one link interrupts the migration.
#[test]
fn a_link_that_breaks_in_postcopy_leaves_the_guest_running() {
    for role in [Role::Urgent, Role::Background { index: 0 }] {
        let attempt = |_| {
            let mut setup = Setup::new(Mode::Postcopy);
            let running = AtomicBool::new(false);
            setup.relay(move |message: &Message| {
                if message.name == "GuestResumed" {
                    running.store(true, Ordering::Relaxed);
                }
                let page = message.role == role && message.towards == Towards::Destination;
                if page && running.load(Ordering::Relaxed) {
                    return Fate::CutLink;
                }
                Fate::Pass
            });
            setup.run()
        };
        // Possibly the other link had all the pages: then nothing failed.
        let moved = |done: &Done| done.source.is_ok();
        let done = (0..20).map(attempt).find(|done| {
            if moved(done) {
                check_outcomes(done, "no page on this link", MOVED, MOVED);
            }
            !moved(done)
        });
        let done = done.expect("a page on this link");
        check_outcomes(&done, &format!("{role}"), LACKS_PAGES, LACKS_PAGES);
        let (source, destination) = done.interrupted();
        let expected = match role {
            Role::Urgent => "receiving urgent pages: ",
            _ => "receiving background pages: ",
        };
        assert!(destination.starts_with(expected), "{destination}");
        assert!(
            source.starts_with("sending pages to the running guest: ")
                || source == format!("the destination failed: {destination}"),
            "{source}"
        );
        done.resumed(&format!("{role}"));
    }
}

/// When every page has arrived, nothing can be lost any more.
#[test]
fn a_link_lost_after_the_last_page_leaves_the_guest_running() {
    for mode in [Mode::Precopy, Mode::Hybrid] {
        for (name, fate, source) in [
            ("Complete", Fate::CutBefore, LACKS_PAGES),
            ("Complete", Fate::CutInside, LACKS_PAGES),
            ("Complete", Fate::CutAfter, MOVED),
            ("Goodbye", Fate::CutBefore, MOVED),
            ("Goodbye", Fate::CutAfter, MOVED),
        ] {
            let done = break_at(mode, name, fate);
            check_outcomes(&done, &format!("{mode:?} {fate:?} {name}"), source, MOVED);
            assert_eq!(done.source_calls.count("resume"), 0);
        }
    }
}

/// Both errors' texts.
fn texts(done: &Done) -> (String, String) {
    let (source, destination) = done.errors();
    (source.1, destination.1)
}

/// Runs a migration that `side` cancels when the first message with that name passes.
fn cancel_at(mode: Mode, side: Side, name: &'static str) -> Done {
    let mut setup = Setup::new(mode);
    let cancel = match side {
        Side::Source => setup.source_cancel.clone(),
        Side::Destination => setup.destination_cancel.clone(),
    };
    setup.relay(move |message: &Message| {
        if message.name == name {
            cancel.cancel();
        }
        Fate::Pass
    });
    setup.run()
}

#[test]
fn the_source_can_cancel_until_it_commits() {
    for (mode, name) in [
        (Mode::Hybrid, "Accept"),
        (Mode::Precopy, "Pages"),
        (Mode::Precopy, "Zeros"),
        (Mode::Hybrid, "Ack"),
        (Mode::Postcopy, "Discard"),
        (Mode::Hybrid, "DiscardEnd"),
        (Mode::Hybrid, "Discarded"),
        (Mode::Precopy, "DeviceStateChunk"),
        (Mode::Hybrid, "DeviceStateChunk"),
        (Mode::Precopy, "Switch"),
        (Mode::Postcopy, "Switch"),
        (Mode::Postcopy, "Request"),
        (Mode::Precopy, "Ready"),
        (Mode::Hybrid, "Ready"),
    ] {
        let done = cancel_at(mode, Side::Source, name);
        check_outcomes(&done, &format!("{mode:?} {name}"), AT_SOURCE, AT_SOURCE);
        let (source, destination) = texts(&done);
        assert_eq!(source, "cancelled");
        assert!(
            destination == "cancelled at the source"
                // It may be notified on the next connection first.
                || matches!(name, "Switch" | "Request" | "Ready")
                    && destination == "the source ended the migration: it keeps its guest"
                // Before its other links are open no thread reads from it.
                || name == "Accept"
                // Stopped in the middle of a chunk, nothing more can be sent.
                || name == "DeviceStateChunk" && destination.ends_with("the peer closed it"),
            "{mode:?} {name}: {destination}"
        );
        assert_eq!(done.destination_calls.count("release"), 1);
        assert_eq!(done.commits, 0);
    }
}

#[test]
fn the_destination_can_cancel_until_it_is_ready() {
    for (mode, name) in [
        (Mode::Hybrid, "Offer"),
        (Mode::Precopy, "Pages"),
        (Mode::Hybrid, "DiscardEnd"),
        (Mode::Precopy, "DeviceStateChunk"),
        (Mode::Precopy, "Switch"),
        (Mode::Postcopy, "Switch"),
        (Mode::Postcopy, "Request"),
    ] {
        let done = cancel_at(mode, Side::Destination, name);
        check_outcomes(&done, &format!("{mode:?} {name}"), AT_SOURCE, AT_SOURCE);
        let (source, destination) = texts(&done);
        assert_eq!(destination, "cancelled", "{name}");
        assert!(
            source == "cancelled at the destination"
                // It was not connected for long enough to be notified.
                || name == "Offer",
            "{mode:?} {name}: {source}"
        );
        assert_eq!(
            done.destination_calls.count("release"),
            done.destination_calls.count("prepare")
        );
    }
}

/// A cancellation crosses *Commit*: the answer is that it is too late.
#[test]
fn a_cancellation_after_commit_is_too_late() {
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        for (side, name) in [
            (Side::Destination, "Ready"),
            (Side::Source, "Commit"),
            (Side::Destination, "Commit"),
            (Side::Source, "GuestResumed"),
            (Side::Destination, "GuestResumed"),
            (Side::Source, "Complete"),
        ] {
            let done = cancel_at(mode, side, name);
            check_outcomes(&done, &format!("{mode:?} {side:?} {name}"), MOVED, MOVED);
        }
    }
}

/// Both operators cancel between *Ready* and *Commit*, just too late.
#[test]
fn a_cancellation_that_crosses_the_commit_is_too_late() {
    let mut setup = Setup::new(Mode::Hybrid);
    let cancel = setup.destination_cancel.clone();
    let cancel_seen = Arc::new(AtomicBool::new(false));
    let (seen, source_cancel) = (Arc::clone(&cancel_seen), setup.source_cancel.clone());
    setup.relay(move |message: &Message| {
        match message.name.as_str() {
            "Ready" => cancel.cancel(),
            "Cancel" if message.towards == Towards::Source => seen.store(true, Ordering::Relaxed),
            _ => {}
        }
        Fate::Pass
    });
    // The last step before *Commit* takes until the cancellation has arrived.
    setup.source_journal.before(move |record| {
        if record.stage == SourceStage::Committed {
            while !cancel_seen.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            source_cancel.cancel();
        }
        Ok(())
    });
    let done = setup.run();
    // *Commit* is sent nevertheless, and the destination, which has requested the cancellation,
    // obeys it.
    check_outcomes(&done, "crossing", MOVED, MOVED);
}
