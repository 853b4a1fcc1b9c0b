//! A migration that is changed while it runs. When that happens is tied to the calls of the log,
//! not to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{ControlRefused, LimitChange, Mode, SourceControl, WhenStalled};
use hikkoshi_pages::PAGE_SIZE;

use crate::machine::Side;
use crate::memory::{HUGE, HugePages, MIB, Memory, SMALL, layout};
use crate::run::Setup;

/// 4 ranges of 2 MiB: a round has 4 takes.
const LAYOUT: [(u64, u64); 1] = [(8 * MIB, SMALL)];

/// A guest that writes all the time, and would never converge.
fn endless(mode: Mode) -> Setup {
    let layout = layout(&LAYOUT);
    never_converges(Setup::with(mode, &layout, &layout, true))
}

fn never_converges(mut setup: Setup) -> Setup {
    setup.options.links = 1;
    setup.options.max_downtime = Duration::ZERO;
    setup.options.max_rounds = u32::MAX;
    setup.options.precopy_rounds = u32::MAX;
    setup
}

/// Calls `change` at the `nth` take of the log, from 0. The guest writes before each take while it
/// runs.
fn at_take(setup: &Setup, nth: u32, change: impl Fn(&SourceControl) + Send + Sync + 'static) {
    let takes = AtomicU32::new(0);
    let machine = Arc::clone(&setup.machine);
    let control = setup.source_control.clone();
    setup.source.script.at("take", move || {
        if machine.runs() == Some(Side::Source) {
            machine.work(50);
        }
        if takes.fetch_add(1, Ordering::Relaxed) == nth {
            change(&control);
        }
        Ok(())
    });
}

fn switch(control: &SourceControl) {
    control.switch().unwrap();
}

/// In the first round, at its beginning and in the middle, and in a later one: the pages that were
/// not sent follow in post-copy.
#[test]
fn pre_copy_is_ended_in_any_round() {
    for nth in [0, 2, 3, 9] {
        let setup = endless(Mode::Hybrid);
        at_take(&setup, nth, switch);
        let (source, destination) = setup.run().moved(true);
        assert!(source.postcopy && destination.postcopy, "take {nth}");
        assert_eq!(source.rounds, nth / 4 + 1, "take {nth}");
        let in_postcopy = source.pages.urgent + source.pages.background;
        assert!(in_postcopy > 0, "take {nth}: {:?}", source.pages);
        if nth == 0 {
            // Nothing but what was being sent when it was asked.
            assert!(source.pages.precopy <= 512, "{:?}", source.pages);
        }
    }
}

/// Pre-copy is ended where devices are drained between taking the log and copying: more was taken
/// than was sent.
#[test]
fn pre_copy_with_drains_is_ended() {
    for nth in [0, 5, 9] {
        let setup = Setup::with_direct_io(Mode::Hybrid, &layout(&LAYOUT), 100);
        let setup = never_converges(setup);
        at_take(&setup, nth, switch);
        let (source, _) = setup.run().moved(true);
        assert!(source.postcopy, "take {nth}");
    }
}

/// Memory of other kinds: private, and huge pages at the destination, of which a part was sent.
#[test]
fn pre_copy_into_other_memory_is_ended() {
    let layout_here = layout(&LAYOUT);
    for nth in [1, 6] {
        let (source, destination) = (Memory::private(&layout_here), Memory::new(&layout_here));
        // What a guest has not written holds zeros.
        for page in 0..layout_here.pages() {
            source.store(page, &[0; PAGE_SIZE]);
        }
        let setup = never_converges(Setup::in_memory(Mode::Hybrid, source, destination));
        at_take(&setup, nth, switch);
        assert!(setup.run().moved(true).0.postcopy);
    }
    let Some(_pages) = HugePages::reserve(4) else {
        return;
    };
    let source = layout(&[(3 * SMALL, SMALL), (3 * HUGE, SMALL)]);
    let destination = layout(&[(3 * SMALL, SMALL), (3 * HUGE, HUGE)]);
    for nth in [1, 6] {
        let setup = Setup::with(Mode::Hybrid, &source, &destination, true);
        let setup = never_converges(setup);
        at_take(&setup, nth, switch);
        assert!(setup.run().moved(true).0.postcopy);
    }
}

/// A pre-copy that may switch to post-copy has prepared for it.
#[test]
fn a_pre_copy_that_may_switch_is_ended() {
    let mut setup = endless(Mode::Precopy);
    setup.options.when_stalled = WhenStalled::Switch;
    at_take(&setup, 5, switch);
    let (source, _) = setup.run().moved(true);
    assert!(source.postcopy);
}

/// Pre-copy alone has no post-copy, and goes on as it would have.
#[test]
fn a_pre_copy_is_not_ended_without_post_copy() {
    let setup = endless(Mode::Precopy);
    let cancel = setup.source_cancel.clone();
    at_take(&setup, 5, move |control| {
        assert_eq!(control.switch(), Err(ControlRefused::NoPostcopy));
        cancel.cancel();
    });
    let done = setup.run();
    assert_eq!(done.at_source().0, "cancelled");
}

/// The guest may not be paused for any page, until it may be for a second.
#[test]
fn a_higher_downtime_lets_pre_copy_converge() {
    let setup = endless(Mode::Precopy);
    at_take(&setup, 9, |control| {
        let change = LimitChange {
            max_downtime: Some(Duration::from_secs(10)),
            ..LimitChange::default()
        };
        let before = control.change(change).unwrap();
        assert_eq!(before.max_downtime, Duration::ZERO);
        let limits = control.limits();
        assert_eq!(limits.max_downtime, Duration::from_secs(10));
    });
    let (source, _) = setup.run().moved(true);
    assert!(!source.postcopy);
    // It ends a round or a few after the change.
    assert!((4..20).contains(&source.rounds), "{} rounds", source.rounds);
}

/// The 3 MiB of the guest would take 36 days.
#[test]
fn a_limit_with_which_a_migration_would_take_weeks_is_refused() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.options.bandwidth = Some(1);
    let (cause, _) = setup.run().at_source();
    assert!(cause.contains("allow at least"), "{cause}");
    let setup = Setup::new(Mode::Precopy);
    at_take(&setup, 0, |control| {
        let limit = |limit| LimitChange {
            bandwidth: Some(Some(limit)),
            ..LimitChange::default()
        };
        let refused = control.change(limit(1)).unwrap_err();
        assert!(matches!(refused, ControlRefused::Bandwidth(_)), "{refused}");
        assert_eq!(control.limits().bandwidth, None);
        control.change(limit(1 << 30)).unwrap();
    });
    setup.run().moved(true);
}

/// With the first limit, the first MiB would take more than a day.
#[test]
fn a_higher_bandwidth_is_used_at_once() {
    let mut setup = Setup::new(Mode::Hybrid);
    setup.options.links = 1;
    setup.options.bandwidth = Some(10);
    // The thread that takes the log is the one that sends, and waits after it.
    let (taken, takes) = channel();
    at_take(&setup, 0, move |_| taken.send(()).unwrap());
    let control = setup.source_control.clone();
    let changed = thread::spawn(move || {
        takes.recv().unwrap();
        thread::sleep(Duration::from_millis(100));
        let change = LimitChange {
            bandwidth: Some(None),
            ..LimitChange::default()
        };
        assert_eq!(control.change(change).unwrap().bandwidth, Some(10));
    });
    let (source, _) = setup.run().moved(true);
    changed.join().unwrap();
    assert!(source.postcopy);
}

/// A request to cancel is accepted until the guest is handed over, and then it stays.
#[test]
fn a_migration_is_cancelled_before_it_is_handed_over() {
    let setup = endless(Mode::Hybrid);
    at_take(&setup, 5, |control| control.cancel().unwrap());
    assert_eq!(setup.run().at_source().0, "cancelled");
    let setup = Setup::new(Mode::Precopy);
    let control = setup.source_control.clone();
    setup.source.script.at("save_device_state", move || {
        control.cancel().unwrap();
        Ok(())
    });
    assert_eq!(setup.run().at_source().0, "cancelled");
}

/// From *commit* on, cancelling is refused, and the migration completes.
#[test]
fn a_migration_is_not_cancelled_after_it_was_handed_over() {
    for mode in [Mode::Precopy, Mode::Hybrid, Mode::Postcopy] {
        let setup = Setup::new(mode);
        let control = setup.source_control.clone();
        let refused = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&refused);
        let mut is_handed_over = false;
        setup.source_journal.before(move |record| {
            use hikkoshi_handover::SourceStage;
            let expected = match record.stage {
                SourceStage::Owned => return Ok(()),
                // Written once more when the destination has reported how long the guest took.
                SourceStage::HandedOver if std::mem::replace(&mut is_handed_over, true) => {
                    ControlRefused::HandedOver
                }
                SourceStage::Committed | SourceStage::HandedOver => ControlRefused::HandingOver,
                SourceStage::Done => ControlRefused::HandedOver,
            };
            assert_eq!(control.cancel(), Err(expected), "{record:?}");
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let control = setup.source_control.clone();
        setup.run().moved(true);
        assert!(refused.load(Ordering::Relaxed) >= 2, "{mode:?}");
        assert_eq!(control.cancel(), Err(ControlRefused::Ended));
        assert_eq!(control.switch(), Err(ControlRefused::Ended));
    }
}

/// A guest that its owner has paused stays paused.
#[test]
fn the_pre_copy_of_a_paused_guest_is_ended() {
    let layout = layout(&LAYOUT);
    let setup = never_converges(Setup::with(Mode::Hybrid, &layout, &layout, false));
    let takes = AtomicU32::new(0);
    let control = setup.source_control.clone();
    setup.source.script.at("take", move || {
        if takes.fetch_add(1, Ordering::Relaxed) == 2 {
            switch(&control);
        }
        Ok(())
    });
    let done = setup.run();
    assert_eq!(done.machine.starts(Side::Destination), 0);
    done.moved(false);
}
