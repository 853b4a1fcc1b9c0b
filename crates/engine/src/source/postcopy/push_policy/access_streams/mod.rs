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

use crate::source::options::ReadAhead;

/// AccessStreams that are told apart. (A model looks at every order in which two
/// threads may go through them.)
pub(crate) const STREAMS: usize = if cfg!(loom) { 2 } else { 16 };

/// The first window on either side, in pages: as in the published design.
const FIRST: u64 = 8;

/// The largest window, in pages: 1 MiB.
const MOST: u64 = 256;

/// How far from a window's end a request may go on from it, at least.
const REACH: u64 = 8;

/// Where a request is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestPosition {
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
    fn advance(&mut self, step: Step, range: PageRange, unit: u64) -> bool {
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
pub(crate) struct AccessStreams {
    policy: ReadAhead,
    streams: [Option<Stream>; STREAMS],
    /// The window of a new stream.
    fresh: u64,
    /// Requests so far.
    now: u64,
}

impl AccessStreams {
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
    pub(crate) fn asked(&mut self, range: PageRange, place: RequestPosition) -> Option<Advice> {
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
            if stream.advance(step, range, unit) {
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
mod tests;
