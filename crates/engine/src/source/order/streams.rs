//! Read-ahead: what the guest is likely to ask for next.
//!
//! Several processors (or several threads of the guest that take turns on one)
//! each read a stretch of their own, and their faults arrive interleaved. So
//! the last few places that were asked for are remembered as *streams*, and a
//! request belongs to the stream that it goes on from:
//!
//! * It goes on from a window's end or from inside it: the stream is
//!   sequential, onwards or backwards, and its window doubles.
//! * It goes on a little further away: the stream skips, and its window halves.
//! * It goes on from none: a new stream, with a window on either side as large
//!   as has paid lately. A stream that is forgotten before anything went on from
//!   it was a random access: the first window of the next ones halves, down to
//!   nothing. One that turns out to be sequential brings it back.
//!
//! A request for a page that is on its way already is as good a sign as any.
//!
//! Huge pages count as one: nothing is read ahead around a single request, one
//! huge page on a sequential stream.
//!
//! Nothing here is shared or blocks; it belongs to the urgent thread.

use hikkoshi_pages::{Page, PageRange};

use crate::source::ReadAhead;

/// Streams that are told apart.
pub(crate) const STREAMS: usize = 16;

/// The first window on either side, in pages: as in the published design.
const FIRST: u64 = 8;

/// The largest window, in pages: 1 MiB.
const MOST: u64 = 256;

/// How far from a window's end a request may go on from it, at least.
const REACH: u64 = 8;

/// Where a request is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The pages of a host page at the destination.
    pub(crate) unit: u64,
    /// The RAM block: guests do not go on from one into the next.
    pub(crate) block: PageRange,
}

/// What is worth sending after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Which stream it belongs to, below [`STREAMS`]. It replaces what was
    /// advised for that one before.
    pub(crate) stream: usize,
    /// Behind the request; the nearest pages first.
    pub(crate) onwards: PageRange,
    /// Before the request; the nearest pages first.
    pub(crate) before: PageRange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heading {
    Unknown,
    Onwards,
    Back,
}

/// A place that the guest has asked for, and may go on from.
#[derive(Debug, Clone, Copy)]
struct Stream {
    heading: Heading,
    /// The last request.
    asked: PageRange,
    /// The last request with what was advised around it.
    covered: PageRange,
    window: u64,
    /// When it was last asked for something.
    used: u64,
}

/// How a request goes on from a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is the same request once more: another processor waits, too.
    Again,
    /// From inside the window, or right at its end.
    Next(Heading),
    /// From a little further away.
    Skip(Heading),
}

impl Stream {
    /// How `range` goes on from this one, and from how far away; `None` if it
    /// does not.
    fn step(&self, range: PageRange, unit: u64) -> Option<(Step, u64)> {
        let (start, end) = (range.start().index(), range.end().index());
        let (first, last) = (self.asked.start().index(), self.asked.end().index());
        let reach = self.window.max(REACH).max(unit);
        if start < last && first < end {
            return Some((Step::Again, 0));
        }
        let (distance, beyond, heading) = if start >= last {
            let beyond = start.saturating_sub(self.covered.end().index());
            (start - last, beyond, Heading::Onwards)
        } else {
            let beyond = self.covered.start().index().saturating_sub(end);
            (first - end, beyond, Heading::Back)
        };
        match beyond {
            0 => Some((Step::Next(heading), distance)),
            _ if beyond <= reach => Some((Step::Skip(heading), distance)),
            _ => None,
        }
    }

    /// Moves on to `range`; whether that settled where the stream is heading.
    fn go_on(&mut self, step: Step, range: PageRange, unit: u64) -> bool {
        let was = self.heading;
        match step {
            Step::Again => return false,
            Step::Next(heading) => {
                let turned = was != Heading::Unknown && was != heading;
                self.window = if turned {
                    first(unit)
                } else {
                    grown(self.window, unit)
                };
                self.heading = heading;
            }
            Step::Skip(heading) => {
                self.window = whole(self.window / 2, unit);
                if was != heading {
                    self.heading = Heading::Unknown;
                }
            }
        }
        self.asked = range;
        was == Heading::Unknown && self.heading != Heading::Unknown
    }

    /// What to read ahead around the last request.
    fn advise(&mut self, sides: Heading, block: PageRange) -> (PageRange, PageRange) {
        let (start, end) = (self.asked.start(), self.asked.end());
        let mut onwards = PageRange::new(end, end.saturating_add(self.window));
        let mut before = PageRange::new(back(start, self.window), start);
        match sides {
            Heading::Unknown => {}
            // What was advised and has not been asked for yet is still right.
            Heading::Onwards => {
                onwards = PageRange::new(end, onwards.end().max(self.covered.end()));
                before = PageRange::EMPTY;
            }
            Heading::Back => {
                let from = before.start().min(self.covered.start());
                before = PageRange::new(from, start);
                onwards = PageRange::EMPTY;
            }
        }
        let (onwards, before) = (onwards.intersect(block), before.intersect(block));
        let from = if before.is_empty() {
            start
        } else {
            before.start()
        };
        let to = if onwards.is_empty() {
            end
        } else {
            onwards.end()
        };
        self.covered = PageRange::new(from, to);
        (onwards, before)
    }
}

fn back(page: Page, pages: u64) -> Page {
    Page::new(page.index().saturating_sub(pages))
}

/// As many pages as whole host pages have.
fn whole(pages: u64, unit: u64) -> u64 {
    pages / unit * unit
}

/// The window of a stream that has just turned out to be sequential.
fn first(unit: u64) -> u64 {
    FIRST.max(unit)
}

fn grown(window: u64, unit: u64) -> u64 {
    whole((window * 2).min(MOST), unit).max(first(unit))
}

/// All streams, and the policy.
#[derive(Debug)]
pub(crate) struct Streams {
    policy: ReadAhead,
    streams: [Option<Stream>; STREAMS],
    /// The window of a new stream.
    fresh: u64,
    /// Requests so far.
    now: u64,
}

impl Streams {
    pub(crate) fn new(policy: ReadAhead) -> Self {
        Self {
            policy,
            streams: [None; STREAMS],
            fresh: FIRST,
            now: 0,
        }
    }

    /// The guest has asked for `range`: whole host pages, not empty, inside
    /// `place`. What to read ahead now, if it is anything new.
    pub(crate) fn asked(&mut self, range: PageRange, place: Place) -> Option<Advice> {
        if self.policy == ReadAhead::Off || range.is_empty() {
            return None;
        }
        self.now += 1;
        let unit = place.unit.max(1);
        let nearest = self
            .streams
            .iter()
            .enumerate()
            .filter_map(|(number, stream)| {
                let (step, distance) = stream.as_ref()?.step(range, unit)?;
                Some((distance, number, step))
            })
            .min_by_key(|&(distance, number, _)| (distance, number));
        let (number, step) = match nearest {
            Some((_, number, step)) => (number, Some(step)),
            None => (self.begin(range, unit), None),
        };
        let stream = self.streams.get_mut(number)?.as_mut()?;
        stream.used = self.now;
        if let Some(step) = step {
            if step == Step::Again {
                return None;
            }
            if stream.go_on(step, range, unit) {
                self.fresh = FIRST;
            }
        }
        let sides = match self.policy {
            ReadAhead::Fixed(pages) => {
                stream.window = whole(u64::from(pages).min(MOST), unit);
                Heading::Unknown
            }
            _ => stream.heading,
        };
        let (onwards, before) = stream.advise(sides, place.block);
        Some(Advice {
            stream: number,
            onwards,
            before,
        })
    }

    /// A new stream at `range`, in place of the one that was asked for
    /// something the longest time ago.
    fn begin(&mut self, range: PageRange, unit: u64) -> usize {
        let oldest = |stream: &Option<Stream>| stream.as_ref().map(|stream| stream.used);
        let number = (0..STREAMS)
            .min_by_key(|&number| self.streams.get(number).map(oldest))
            .unwrap_or(0);
        if let Some(place) = self.streams.get_mut(number) {
            let window = if unit == 1 { self.fresh } else { 0 };
            let replaced = place.replace(Stream {
                heading: Heading::Unknown,
                asked: range,
                covered: range,
                window,
                used: self.now,
            });
            if replaced.is_some_and(|stream| stream.heading == Heading::Unknown) {
                self.fresh /= 2;
            }
        }
        number
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: PageRange = PageRange::new(Page::new(100), Page::new(1_000_000));
    const SMALL: Place = Place {
        unit: 1,
        block: BLOCK,
    };

    fn one(page: u64) -> PageRange {
        PageRange::one(Page::new(page))
    }

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    fn adaptive() -> Streams {
        Streams::new(ReadAhead::Adaptive)
    }

    /// The guest reads on from `from`, and everything that is advised is there
    /// before it gets to it. Gives the windows.
    fn scan(streams: &mut Streams, from: u64, requests: usize) -> Vec<u64> {
        let mut page = from;
        (0..requests)
            .map(|_| {
                let advice = streams.asked(one(page), SMALL).unwrap();
                page = advice.onwards.end().index().max(page + 1);
                advice.onwards.len()
            })
            .collect()
    }

    #[test]
    fn begins_with_eight_on_either_side() {
        let advice = adaptive().asked(one(5000), SMALL).unwrap();
        assert_eq!(advice.onwards, range(5001, 5009));
        assert_eq!(advice.before, range(4992, 5000));
    }

    #[test]
    fn doubles_on_sequential_access_up_to_a_bound() {
        let windows = scan(&mut adaptive(), 5000, 9);
        assert_eq!(windows, [8, 16, 32, 64, 128, 256, 256, 256, 256]);
    }

    #[test]
    fn backwards_as_well() {
        let mut streams = adaptive();
        let mut page = 500_000;
        let mut windows = Vec::new();
        for _ in 0..7 {
            let advice = streams.asked(one(page), SMALL).unwrap();
            assert_eq!(advice.before.end(), Page::new(page));
            windows.push(advice.before.len());
            page = advice.before.start().index() - 1;
            if windows.len() > 1 {
                assert!(advice.onwards.is_empty());
            }
        }
        assert_eq!(windows, [8, 16, 32, 64, 128, 256, 256]);
    }

    #[test]
    fn four_interleaved_scans_are_four_streams() {
        let mut streams = adaptive();
        let mut pages = [1000, 50_000, 100_000, 150_000];
        let mut last = [0; 4];
        for _ in 0..8 {
            for (page, last) in pages.iter_mut().zip(&mut last) {
                let advice = streams.asked(one(*page), SMALL).unwrap();
                *page = advice.onwards.end().index();
                *last = advice.onwards.len();
            }
        }
        assert_eq!(last, [MOST; 4]);
    }

    #[test]
    fn random_access_brings_it_down_to_nothing_and_a_scan_up_again() {
        let mut streams = adaptive();
        let advised = |streams: &mut Streams, page| {
            let advice = streams.asked(one(page), SMALL).unwrap();
            advice.onwards.len() + advice.before.len()
        };
        // Far from each other: no two are neighbours.
        for nth in 0..40u64 {
            advised(&mut streams, 1000 + nth * 7919 % 40 * 1000);
        }
        assert_eq!(advised(&mut streams, 900_000), 0);
        // The second page of a scan is enough to be recognised.
        let windows = scan(&mut streams, 600_000, 6);
        assert_eq!(windows, [0, 8, 16, 32, 64, 128]);
        assert!(advised(&mut streams, 700_000) > 0);
    }

    #[test]
    fn a_stream_that_skips_reads_less_ahead() {
        let mut streams = adaptive();
        scan(&mut streams, 5000, 5);
        let page = 5000 + 9 + 17 + 33 + 65 + 129;
        let before = streams.asked(one(page), SMALL).unwrap().onwards;
        let advice = streams
            .asked(one(before.end().index() + 30), SMALL)
            .unwrap();
        assert_eq!(advice.onwards.len(), before.len() / 2);
    }

    #[test]
    fn a_page_on_its_way_moves_the_window_and_the_same_one_does_not() {
        let mut streams = adaptive();
        streams.asked(one(5000), SMALL).unwrap();
        // Inside what was advised: it has not arrived yet.
        let advice = streams.asked(one(5003), SMALL).unwrap();
        assert_eq!(advice.onwards, range(5004, 5020));
        assert_eq!(streams.asked(one(5003), SMALL), None);
        // What was advised before is not forgotten when the new window is
        // shorter than what is left of it.
        let advice = streams.asked(one(5004), SMALL).unwrap();
        assert_eq!(advice.onwards, range(5005, 5037));
    }

    #[test]
    fn fixed_and_off() {
        let mut streams = Streams::new(ReadAhead::Fixed(8));
        for page in [5000, 5009, 5018, 9000, 200_000] {
            let advice = streams.asked(one(page), SMALL).unwrap();
            assert_eq!(advice.onwards, range(page + 1, page + 9));
            assert_eq!(advice.before, range(page - 8, page));
        }
        assert_eq!(Streams::new(ReadAhead::Off).asked(one(5000), SMALL), None);
    }

    #[test]
    fn a_huge_page_is_read_ahead_only_in_sequence() {
        let place = Place {
            unit: 512,
            block: range(512, 512 * 100),
        };
        let huge = |nth: u64| range(512 * nth, 512 * (nth + 1));
        let mut streams = adaptive();
        let advice = streams.asked(huge(7), place).unwrap();
        assert!(advice.onwards.is_empty() && advice.before.is_empty());
        let advice = streams.asked(huge(8), place).unwrap();
        assert_eq!(advice.onwards, huge(9));
        assert!(advice.before.is_empty());
        let advice = streams.asked(huge(10), place).unwrap();
        assert_eq!(advice.onwards, huge(11));
    }

    proptest! {
        /// Whatever is asked for: what is advised is bounded, inside the block,
        /// beside the request, and belongs to a stream that there is.
        #[test]
        fn advice_is_within_bounds(
            requests in prop::collection::vec((0u64..2000, 1u64..20), 1..200),
            huge in any::<bool>(),
            policy in prop_oneof![
                Just(ReadAhead::Adaptive),
                (0u32..1000).prop_map(ReadAhead::Fixed),
            ],
        ) {
            let unit = if huge { 16 } else { 1 };
            let block = range(160, 1760);
            let mut streams = Streams::new(policy);
            for (start, len) in requests {
                let start = (start / unit * unit).clamp(160, 1759 / unit * unit);
                let asked = PageRange::from_len(Page::new(start), len * unit).intersect(block);
                let Some(advice) = streams.asked(asked, Place { unit, block }) else {
                    continue;
                };
                prop_assert!(advice.stream < STREAMS);
                for side in [advice.onwards, advice.before] {
                    prop_assert_eq!(side.intersect(block).len(), side.len());
                    prop_assert_eq!(side.len() % unit, 0);
                    prop_assert!(side.len() <= 2 * MOST, "{:?}", side);
                }
                prop_assert!(advice.onwards.is_empty() || advice.onwards.start() == asked.end());
                prop_assert!(advice.before.is_empty() || advice.before.end() == asked.start());
            }
        }

        /// However the faults of several scans interleave, each gets a window
        /// that saves requests.
        #[test]
        fn interleaved_scans_save_requests(turns in prop::collection::vec(0usize..4, 400)) {
            let mut streams = adaptive();
            let mut scans = [(1000u64, 0u64), (201_000, 0), (401_000, 0), (601_000, 0)];
            let begins = scans.map(|(page, _)| page);
            for turn in turns {
                let (page, requests) = &mut scans[turn];
                let advice = streams.asked(one(*page), SMALL).unwrap();
                *page = advice.onwards.end().index().max(*page + 1);
                *requests += 1;
            }
            for ((page, requests), begin) in scans.iter().zip(begins) {
                // 8, 16, … 128, then 256 with each request.
                let expected = (requests.saturating_sub(6)) * MOST;
                prop_assert!(page - begin >= expected, "{} pages by {}", page - begin, requests);
            }
        }
    }
}
