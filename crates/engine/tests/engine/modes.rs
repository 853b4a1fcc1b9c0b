//! Each mode moves a busy guest, with several memory layouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hikkoshi_engine::{Mode, WhenStalled};
use hikkoshi_pages::{PAGE_SIZE, RamLayout};

use crate::machine::{Side, stamp};
use crate::memory::{HUGE, HugePages, MIB, Memory, SMALL, layout};
use crate::run::Setup;
use crate::tls::invited;

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

fn several_blocks() -> RamLayout {
    layout(&[
        (5 * MIB, SMALL),
        (SMALL, SMALL),
        (11 * SMALL, SMALL),
        (4 * MIB, SMALL),
    ])
}

#[test]
fn a_busy_guest_in_several_blocks() {
    for mode in MODES {
        let layout = several_blocks();
        let setup = Setup::with(mode, &layout, &layout, true);
        let (source, destination) = setup.run().moved(true);
        assert_eq!((source.mode, destination.mode), (mode, mode));
        assert_eq!(source.postcopy, mode != Mode::Precopy);
        assert_eq!(destination.postcopy, source.postcopy);
        assert_eq!(source.rounds > 0, mode != Mode::Postcopy);
        assert_eq!(source.bytes.device_state, 1_200_000);
        assert_eq!(source.pages.guest, layout.pages());
        // Both sides count the same bytes.
        assert_eq!(source.pages.urgent, destination.pages.urgent, "{mode:?}");
        assert_eq!(source.pages.background, destination.pages.background);
        assert_eq!(source.bytes.urgent, destination.bytes.urgent);
        assert_eq!(source.bytes.background, destination.bytes.background);
        assert_eq!(source.pages.precopy, destination.pages.precopy);
        assert_eq!(source.bytes.precopy, destination.bytes.precopy);
        // Loading accesses pages with content: they were requested, unless the background links
        // were faster.
        assert_eq!(
            source.requests.request_latency_us.count,
            destination.requests.request_latency_us.count
        );
        let downtime = source.downtime_ms.unwrap();
        assert!(downtime > 0.0 && source.total_ms >= downtime);
        let likely = source.likely_downtime_ms.expect("the destination tells");
        assert!(likely > 0.0 && likely <= downtime, "{likely}");
        assert_eq!(destination.likely_downtime_ms, None);
    }
}

/// Private memory at either side or both. The destination's holds something before the guest
/// arrives.
#[test]
fn a_busy_guest_in_private_memory() {
    let layout = several_blocks();
    let kinds: [fn(&RamLayout) -> Memory; 2] = [Memory::private, Memory::new];
    for mode in MODES {
        for (from, to) in [(0, 0), (0, 1), (1, 0)] {
            let (source, destination) = (kinds[from](&layout), kinds[to](&layout));
            if from == 0 {
                // What a guest has not written holds zeros.
                for page in 0..layout.pages() {
                    source.store(page, &[0; PAGE_SIZE]);
                }
            }
            let setup = Setup::in_memory(mode, source, destination);
            let (source, destination) = setup.run().moved(true);
            assert_eq!(source.postcopy, mode != Mode::Precopy);
            assert_eq!(source.pages.precopy, destination.pages.precopy);
        }
    }
}

/// The destination's files have all of their pages, and something in them. Without post-copy they
/// keep the pages, and each is received where it belongs, with TLS and without.
#[test]
fn a_busy_guest_in_memory_that_the_destination_has_already() {
    let layout = several_blocks();
    for (mode, links, is_encrypted) in [
        (Mode::Precopy, 1, false),
        (Mode::Precopy, 3, false),
        (Mode::Precopy, 2, true),
        (Mode::Hybrid, 1, false),
        (Mode::Postcopy, 1, false),
    ] {
        let destination = Memory::populated(&layout);
        let held = destination.held_bytes();
        let mut setup = Setup::in_memory(mode, Memory::new(&layout), destination);
        setup.options.links = links;
        setup.tls = is_encrypted.then(invited);
        let machine = Arc::clone(&setup.machine);
        setup.run().moved(true);
        let holds = machine.memory(Side::Destination).held_bytes();
        match mode {
            Mode::Precopy => assert_eq!(holds, held, "links: {links}"),
            _ => assert!(holds < held, "{mode:?}: holes of the guest are holes there"),
        }
    }
}

/// Devices write to the guest's memory when their state is saved: to pages that were clean, and to
/// pages that the guest had written since the last round.
#[test]
fn what_saving_the_device_state_writes_arrives() {
    for mode in MODES {
        let setup = Setup::new(mode);
        let running = Arc::clone(&setup.machine);
        setup.source.script.at("pause", move || {
            running.work(200);
            Ok(())
        });
        let machine = Arc::clone(&setup.machine);
        setup
            .source
            .script
            .at("save_device_state half-way", move || {
                // Where the guest writes most, a few pages that it has left alone, and holes.
                let memory = machine.memory(Side::Source);
                for page in (0..100).chain(500..530).chain(600..603) {
                    memory.store(page, &stamp(page, 1_000_000 + page));
                    machine.written_by_device(page, 1_000_000 + page);
                }
                Ok(())
            });
        setup.run().moved(true);
    }
}

#[test]
fn a_paused_guest_stays_paused() {
    for mode in MODES {
        let layout = layout(&[(2 * MIB, SMALL)]);
        let done = Setup::with(mode, &layout, &layout, false).run();
        assert_eq!(done.machine.starts(Side::Destination), 0);
        let (source, destination) = done.moved(false);
        assert_eq!(source.downtime_ms, Some(0.0));
        assert_eq!(source.likely_downtime_ms, None);
        assert_eq!(destination.downtime_ms, Some(0.0));
    }
}

#[test]
fn huge_pages_at_the_destination() {
    let Some(_pages) = HugePages::reserve(4) else {
        return;
    };
    // A huge page does not begin on a multiple of its size in the page space.
    let source = layout(&[(3 * SMALL, SMALL), (3 * HUGE, SMALL)]);
    let destination = layout(&[(3 * SMALL, SMALL), (3 * HUGE, HUGE)]);
    for mode in MODES {
        Setup::with(mode, &source, &destination, true)
            .run()
            .moved(true);
    }
}

#[test]
fn huge_pages_at_both_sides() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let layout = layout(&[(2 * HUGE, HUGE), (MIB, SMALL), (HUGE, HUGE)]);
    for mode in MODES {
        Setup::with(mode, &layout, &layout, true).run().moved(true);
    }
}

#[test]
fn precopy_that_does_not_converge() {
    let stalled = |when_stalled| {
        let mut setup = Setup::new(Mode::Precopy);
        setup.options.max_downtime = Duration::ZERO;
        setup.options.max_rounds = 3;
        setup.options.when_stalled = when_stalled;
        setup.write_in_each_round();
        setup
    };
    let (source, _) = stalled(WhenStalled::Switch).run().moved(true);
    assert!(source.postcopy);
    assert_eq!(source.rounds, 3);

    let done = stalled(WhenStalled::Stop).run();
    let (source, destination) = done.at_source();
    assert!(
        source.starts_with("pre-copy does not converge: after 3 rounds "),
        "{source}"
    );
    assert!(source.contains(" MiB are still dirty"), "{source}");
    assert!(source.ends_with("), or use --mode hybrid"), "{source}");
    assert!(
        source.contains("allow more downtime (--max-downtime "),
        "{source}"
    );
    assert_eq!(
        destination,
        format!("the source ended the migration: {source}")
    );

    // The operator cancels it some rounds later.
    let setup = stalled(WhenStalled::Continue);
    let machine = Arc::clone(&setup.machine);
    let cancel = setup.source_cancel.clone();
    let takes = AtomicU32::new(0);
    setup.source.script.at("take", move || {
        machine.work(50);
        if takes.fetch_add(1, Ordering::Relaxed) == 40 {
            cancel.cancel();
        }
        Ok(())
    });
    let done = setup.run();
    let (source, destination) = done.at_source();
    assert_eq!(source, "cancelled");
    assert_eq!(destination, "cancelled at the source");
    let notices = done.notices.all();
    assert_eq!(notices.matches("does not converge").count(), 1, "{notices}");
}
