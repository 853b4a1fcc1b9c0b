//! Pages that devices write without the dirty log seeing it arrive as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hikkoshi_engine::{GuestError, Mode};
use hikkoshi_pages::RamLayout;

use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::Setup;

/// Large enough for several batches in the first round.
fn large() -> RamLayout {
    layout(&[(40 * MIB, SMALL), (12 * MIB, SMALL)])
}

const DEVICE_PAGES: u64 = 300;

#[test]
fn a_page_is_copied_after_its_device_write_has_landed() {
    for (mode, links) in [
        (Mode::Precopy, 1),
        (Mode::Hybrid, 1),
        (Mode::Precopy, 3),
        (Mode::Hybrid, 3),
    ] {
        let mut setup = Setup::with_direct_io(mode, &large(), DEVICE_PAGES);
        setup.options.links = links;
        let done = setup.run();
        let drains = done.source_calls.count("drain");
        let (source, destination) = done.moved(true);
        // One at the start and one at the end; in each round one for each batch of 8 MiB, and not
        // for each of the 26 chunks of 2 MiB.
        let most = 2 + 8 * source.rounds as usize;
        assert!(
            (2..=most).contains(&drains),
            "{mode:?}: {drains} drains, at most {most}"
        );
        let reported = source.drains.unwrap();
        assert_eq!(reported.count, drains as u64);
        assert!(reported.max_ms > 0.0 && reported.total_ms >= reported.max_ms);
        assert_eq!(destination.drains, None);
    }
}

#[test]
fn post_copy_needs_no_drain() {
    let done = Setup::with_direct_io(Mode::Postcopy, &large(), DEVICE_PAGES).run();
    assert_eq!(done.source_calls.count("drain"), 0);
    let (source, _) = done.moved(true);
    assert_eq!(source.drains, None);
}

#[test]
fn a_guest_without_such_devices_is_never_drained() {
    let done = Setup::new(Mode::Hybrid).run();
    assert_eq!(done.source_calls.count("drain"), 0);
    done.moved(true);
}

/// Checks that the tests above detect the error.
#[test]
fn without_draining_pages_are_stale() {
    for mode in [Mode::Precopy, Mode::Hybrid] {
        let mut setup = Setup::with_direct_io(mode, &large(), DEVICE_PAGES);
        setup.options.drain = false;
        // The guest itself would detect the error.
        setup.destination.checks = false;
        let done = setup.run();
        assert!(done.source.is_ok() && done.destination.is_ok());
        done.machine
            .stop(Side::Destination, Duration::from_secs(20));
        let wrong = done.machine.wrong_pages(Side::Destination);
        assert_eq!(wrong.len() as u64, DEVICE_PAGES, "{mode:?}: {wrong:?}");
        assert!(done.notices.all().contains("not drained"));
    }
}

/// The first drain is at the start, the second one has no batch before it, and
/// during the third one the workers are sending.
#[test]
fn a_drain_that_fails_leaves_the_guest_at_the_source() {
    for failing in [1, 2, 3] {
        let setup = Setup::with_direct_io(Mode::Precopy, &large(), DEVICE_PAGES);
        let drains = Arc::new(AtomicU32::new(0));
        setup.source.script.at("drain", move || {
            if drains.fetch_add(1, Ordering::Relaxed) + 1 == failing {
                return Err(GuestError::new("the disk does not answer"));
            }
            Ok(())
        });
        let (source, _) = setup.run().at_source();
        assert_eq!(source, "the disk does not answer");
    }
}

#[test]
fn a_move_can_be_cancelled_during_a_drain() {
    let setup = Setup::with_direct_io(Mode::Hybrid, &large(), DEVICE_PAGES);
    let cancel = setup.source_cancel.clone();
    setup.source.script.at("drain", move || {
        cancel.cancel();
        Ok(())
    });
    let (source, _) = setup.run().at_source();
    assert_eq!(source, "cancelled");
}
