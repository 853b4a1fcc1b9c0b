//! The log taken in a number of ranges, for measurements.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{LogRanges, Mode};

use crate::memory::{MIB, SMALL, layout};
use crate::run::Setup;

fn ranges(number: u32) -> Option<LogRanges> {
    NonZero::new(number).map(LogRanges::Number)
}

/// A guest of 3 MiB: two ranges by default.
fn setup(mode: Mode, direct_io: bool, ranges: Option<LogRanges>) -> Setup {
    let layout = layout(&[(MIB, SMALL), (2 * MIB, SMALL)]);
    let mut setup = if direct_io {
        Setup::with_direct_io(mode, &layout, 100)
    } else {
        Setup::with(mode, &layout, &layout, true)
    };
    setup.options.precopy_rounds = 3;
    setup.options.log_ranges = ranges;
    setup
}

/// Also with several links, which then send the pages of one range together.
#[test]
fn each_round_takes_so_many_ranges() {
    for (number, takes) in [(1, 1), (4, 4), (1000, 768)] {
        for (direct_io, links) in [(false, 1), (false, 3), (true, 2)] {
            let mut setup = setup(Mode::Hybrid, direct_io, ranges(number));
            setup.options.links = links;
            let done = setup.run();
            // The last one passes over all memory before the pause.
            let all = done.source_calls.count("take");
            assert_eq!(
                all,
                3 * takes + 1,
                "{number} ranges, direct I/O: {direct_io}"
            );
            done.moved(true);
        }
    }
}

/// The guest writes before a page is looked up, and so between the take of a range and the sending
/// of its last pages: the more ranges, the fewer pages are stale.
#[test]
fn stale_pages_are_counted() {
    for direct_io in [false, true] {
        let stale = |ranges| {
            let setup = setup(Mode::Hybrid, direct_io, ranges);
            let machine = Arc::clone(&setup.machine);
            setup.source.script.at("count", move || {
                machine.work(5);
                Ok(())
            });
            let (source, destination) = setup.run().moved(true);
            assert_eq!(destination.stale_pages, None);
            source.stale_pages
        };
        let whole = stale(ranges(1)).unwrap();
        let finest = stale(ranges(64)).unwrap();
        assert!(whole > 0, "direct I/O: {direct_io}");
        assert!(
            finest < whole / 2,
            "{finest} of {whole}, direct I/O: {direct_io}"
        );
        assert!(stale(Some(LogRanges::Default)).is_some());
    }
}

/// Without the option no page is looked up again.
#[test]
fn stale_pages_are_not_counted_by_default() {
    let done = setup(Mode::Hybrid, false, None).run();
    assert_eq!(done.source_calls.count("count"), 0);
    let (source, _) = done.moved(true);
    assert_eq!(source.stale_pages, None);
}

/// The log of a range is taken when the pages of the one before have been sent.
#[test]
fn ranges_are_taken_one_after_another() {
    for direct_io in [false, true] {
        let mut setup = setup(Mode::Precopy, direct_io, ranges(4));
        setup.options.links = 1;
        let sending = Arc::new(AtomicBool::new(false));
        let overlaps = Arc::new(AtomicU32::new(0));
        let now = Arc::clone(&sending);
        setup.source.script.at("count", move || {
            now.store(true, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(5));
            now.store(false, Ordering::Relaxed);
            Ok(())
        });
        let overlapping = Arc::clone(&overlaps);
        setup.source.script.at("take", move || {
            overlapping.fetch_add(sending.load(Ordering::Relaxed).into(), Ordering::Relaxed);
            Ok(())
        });
        setup.run().moved(true);
        let overlaps = overlaps.load(Ordering::Relaxed);
        assert_eq!(overlaps, 0, "direct I/O: {direct_io}");
    }
}
