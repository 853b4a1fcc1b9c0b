//! Background pages on several links at once: every page arrives with the last content, whichever
//! link carried it.

use std::sync::atomic::{AtomicU32, Ordering};

use hikkoshi_engine::Mode;
use hikkoshi_wire::{Frame, Role};

use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::Setup;
use hikkoshi_lab::relay::{Fate, Message};

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

#[test]
fn each_mode_on_one_two_and_four_links() {
    let layout = layout(&[(9 * MIB, SMALL), (7 * SMALL, SMALL), (6 * MIB, SMALL)]);
    for mode in MODES {
        for links in [1, 2, 4] {
            let mut setup = Setup::with(mode, &layout, &layout, true);
            setup.options.links = links;
            let (source, destination) = setup.run().moved(true);
            assert_eq!(source.pages.urgent, destination.pages.urgent, "{mode:?}");
            assert_eq!(source.pages.background, destination.pages.background);
            assert_eq!(source.pages.precopy, destination.pages.precopy);
            assert_eq!(source.bytes.precopy, destination.bytes.precopy);
            assert_eq!(source.bytes.background, destination.bytes.background);
            assert_eq!(source.bytes.urgent, destination.bytes.urgent);
        }
    }
}

#[test]
fn huge_pages_on_several_links() {
    let Some(_pages) = HugePages::reserve(14) else {
        return;
    };
    // A huge page begins in the middle of a worker's chunk.
    let huge = layout(&[(3 * SMALL, SMALL), (6 * HUGE, HUGE), (MIB, SMALL)]);
    let small = layout(&[(3 * SMALL, SMALL), (6 * HUGE, SMALL), (MIB, SMALL)]);
    for mode in MODES {
        for source in [&small, &huge] {
            let mut setup = Setup::with(mode, source, &huge, true);
            setup.options.links = 3;
            setup.run().moved(true);
        }
    }
}

/// The guest writes while workers send, for many rounds: copies of a page from several rounds
/// travel on several links, and the last one must be kept.
#[test]
fn many_rounds_on_four_links_while_the_guest_writes() {
    let layout = layout(&[(12 * MIB, SMALL)]);
    for _ in 0..3 {
        let mut setup = Setup::with(Mode::Precopy, &layout, &layout, true);
        setup.options.links = 4;
        setup.options.max_downtime = std::time::Duration::ZERO;
        setup.options.max_rounds = 25;
        setup.options.when_stalled = hikkoshi_engine::WhenStalled::Switch;
        setup.write_in_each_round();
        let (source, _) = setup.run().moved(true);
        assert_eq!(source.rounds, 25);
    }
}

#[test]
fn a_link_of_several_that_breaks() {
    for nth in [0, 3] {
        let layout = layout(&[(9 * MIB, SMALL)]);
        let mut setup = Setup::with(Mode::Precopy, &layout, &layout, true);
        setup.options.links = 3;
        let seen = AtomicU32::new(0);
        setup.relay(move |message: &Message| {
            let background = matches!(message.role, Role::Background { .. });
            let page = matches!(message.frame, Frame::Pages { .. } | Frame::Zeros { .. });
            // Whichever of them it is on.
            if background && page && seen.fetch_add(1, Ordering::Relaxed) == nth {
                return Fate::CutLink;
            }
            Fate::Pass
        });
        let (source, destination) = setup.run().at_source();
        assert!(!source.is_empty() && !destination.is_empty());
    }
}
