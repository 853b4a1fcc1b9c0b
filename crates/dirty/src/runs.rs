//! Coalescing reported ranges into maximal runs.

use std::fmt;

use hikkoshi_pages::{PageBitmap, PageRange};

/// Passes ranges on, and joins adjacent ones. The ranges must be in ascending order.
pub struct RunCoalescer<'a> {
    current: PageRange,
    to: &'a mut dyn FnMut(PageRange),
}

impl fmt::Debug for RunCoalescer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCoalescer")
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl<'a> RunCoalescer<'a> {
    /// Passes them to `to`.
    pub fn new(to: &'a mut dyn FnMut(PageRange)) -> Self {
        Self {
            current: PageRange::EMPTY,
            to,
        }
    }

    /// Adds a range, which is after all earlier ones.
    pub fn push(&mut self, range: PageRange) {
        if range.is_empty() {
            return;
        }
        if !self.current.is_empty() && self.current.end() == range.start() {
            self.current = PageRange::new(self.current.start(), range.end());
        } else {
            self.flush();
            self.current = range;
        }
    }

    fn flush(&mut self) {
        let current = std::mem::replace(&mut self.current, PageRange::EMPTY);
        if !current.is_empty() {
            (self.to)(current);
        }
    }
}

/// Claims all pages of `range` that are set in `pending`, and reports them as maximal runs.
pub fn take_pending(pending: &PageBitmap, range: PageRange, dirty: &mut dyn FnMut(PageRange)) {
    let mut runs = RunCoalescer::new(dirty);
    let mut rest = range;
    while let Some(run) = pending.claim_run(rest, u64::MAX) {
        runs.push(run);
        rest = PageRange::new(run.end(), rest.end());
    }
}

/// Everything that was taken from the log must reach the caller, even after an error.
impl Drop for RunCoalescer<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(Page::new(start), Page::new(end))
    }

    #[test]
    fn adjacent_ranges_are_joined_and_the_last_one_is_reported() {
        let mut seen = Vec::new();
        let mut note = |range| seen.push(range);
        let mut runs = RunCoalescer::new(&mut note);
        for part in [
            range(1, 3),
            range(3, 4),
            PageRange::EMPTY,
            range(4, 9),
            range(10, 11),
            range(11, 12),
        ] {
            runs.push(part);
        }
        drop(runs);
        assert_eq!(seen, [range(1, 9), range(10, 12)]);
    }
}
