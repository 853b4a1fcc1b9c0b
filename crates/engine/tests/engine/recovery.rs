//! Lost links and reconnecting, engines that resume a migration, and guest processes
//! that end during the handover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::report::{GuestAt, Outage, Phase};
use hikkoshi_engine::{Mode, RetryFor};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_wire::{Frame, Role, ToDestination};

use crate::machine::Side;
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::Setup;
use hikkoshi_lab::relay::{Fate, Message, Towards};

const LONG: Duration = Duration::from_secs(40);

/// Both engines reconnect, however often and wherever the links break.
#[test]
fn links_that_break_again_and_again() {
    for mode in [Mode::Postcopy, Mode::Hybrid] {
        let mut setup = Setup::new(mode);
        setup.retry_for(LONG);
        // On a busy machine the guest may not have written anything since it was copied, and then
        // almost nothing is sent after *Commit*.
        let machine = Arc::clone(&setup.machine);
        setup.source.script.at("pause", move || {
            machine.work(200);
            Ok(())
        });
        let (frames, broken) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
        let breaks = Arc::clone(&broken);
        setup.relay(move |message: &Message| {
            if message.name == "Commit" {
                frames.store(1, Ordering::Relaxed);
            }
            // After *Commit*, at every eleventh frame, alternately in each direction.
            let count = frames.load(Ordering::Relaxed);
            // (Two links may break at once.)
            if count == 0 || breaks.load(Ordering::Relaxed) >= 6 {
                return Fate::Pass;
            }
            frames.store(count + 1, Ordering::Relaxed);
            if count.is_multiple_of(11) {
                let nth = breaks.fetch_add(1, Ordering::Relaxed) as usize;
                frames.store(1, Ordering::Relaxed);
                return [Fate::CutBefore, Fate::CutInside, Fate::CutAfter][nth % 3];
            }
            Fate::Pass
        });
        let done = setup.run();
        assert!(broken.load(Ordering::Relaxed) > 0);
        let journals = (
            Arc::clone(&done.source_journal),
            Arc::clone(&done.destination_journal),
        );
        let notices = done.notices.all();
        done.moved(true);
        for part in ["nothing is lost. Reconnecting", "nothing is lost. Waiting"] {
            let notice = notices.lines().find(|notice| notice.contains(part));
            let notice = notice.unwrap_or_else(|| panic!("no {part:?} in {notices}"));
            assert!(notice.contains(": the connection is broken"), "{notice}");
        }
        assert_eq!(journals.0.last().unwrap().stage, SourceStage::Done);
        assert_eq!(journals.1.last().unwrap().stage, DestinationStage::Complete);
    }
}

/// Links that are lost before a page was sent on them use up the retry budget: both
/// sides end, and the migration can be resumed.
#[test]
fn reconnecting_stops_when_new_links_break_at_once() {
    let mut setup = Setup::new(Mode::Postcopy);
    setup.retry_for(Duration::from_secs(1));
    let committed = AtomicBool::new(false);
    setup.relay(move |message: &Message| {
        if message.name == "Commit" {
            committed.store(true, Ordering::Relaxed);
        }
        let page = matches!(message.frame, Frame::Pages { .. } | Frame::Zeros { .. });
        if page && committed.load(Ordering::Relaxed) {
            return Fate::CutBefore;
        }
        Fate::Pass
    });
    let done = setup.run();
    done.interrupted();
    done.resumed("after links that were lost at once");
}

/// The links break while the call that resumes the guest waits for a page: the engine
/// notices it, and does not wait for that call.
#[test]
fn links_that_break_while_the_guest_starts() {
    for retry_for in [Duration::ZERO, LONG] {
        let mut setup = Setup::new(Mode::Postcopy);
        setup.destination.looks = true;
        setup.retry_for(retry_for);
        let broken = AtomicU32::new(0);
        setup.relay(move |message: &Message| {
            let first = || broken.fetch_add(1, Ordering::Relaxed) == 0;
            if message.name == "Commit" && first() {
                return Fate::CutAfter;
            }
            Fate::Pass
        });
        let done = setup.run();
        if retry_for == LONG {
            done.moved(true);
            continue;
        }
        let (_, destination) = done.interrupted();
        assert!(destination.contains("connection"), "{destination}");
        assert_eq!(done.machine.starts(Side::Destination), 0);
        let record = done.destination_journal.last().unwrap();
        assert_eq!(record.stage, DestinationStage::Running);
        assert!(!record.started);
        done.resumed("with a page that is waited for");
    }
}

/// The destination's guest process ends between *Ready* and *Commit*: the destination
/// declines, and the source resumes the guest.
#[test]
fn a_destination_that_exits_before_commit() {
    for mode in [Mode::Precopy, Mode::Postcopy] {
        let mut setup = Setup::new(mode);
        let ended = Arc::clone(&setup.destination.ended);
        setup.relay(move |message: &Message| {
            if message.name == "Commit" {
                ended.store(true, Ordering::Relaxed);
            }
            Fate::Pass
        });
        let done = setup.run();
        let (source, _) = done.at_source();
        assert!(source.contains("never ran the guest"), "{source}");
        assert_eq!(done.commits, 0, "it was taken back");
        let record = done.destination_journal.last().unwrap();
        assert_eq!(record.stage, DestinationStage::Declined);
        assert!(done.source_journal.is_closed());
    }
}

/// The missing pages are found in huge pages as well, and pieces of some are requested
/// again.
#[test]
fn a_migration_with_huge_pages_can_be_resumed() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let source = layout(&[(8 * MIB, SMALL), (MIB, SMALL)]);
    let destination = layout(&[(8 * MIB, HUGE), (MIB, SMALL)]);
    for (mode, nth) in [
        (Mode::Postcopy, 3),
        (Mode::Postcopy, 200),
        (Mode::Hybrid, 40),
    ] {
        for retry_for in [Duration::ZERO, LONG] {
            let mut setup = Setup::with(mode, &source, &destination, true);
            setup.retry_for(retry_for);
            let pages = AtomicU32::new(0);
            setup.relay(move |message: &Message| {
                if message.name == "Commit" {
                    pages.store(1, Ordering::Relaxed);
                }
                let page = message.name == "Pages" && message.towards == Towards::Destination;
                if page && pages.load(Ordering::Relaxed) > 0 {
                    let count = pages.fetch_add(1, Ordering::Relaxed);
                    if count == nth {
                        return Fate::CutBefore;
                    }
                }
                Fate::Pass
            });
            let done = setup.run();
            if done.source.is_ok() {
                done.moved(true);
                continue;
            }
            let ((outcome, _), _) = done.errors();
            assert_ne!(outcome, Outcome::AtSource);
            done.resumed(&format!("{mode:?} {nth}"));
        }
    }
}

/// If a stage cannot be recorded, nothing that depends on it is done, and nothing is
/// lost.
#[test]
fn stages_that_cannot_be_recorded() {
    for stage in [DestinationStage::Ready, DestinationStage::Running] {
        let setup = Setup::new(Mode::Postcopy);
        let full = Arc::new(AtomicU32::new(1));
        let now = Arc::clone(&full);
        setup.destination_journal.before(move |record| {
            if record.stage == stage && now.load(Ordering::Relaxed) == 1 {
                return Err(std::io::Error::other("there is no room"));
            }
            Ok(())
        });
        let done = setup.run();
        full.store(0, Ordering::Relaxed);
        if stage == DestinationStage::Ready {
            let (source, destination) = done.at_source();
            let expected = "recording the migration's progress: there is no room";
            assert_eq!(destination, expected);
            assert_eq!(source, format!("the destination failed: {expected}"));
            continue;
        }
        done.interrupted();
        assert_eq!(done.machine.starts(Side::Destination), 0);
        done.resumed("unrecorded");
    }
}

/// The destination has declined, and the message is lost: the source receives it later
/// from the same engine, or from another one.
#[test]
fn a_declined_guest_stays_on_record_until_the_source_knows() {
    for retry_for in [LONG, Duration::ZERO] {
        let mut setup = Setup::new(Mode::Postcopy);
        setup.retry_for(retry_for);
        let ended = Arc::clone(&setup.destination.ended);
        let (declined, wheres) = (AtomicU32::new(0), AtomicU32::new(0));
        setup.relay(move |message: &Message| {
            if message.name == "Commit" {
                ended.store(true, Ordering::Relaxed);
            }
            let first = |count: &AtomicU32| count.fetch_add(1, Ordering::Relaxed) == 0;
            if (message.name == "Declined" && first(&declined))
                || (message.name == "ResumeReply" && first(&wheres))
            {
                return Fate::CutBefore;
            }
            Fate::Pass
        });
        let done = setup.run();
        let record = done.destination_journal.last().unwrap();
        assert_eq!(record.stage, DestinationStage::Declined);
        if retry_for == LONG {
            let (source, destination) = done.at_source();
            assert!(source.contains("never ran the guest"), "{source}");
            assert!(destination.contains("has ended"), "{destination}");
            assert!(done.source_journal.is_closed() && done.destination_journal.is_closed());
            continue;
        }
        let (source, destination) = done.errors();
        assert_eq!(source.0, Outcome::Paused, "{source:?}");
        assert_eq!(destination.0, Outcome::Declined, "{destination:?}");
        assert!(!done.source_journal.is_closed() && !done.destination_journal.is_closed());
        done.returned_to_source();
    }
}

/// *Ready* does not reach the source, which resumes its guest: the destination is notified
/// on another connection, and ends without leaving anything behind.
#[test]
fn a_lost_ready_message_leaves_the_guest_at_the_source() {
    let retry_for = [LONG.into(), RetryFor::BY_MODE];
    let fates = [Fate::CutBefore, Fate::Drop];
    for (mode, retry_for, fate) in [
        (Mode::Postcopy, retry_for[0], fates[0]),
        (Mode::Precopy, retry_for[1], fates[0]),
        (Mode::Hybrid, retry_for[0], fates[1]),
    ] {
        let mut setup = Setup::new(mode);
        setup.receive_options.retry_for = retry_for;
        if fate == Fate::Drop {
            // The links end by the deadline, which nothing before reaches.
            setup.options.peer_timeout = Duration::from_secs(5);
        }
        setup.relay(move |message: &Message| match message.name.as_str() {
            "Ready" => fate,
            _ => Fate::Pass,
        });
        let done = setup.run();
        let (_, destination) = done.at_source();
        let expected = "the source ended the migration: it keeps its guest";
        assert_eq!(destination, expected);
        let record = done.destination_journal.last().unwrap();
        assert_eq!(record.stage, DestinationStage::Declined);
        assert!(done.source_journal.is_closed() && done.destination_journal.is_closed());
        assert_eq!(done.destination_calls.count("release"), 1);
    }
}

/// After reconnecting, both sides count the pages of the whole post-copy, as before, not only those
/// that were missing then, and show the outage.
#[test]
fn both_sides_count_the_pages_of_the_whole_postcopy_after_links_were_lost() {
    // A paused guest requests no pages: all of them are background pages.
    let layout = layout(&[(3 * MIB, SMALL)]);
    let mut setup = Setup::with(Mode::Postcopy, &layout, &layout, false);
    setup.retry_for(LONG);
    let (pages, owed) = (AtomicU32::new(0), Arc::new(AtomicU64::new(0)));
    let missing = Arc::clone(&owed);
    setup.relay(move |message: &Message| {
        if let Some(ToDestination::OwedEnd { pages, .. }) = message.control {
            missing.store(pages, Ordering::Relaxed);
        }
        if !matches!(message.role, Role::Background { .. }) || message.name != "Pages" {
            return Fate::Pass;
        }
        // Background pages are sent only after the source knows that the guest runs there.
        let committed = pages.fetch_add(1, Ordering::Relaxed);
        if committed == 20 {
            return Fate::CutAfter;
        }
        Fate::Pass
    });
    let live = setup.live.clone();
    let done = setup.run();
    done.moved(false);
    let owed = owed.load(Ordering::Relaxed);
    assert!(owed > 0);
    for live in live {
        let live = live.get().unwrap();
        let last = live.snapshot().state;
        assert_eq!(last.phase, Phase::Postcopy);
        assert_eq!(last.done_pages, last.total_pages);
        assert!(last.total_pages > owed, "not only those after the outage");
        assert_eq!(last.missing_pages, Some(0));
        assert_eq!(last.guest_at, GuestAt::Destination);
        assert!(
            matches!(last.outages[..], [Outage { from_ms, before_ms: 0, to_ms: Some(to), until_ms: None }] if from_ms <= to && to <= last.at_ms),
            "{:?}",
            last.outages
        );
        let map = live.map();
        assert!((0..map.cells()).all(|cell| map.cell(cell).missing == 0));
    }
}

/// The final message never arrives, and no link breaks: a new connection resolves it.
#[test]
fn a_final_message_that_is_lost() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.retry_for(LONG);
    let completes = AtomicU32::new(0);
    setup.relay(move |message: &Message| {
        if message.name == "Complete" && completes.fetch_add(1, Ordering::Relaxed) == 0 {
            return Fate::Drop;
        }
        Fate::Pass
    });
    let done = setup.run();
    let journals = (
        Arc::clone(&done.source_journal),
        Arc::clone(&done.destination_journal),
    );
    done.moved(true);
    assert!(journals.0.is_closed() && journals.1.is_closed());
}

/// A cancellation after the handover is refused, and does not prevent reconnecting.
#[test]
fn a_refused_cancellation_does_not_prevent_reconnecting() {
    let mut setup = Setup::new(Mode::Postcopy);
    setup.retry_for(LONG);
    let cancels = [
        setup.source_cancel.clone(),
        setup.destination_cancel.clone(),
    ];
    let pages = AtomicU32::new(0);
    setup.relay(move |message: &Message| {
        // Background pages are sent only after the source knows that the guest runs there.
        let unasked = matches!(message.role, Role::Background { .. }) && message.name == "Pages";
        match unasked.then(|| pages.fetch_add(1, Ordering::Relaxed)) {
            Some(0) => cancels.iter().for_each(hikkoshi_engine::CancelFlag::cancel),
            Some(3) => {
                // Both were answered.
                while cancels
                    .iter()
                    .any(hikkoshi_engine::CancelFlag::is_cancelled)
                {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                return Fate::CutAfter;
            }
            _ => {}
        }
        Fate::Pass
    });
    let done = setup.run();
    let notices = done.notices.all();
    done.moved(true);
    assert!(
        notices.contains("not stopping until they are sent"),
        "{notices}"
    );
    assert!(
        notices.contains("not stopping before they have arrived"),
        "{notices}"
    );
}

/// The guest was resumed at the source by its owner: the engine sends no pages.
#[test]
fn a_source_guest_that_runs_after_the_handover_is_not_sent() {
    for (fate, outcome) in [
        (Fate::CutBefore, Outcome::Paused),
        (Fate::CutAfter, Outcome::AtDestination),
    ] {
        let mut setup = Setup::new(Mode::Postcopy);
        setup.relay(move |message: &Message| match message.name.as_str() {
            "GuestResumed" => fate,
            _ => Fate::Pass,
        });
        let done = setup.run();
        done.interrupted();
        let error = done.resume_is_refused_while_it_runs();
        assert_eq!(error.outcome, outcome);
        assert_eq!(
            Report::new(&error).to_string(),
            "check_paused does not work"
        );
        done.resumed("after the source paused its guest");
    }
}

/// The operator abandons the migration on one side, or on both.
#[test]
fn an_abandoned_migration_is_closed() {
    for (fate, stage) in [
        (Fate::CutBefore, DestinationStage::Ready),
        (Fate::CutAfter, DestinationStage::Running),
    ] {
        let mut setup = Setup::new(Mode::Postcopy);
        // It can be resumed as soon as its source is back.
        setup.destination.looks = true;
        setup.relay(move |message: &Message| {
            if message.name == "Commit" {
                return fate;
            }
            Fate::Pass
        });
        let done = setup.run();
        done.interrupted();
        let record = done.destination_journal.last().unwrap();
        assert_eq!(record.stage, stage);
        let calls = done.give_up_destination();
        let runs = stage == DestinationStage::Running;
        assert_eq!(calls.count("kill"), usize::from(runs));
        assert_eq!(done.destination_journal.is_closed(), runs);
        if !runs {
            // Its source may still come back.
            let record = done.destination_journal.last().unwrap();
            assert_eq!(record.stage, DestinationStage::Declined);
        }
        assert_eq!(done.machine.runs(), None);
        done.give_up_source();
        assert!(done.source_journal.is_closed());
        assert_eq!(done.machine.runs(), Some(Side::Source));
        done.machine.work(200);
        // It has not run at the destination.
        done.machine.check(Side::Source);
    }
}

/// If the guest cannot be resumed, its record remains.
#[test]
fn abandoning_can_be_retried() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.relay(|message: &Message| match message.name.as_str() {
        "Commit" => Fate::CutBefore,
        _ => Fate::Pass,
    });
    let done = setup.run();
    done.interrupted();
    let error = done.try_to_give_up_source(|script| script.fail("resume"));
    assert_eq!(error.unwrap_err().outcome, Outcome::Stopped);
    assert!(!done.source_journal.is_closed());
    assert_eq!(done.machine.runs(), None);
    let record = done.source_journal.last().unwrap();
    assert_eq!(record.stage, SourceStage::Owned);
    done.give_up_source();
    assert_eq!(done.machine.runs(), Some(Side::Source));
}
