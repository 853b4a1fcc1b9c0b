//! Divides memory into ranges that are written at about the same rate.

use std::time::Duration;

use hikkoshi_pages::PageRange;

use crate::estimate::float;
use crate::measurement::RangeRate;
use crate::tracked_block::Reports;

/// The largest number of ranges of a block.
const MAX_RANGES: usize = 64;

/// Two parts of a range become ranges of their own if their rates differ by this factor.
const DIFFERENT: f64 = 1.5;

/// A hot range is written so much more than the mean of all memory.
const HOT: f64 = 4.0;

/// A hot range has at least this part of all that was dirtied.
const HOT_SHARE: f64 = 0.01;

/// The largest number of parts of a block that are looked at: for a larger block, each is several
/// adjacent ones.
const MAX_PARTS: u64 = 1 << 16;

/// Pages of a block, and what was reported of those that were measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) pages: PageRange,
    pub(crate) measured: u64,
    pub(crate) reports: Reports,
}

impl Part {
    /// Adds the part that follows.
    fn join(&mut self, next: Self) {
        self.pages = PageRange::new(self.pages.start(), next.pages.end());
        self.measured += next.measured;
        self.reports.reported += next.reports.reported;
        self.reports.different += next.reports.different;
    }
}

/// Joins so many adjacent ones of the `count` parts that there are at most [`MAX_PARTS`].
pub(crate) fn coarsen(
    mut parts: impl Iterator<Item = Part>,
    count: u64,
) -> impl Iterator<Item = Part> {
    let joined = count.div_ceil(MAX_PARTS);
    std::iter::from_fn(move || {
        let mut part = parts.next()?;
        for _ in 1..joined {
            let Some(next) = parts.next() else { break };
            part.join(next);
        }
        Some(part)
    })
}

/// Adjacent parts with the same rate, extrapolated.
#[derive(Debug, Clone, Copy)]
struct Run {
    pages: PageRange,
    reported: f64,
    different: f64,
}

impl Run {
    fn density(&self) -> f64 {
        self.reported / float(self.pages.len()).max(1.0)
    }
}

/// The ranges of all blocks. `blocks`: the parts of each block, in order.
pub(crate) fn ranges<I>(blocks: impl Iterator<Item = I>, elapsed: Duration) -> Vec<RangeRate>
where
    I: Iterator<Item = Part>,
{
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let mut found = Vec::new();
    for (block, parts) in blocks.enumerate() {
        let merged = divide(&runs(parts));
        found.extend(merged.into_iter().map(|run| (block, run)));
    }
    let reported: f64 = found.iter().map(|(_, run)| run.reported).sum();
    let pages: u64 = found.iter().map(|(_, run)| run.pages.len()).sum();
    let mean = reported / float(pages).max(1.0);
    let rate = |(block, run): (usize, Run)| RangeRate {
        block,
        pages: run.pages,
        pages_per_second: run.reported / seconds,
        different: run.different,
        hot: run.reported > 0.0
            && run.density() >= HOT * mean
            && run.reported >= HOT_SHARE * reported,
    };
    found.into_iter().map(rate).collect()
}

/// Joins adjacent parts with the same number of reports: memory that is not written is one run.
fn runs(parts: impl Iterator<Item = Part>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for part in parts {
        let scale = match part.measured {
            0 => 0.0,
            measured => float(part.pages.len()) / float(measured),
        };
        let run = Run {
            pages: part.pages,
            reported: float(part.reports.reported) * scale,
            different: float(part.reports.different) * scale,
        };
        match runs.last_mut() {
            Some(last) if (last.density() - run.density()).abs() < 1e-9 => join(last, run),
            _ => runs.push(run),
        }
    }
    runs
}

/// Divides the runs into at most [`MAX_RANGES`] ranges, as a regression tree does: again and again,
/// the range whose two parts differ most is divided where they differ most.
fn divide(runs: &[Run]) -> Vec<Run> {
    let mut ranges: Vec<(std::ops::Range<usize>, Option<Split>)> = vec![];
    if !runs.is_empty() {
        ranges.push((0..runs.len(), best_split(runs)));
    }
    while ranges.len() < MAX_RANGES {
        let gain = |split: &Option<Split>| split.as_ref().map_or(0.0, |split| split.gain);
        let best = ranges.iter().enumerate();
        let best = best.max_by(|(_, (_, a)), (_, (_, b))| gain(a).total_cmp(&gain(b)));
        let Some((number, (range, Some(split)))) = best else {
            break;
        };
        let middle = range.start + split.at;
        let (left, right) = (range.start..middle, middle..range.end);
        let (of_left, of_right) = (
            best_split(&runs[left.clone()]),
            best_split(&runs[right.clone()]),
        );
        ranges[number] = (left, of_left);
        ranges.insert(number + 1, (right, of_right));
    }
    ranges
        .into_iter()
        .map(|(range, _)| sum(&runs[range]))
        .collect()
}

/// Where to divide a range.
#[derive(Debug, Clone, Copy)]
struct Split {
    /// The number of runs before it.
    at: usize,
    /// By how much the sum of the squared deviations from the mean becomes smaller.
    gain: f64,
}

fn best_split(runs: &[Run]) -> Option<Split> {
    let all = sum(runs);
    let square = |reported: f64, pages: u64| reported * reported / float(pages).max(1.0);
    let mut left = Run {
        pages: PageRange::from_len(all.pages.start(), 0),
        reported: 0.0,
        different: 0.0,
    };
    let mut best: Option<Split> = None;
    for (number, run) in runs.iter().enumerate().take(runs.len().saturating_sub(1)) {
        join(&mut left, *run);
        let right = Run {
            pages: PageRange::new(left.pages.end(), all.pages.end()),
            reported: all.reported - left.reported,
            different: 0.0,
        };
        let gain = square(left.reported, left.pages.len())
            + square(right.reported, right.pages.len())
            - square(all.reported, all.pages.len());
        let (low, high) = (
            left.density().min(right.density()),
            left.density().max(right.density()),
        );
        // Not where both are as good as never written.
        let differ = high > low.max(1e-9) * DIFFERENT;
        if differ && best.is_none_or(|best| gain > best.gain) {
            best = Some(Split {
                at: number + 1,
                gain,
            });
        }
    }
    best.filter(|best| best.gain > 0.0)
}

fn sum(runs: &[Run]) -> Run {
    let mut runs = runs.iter().copied();
    let first = runs.next().unwrap_or(Run {
        pages: PageRange::EMPTY,
        reported: 0.0,
        different: 0.0,
    });
    runs.fold(first, |mut all, run| {
        join(&mut all, run);
        all
    })
}

/// Adds the run that follows.
fn join(run: &mut Run, next: Run) {
    run.pages = PageRange::new(run.pages.start(), next.pages.end());
    run.reported += next.reported;
    run.different += next.different;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test's failure is the message
mod tests {
    use super::*;
    use hikkoshi_pages::Page;
    use proptest::prelude::*;

    /// Parts of 16 pages with these numbers of reports.
    fn parts(reported: &[u64]) -> Vec<Part> {
        let part = |(number, reported): (u64, &u64)| Part {
            pages: PageRange::from_len(Page::new(number * 16), 16),
            measured: 16,
            reports: Reports {
                reported: *reported,
                different: (*reported).min(16),
            },
        };
        (0..).zip(reported).map(part).collect()
    }

    fn found(reported: &[u64]) -> Vec<RangeRate> {
        ranges(
            [parts(reported).into_iter()].into_iter(),
            Duration::from_secs(1),
        )
    }

    #[test]
    fn a_hot_spot_in_the_middle_is_a_range_of_its_own() {
        let mut reported = [1_u64; 1000];
        reported[500..510].fill(160);
        let found = found(&reported);
        let hot: Vec<_> = found.iter().filter(|range| range.hot).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(hot.len(), 1);
        assert_eq!(hot[0].pages, PageRange::from_len(Page::new(8000), 160));
        assert!((hot[0].pages_per_second - 1600.0).abs() < 1e-6);
        assert!((hot[0].different - 160.0).abs() < 1e-6);
    }

    #[test]
    fn memory_that_is_written_evenly_or_never_is_one_range() {
        for reported in [[0_u64; 100], [7; 100]] {
            let found = found(&reported);
            assert_eq!(found.len(), 1);
            assert!(!found[0].hot);
        }
        assert!(found(&[]).is_empty());
    }

    #[test]
    fn a_large_block_has_larger_parts() {
        let all = parts(&[1; 10]);
        let joined: Vec<_> = coarsen(all.into_iter(), 4 * MAX_PARTS).collect();
        let pages: Vec<_> = joined.iter().map(|part| part.pages.len()).collect();
        assert_eq!(pages, [64, 64, 32]);
        assert_eq!(joined[2].reports.reported, 2);
        assert_eq!(joined[0].measured, 64);
    }

    proptest! {
        #[test]
        fn ranges_cover_their_blocks_and_lose_nothing(
            reported in prop::collection::vec(prop_oneof![Just(0_u64), 0_u64..100], 1..400)
        ) {
            let found = found(&reported);
            prop_assert!(found.len() <= MAX_RANGES);
            let mut next = Page::new(0);
            for range in &found {
                prop_assert_eq!(range.pages.start(), next);
                next = range.pages.end();
            }
            prop_assert_eq!(next.index(), reported.len() as u64 * 16);
            let rate: f64 = found.iter().map(|range| range.pages_per_second).sum();
            prop_assert!((rate - float(reported.iter().sum())).abs() < 1e-6);
        }
    }
}
