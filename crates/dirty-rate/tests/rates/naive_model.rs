//! The recorder beside a model that keeps the set of every interval.

use std::collections::BTreeSet;
use std::time::Duration;

use hikkoshi_dirty_rate::{Recorder, window_lengths};
use hikkoshi_pages::{Page, PageRange};
use proptest::prelude::*;

use super::{equal, layout};

const INTERVAL: Duration = Duration::from_millis(100);
const BLOCKS: [u64; 2] = [700, 40];

/// What an interval reports: runs of pages, some of which overlap.
fn interval() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0_u64..740, 1_u64..60), 0..12)
}

/// The sizes of the unions of all windows of `length` adjacent sets.
fn unions(sets: &[BTreeSet<u64>], length: usize) -> Vec<usize> {
    let union = |window: &[BTreeSet<u64>]| window.iter().flatten().collect::<BTreeSet<_>>().len();
    sets.windows(length).map(union).collect()
}

proptest! {
    #[test]
    fn windows_have_as_many_pages_as_the_unions_of_their_sets(
        intervals in prop::collection::vec(interval(), 1..30),
        requested in 1_u32..40,
    ) {
        let requested = requested.max(u32::try_from(intervals.len()).unwrap());
        let layout = layout(&BLOCKS);
        let mut recorder = Recorder::new(&layout, INTERVAL, requested, 0);
        let mut sets: Vec<BTreeSet<u64>> = Vec::new();
        for interval in &intervals {
            recorder.begin_interval();
            let mut set = BTreeSet::new();
            for (start, pages) in interval {
                let run = PageRange::from_len(Page::new(*start), *pages);
                set.extend(run.intersect(layout.all()).iter().map(Page::index));
                recorder.dirty(run);
            }
            prop_assert_eq!(recorder.reported(), set.len() as u64);
            recorder.end_interval(INTERVAL);
            sets.push(set);
        }
        let found = recorder.finish();
        let number = u32::try_from(sets.len()).unwrap();
        let mut lengths = window_lengths(INTERVAL, requested);
        lengths.retain(|length| *length < number);
        lengths.push(number);
        prop_assert_eq!(
            found.total.windows.iter().map(|window| window.intervals).collect::<Vec<_>>(),
            lengths
        );
        for (first, pages, rates) in [
            (0, 740, &found.total),
            (0, 700, &found.blocks[0].rates),
            (700, 40, &found.blocks[1].rates),
        ] {
            let of_part: Vec<BTreeSet<u64>> = sets
                .iter()
                .map(|set| set.range(first..first + pages).copied().collect())
                .collect();
            for window in &rates.windows {
                let unions = unions(&of_part, usize::try_from(window.intervals).unwrap());
                let sum: usize = unions.iter().sum();
                prop_assert!(equal(window.mean, sum as f64 / unions.len() as f64));
                prop_assert!(equal(window.max, *unions.iter().max().unwrap() as f64));
                prop_assert_eq!(usize::try_from(window.windows).unwrap(), unions.len());
                prop_assert_eq!(window.mean_length, INTERVAL * window.intervals);
            }
            let all: usize = of_part.iter().map(BTreeSet::len).sum();
            let seconds = sets.len() as f64 * 0.1;
            prop_assert!(equal(rates.pages_per_second.mean, all as f64 / seconds));
            let most = of_part.iter().map(BTreeSet::len).max().unwrap();
            prop_assert!(equal(rates.pages_per_second.max, most as f64 / 0.1));
        }
        let of_ranges: f64 = found.ranges.iter().map(|range| range.different).sum();
        prop_assert!(equal(of_ranges, found.total.windows.last().unwrap().mean));
    }

    #[test]
    fn a_sample_counts_only_its_pages_and_its_size(
        intervals in prop::collection::vec(interval(), 2..12),
        seed: u64,
        raised in 0_usize..12,
    ) {
        let number = u32::try_from(intervals.len()).unwrap();
        let layout = layout(&BLOCKS);
        let mut recorder = Recorder::new(&layout, INTERVAL, number, seed);
        let mut sets: Vec<BTreeSet<u64>> = Vec::new();
        let mut expected = Vec::new();
        for (now, interval) in intervals.iter().enumerate() {
            if now == raised {
                recorder.set_level(1);
            }
            let sample = recorder.sample();
            recorder.begin_interval();
            let mut set = BTreeSet::new();
            for (start, pages) in interval {
                let run = PageRange::from_len(Page::new(*start), *pages);
                for part in &sample {
                    set.extend(run.intersect(*part).iter().map(Page::index));
                    recorder.dirty(run.intersect(*part));
                }
            }
            recorder.end_interval(INTERVAL);
            sets.push(set);
            // The whole so far, of the pages that are in the sample now.
            let all: BTreeSet<u64> = sets.iter().flatten().copied().collect();
            expected = [(0, 700), (700, 740)]
                .into_iter()
                .map(|(first, end)| {
                    let pages = || sample.iter().flat_map(|part| part.iter()).map(Page::index);
                    let of_block = |page: &u64| (first..end).contains(page);
                    let sampled = pages().filter(of_block).count() as f64;
                    let found = pages().filter(of_block).filter(|page| all.contains(page)).count();
                    (sampled, found as f64 * ((end - first) as f64 / sampled))
                })
                .collect::<Vec<_>>();
        }
        let found = recorder.finish();
        for (block, (sampled, pages)) in found.blocks.iter().zip(expected) {
            prop_assert!(equal(block.rates.measured_pages as f64, sampled));
            let whole = block.rates.windows.last().unwrap();
            prop_assert_eq!(whole.intervals, number);
            prop_assert!(equal(whole.mean, pages), "{:?} is not {}", whole, pages);
        }
    }
}
