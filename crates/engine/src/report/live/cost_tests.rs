//! What an observer costs, measured: for docs/status.md.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hikkoshi_pages::{Page, PageBitmap, PageRange};

use super::{Cell, MemoryMap, MissingRanges};
use crate::report::{RequestLatencies, RequestTimeline};

/// 1 TiB.
const PAGES: u64 = 1 << 28;

/// Every eighth run of 8 pages: 4 million runs.
const RUN: u64 = 8;
const EVERY: u64 = 64;

#[derive(Debug)]
struct Missing(PageBitmap);

impl MissingRanges for Missing {
    fn each_missing(&self, each: &mut dyn FnMut(PageRange)) {
        self.0.runs(self.0.all()).for_each(each);
    }
}

/// The median of some runs of `measured`, for one of its `times`.
fn median(times: u32, mut measured: impl FnMut()) -> Duration {
    let mut all: Vec<Duration> = (0..9)
        .map(|_| {
            let begun = Instant::now();
            measured();
            begun.elapsed() / times
        })
        .collect();
    all.sort();
    all[4]
}

#[test]
#[ignore = "a measurement; make bench-status runs it"]
#[allow(clippy::print_stdout)]
fn what_counting_and_reading_cost() {
    const TIMES: u32 = 1_000_000;
    let map = MemoryMap::new(PAGES);
    for (what, cell, pages) in [
        ("an urgent page", Cell::Urgent, 1),
        ("a run of 256 pages", Cell::Background, 256),
    ] {
        let mut at = 0;
        let took = median(TIMES, || {
            for _ in 0..TIMES {
                at = (at + 7919 * 256) % (PAGES - 256);
                map.add(black_box(cell), PageRange::from_len(Page::new(at), pages));
            }
        });
        println!("counting {what}: {took:?}");
    }
    let latencies = RequestLatencies::default();
    let took = median(TIMES, || {
        for ns in 0..u64::from(TIMES) {
            latencies.record(black_box(&RequestTimeline {
                fault_read: 0,
                request_sent: 1_000,
                page_received: 15_000,
                installed: 20_000 + ns,
            }));
        }
    });
    println!("counting the latency of a request: {took:?}");
    let missing = PageBitmap::empty(PAGES);
    for at in (0..PAGES).step_by(usize::try_from(EVERY).unwrap()) {
        missing.set_range(PageRange::from_len(Page::new(at), RUN));
    }
    let missing = Missing(missing);
    let took = median(1, || map.set_missing(&missing));
    println!("finding the missing pages of 1 TiB, 4 million runs, once: {took:?}");
    let took = median(1, || {
        for cell in 0..map.cells() {
            black_box(map.cell(cell));
        }
    });
    println!("reading all cells of 1 TiB: {took:?}");
    let owed: u64 = (0..map.cells()).map(|cell| map.cell(cell).missing).sum();
    assert_eq!(owed, PAGES / EVERY * RUN);
}
