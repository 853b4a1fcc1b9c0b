//! Measuring a log whose reports are known.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use hikkoshi_dirty::{DirtyError, DirtyLog};
use hikkoshi_dirty_rate::{MeasureError, Options, PartialLog, measure};
use hikkoshi_linux::CancelFlag;
use hikkoshi_pages::{Page, PageRange};

use super::{equal, layout};

/// A guest that has written the same pages before each take of a page.
#[derive(Debug)]
struct Fake {
    dirty: BTreeSet<u64>,
    /// Ends the measurement at this number of takes of page 0.
    cancel_at: usize,
    cancel: CancelFlag,
    takes: Mutex<Vec<PageRange>>,
    tracked: Mutex<Vec<PageRange>>,
}

impl Fake {
    fn new(dirty: impl IntoIterator<Item = u64>) -> Self {
        Self {
            dirty: dirty.into_iter().collect(),
            cancel_at: usize::MAX,
            cancel: CancelFlag::new(),
            takes: Mutex::default(),
            tracked: Mutex::default(),
        }
    }
}

impl DirtyLog for Fake {
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        let mut takes = self.takes.lock().unwrap();
        takes.push(range);
        if takes.len() == self.cancel_at {
            self.cancel.cancel();
        }
        for page in self.dirty.range(range.start().index()..range.end().index()) {
            dirty(PageRange::one(Page::new(*page)));
        }
        Ok(())
    }

    fn peek(&self, _: PageRange, _: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        Err(DirtyError::Stopped)
    }

    fn stop(&self) -> Result<(), DirtyError> {
        Ok(())
    }
}

impl PartialLog for Fake {
    fn track(&self, range: PageRange) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.tracked.lock().unwrap().push(range);
        Ok(())
    }
}

fn options(intervals: u32, max_cost: f64) -> Options {
    let interval = Duration::from_millis(5);
    Options::new(interval * intervals, interval)
        .unwrap()
        .max_cost(max_cost)
}

#[test]
fn the_first_take_is_not_counted_and_every_other_is() {
    let log = Fake::new(100..300);
    let found = measure(&log, &layout(&[1000]), &options(4, 1.0), &log.cancel).unwrap();
    assert_eq!((found.intervals, found.cancelled), (4, false));
    assert_eq!(log.takes.lock().unwrap().len(), 5);
    assert_eq!(found.cost.faults, 800);
    for window in &found.total.windows {
        assert!(
            equal(window.mean, 200.0) && equal(window.max, 200.0),
            "{window:?}"
        );
    }
    let rate = found.total.pages_per_second.mean * found.elapsed.as_secs_f64();
    assert!(equal(rate, 800.0), "{rate}");
}

#[test]
fn a_cancelled_measurement_has_what_was_measured() {
    for takes in [1, 3] {
        let mut log = Fake::new([1, 2]);
        log.cancel_at = takes;
        let found = measure(&log, &layout(&[1000]), &options(1000, 1.0), &log.cancel).unwrap();
        assert!(found.cancelled);
        assert_eq!(found.intervals, u32::try_from(takes).unwrap() - 1);
        let whole = found.total.windows.last().map(|window| window.intervals);
        assert_eq!(whole, (takes > 1).then_some(found.intervals));
    }
}

/// Each page that is dirty costs [`FAULT_COST`](hikkoshi_dirty_rate::FAULT_COST): 60 ms for these,
/// in an interval of 5 ms.
#[test]
fn a_guest_that_writes_too_much_is_sampled() {
    let pages = 40_000;
    let log = Fake::new(0..pages);
    let found = measure(&log, &layout(&[pages]), &options(3, 0.02), &log.cancel).unwrap();
    let rates = &found.total;
    assert!(rates.measured_pages < pages / 4, "{rates:?}");
    assert_eq!(rates.pages, pages);
    // All of the sample is dirty, so all pages are.
    for window in &rates.windows {
        assert!(equal(window.mean, 40_000.0), "{window:?}");
    }
    // The rest was not even protected.
    let tracked = log.tracked.lock().unwrap();
    let tracked: u64 = tracked.iter().map(|range| range.len()).sum();
    assert!(tracked < pages / 4, "{tracked}");
}

#[test]
fn a_guest_that_does_not_write_is_measured_wholly() {
    let pages = 40_000;
    let log = Fake::new([]);
    let interval = Duration::from_millis(50);
    let options = Options::new(interval, interval).unwrap().max_cost(0.5);
    let found = measure(&log, &layout(&[pages]), &options, &log.cancel).unwrap();
    assert_eq!(found.total.measured_pages, pages);
    let takes = log.takes.lock().unwrap();
    let first: u64 = takes[0].len();
    assert!(first < pages, "the first sample is all memory");
}

#[test]
fn a_failed_take_is_an_error() {
    /// Nothing can be read.
    #[derive(Debug)]
    struct Ended;
    impl DirtyLog for Ended {
        fn take(&self, _: PageRange, _: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
            Err(DirtyError::ProcessGone { pid: 1 })
        }
        fn peek(&self, _: PageRange, _: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
            Err(DirtyError::Stopped)
        }
        fn stop(&self) -> Result<(), DirtyError> {
            Ok(())
        }
    }
    impl PartialLog for Ended {
        fn track(&self, _: PageRange) -> Result<(), Box<dyn Error + Send + Sync>> {
            Ok(())
        }
    }
    let found = measure(&Ended, &layout(&[10]), &options(1, 1.0), &CancelFlag::new());
    assert!(
        matches!(
            found,
            Err(MeasureError::Take(DirtyError::ProcessGone { .. }))
        ),
        "{found:?}"
    );
}
