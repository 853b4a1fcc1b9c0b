//! Read-ahead: predicts which pages the guest will request next.
//!
//! Several processors (or several threads of the guest on one) each read a different
//! range, and their faults arrive interleaved. So the last few requested positions
//! are kept as *streams*, and a request belongs to the stream that it continues:
//!
//! * It is inside a stream's window or right at its end: the stream is sequential,
//!   forwards or backwards, and its window doubles.
//! * It is a little further away: the stream skips, and its window halves.
//! * It continues no stream: a new stream begins, with a window on either side. If a
//!   stream is replaced before any request continued it, it was a random access, and
//!   the first window of new streams halves, down to nothing. A stream that turns out
//!   to be sequential restores it.
//!
//! A request for a page that is already in flight counts as well.
//!
//! Huge pages count as one: nothing is read ahead around a single request, one
//! huge page on a sequential stream.
//!
//! Nothing here is shared or blocks; it belongs to the urgent thread.

use hikkoshi_pages::{Page, PageRange};

use crate::source::options::ReadAhead;

/// The number of streams. (A loom model explores every order in which two threads
/// may access them.)
pub(crate) const STREAMS: usize = if cfg!(loom) { 2 } else { 16 };

/// The first window on either side, in pages, as in the published design.
const FIRST: u64 = 8;

/// The largest window, in pages: 1 MiB.
const MAX_WINDOW: u64 = 256;

/// How far from a window's end a request may be and still continue it, at least.
const REACH: u64 = 8;

/// The position of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestPosition {
    /// The pages of a host page at the destination.
    pub(crate) unit: u64,
    /// The RAM block: a stream does not cross into the next one.
    pub(crate) block: PageRange,
}

/// What to send after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advice {
    /// The number of the stream, below [`STREAMS`]. This replaces the earlier advice
    /// for that stream.
    pub(crate) stream: usize,
    /// The pages after the request; the nearest first.
    pub(crate) onwards: PageRange,
    /// The pages before the request; the nearest first.
    pub(crate) before: PageRange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heading {
    Unknown,
    Onwards,
    Back,
}

/// A sequence of requests that the guest may continue.
#[derive(Debug, Clone, Copy)]
struct Stream {
    heading: Heading,
    /// The last request.
    requested: PageRange,
    /// The last request and the pages advised around it.
    covered: PageRange,
    window: u64,
    /// The number of its last request.
    used: u64,
}

/// How a request continues a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A request that was made before: another processor waits for the page.
    Again,
    /// It is inside the window, or right at its end.
    Next(Heading),
    /// It is a little further away.
    Skip(Heading),
}

impl Stream {
    /// How `range` continues this stream, and from what distance; `None` if it does
    /// not.
    fn step(&self, range: PageRange, unit: u64) -> Option<(Step, u64)> {
        let (start, end) = (range.start().index(), range.end().index());
        let (first, last) = (self.requested.start().index(), self.requested.end().index());
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

    /// Advances to `range`. Returns whether that determined the stream's heading.
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
        self.requested = range;
        was == Heading::Unknown && self.heading != Heading::Unknown
    }

    /// What to read ahead around the last request.
    fn advise(&mut self, sides: Heading, block: PageRange) -> (PageRange, PageRange) {
        let (start, end) = (self.requested.start(), self.requested.end());
        let mut onwards = PageRange::new(end, end.saturating_add(self.window));
        let mut before = PageRange::new(back(start, self.window), start);
        match sides {
            Heading::Unknown => {}
            // Advised pages that have not been requested yet are still advised.
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

/// `pages`, rounded down to whole host pages.
fn whole(pages: u64, unit: u64) -> u64 {
    pages / unit * unit
}

/// The window of a stream that has just turned out to be sequential.
fn first(unit: u64) -> u64 {
    FIRST.max(unit)
}

fn grown(window: u64, unit: u64) -> u64 {
    whole((window * 2).min(MAX_WINDOW), unit).max(first(unit))
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

    /// Handles a request for `range`: whole host pages, not empty, inside `position`.
    /// Returns what to read ahead now, if that is new.
    pub(crate) fn requested(
        &mut self,
        range: PageRange,
        position: RequestPosition,
    ) -> Option<Advice> {
        if self.policy == ReadAhead::Off || range.is_empty() {
            return None;
        }
        self.now += 1;
        let unit = position.unit.max(1);
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
                stream.window = whole(u64::from(pages).min(MAX_WINDOW), unit);
                Heading::Unknown
            }
            _ => stream.heading,
        };
        let (onwards, before) = stream.advise(sides, position.block);
        Some(Advice {
            stream: number,
            onwards,
            before,
        })
    }

    /// Starts a new stream at `range`. It replaces the least recently used one.
    fn begin(&mut self, range: PageRange, unit: u64) -> usize {
        let oldest = |stream: &Option<Stream>| stream.as_ref().map(|stream| stream.used);
        let number = (0..STREAMS)
            .min_by_key(|&number| self.streams.get(number).map(oldest))
            .unwrap_or(0);
        if let Some(slot) = self.streams.get_mut(number) {
            let window = if unit == 1 { self.fresh } else { 0 };
            let replaced = slot.replace(Stream {
                heading: Heading::Unknown,
                requested: range,
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
