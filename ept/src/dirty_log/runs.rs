//! Coalescing dirty pages into maximal runs.

use crate::address::{Gfn, GfnRange};
use crate::bitmap::WORD;

/// Coalesces the bits of ascending words into maximal runs.
pub(super) struct Runs<'a> {
    run: GfnRange,
    pages: u64,
    note: &'a mut dyn FnMut(GfnRange),
}

impl<'a> Runs<'a> {
    pub(super) fn new(note: &'a mut dyn FnMut(GfnRange)) -> Self {
        Self {
            run: GfnRange::EMPTY,
            pages: 0,
            note,
        }
    }

    pub(super) fn add(&mut self, word: usize, mut bits: u64) {
        let first = word as u64 * WORD;
        while bits != 0 {
            let low = u64::from(bits.trailing_zeros());
            let count = u64::from((bits >> low).trailing_ones());
            self.add_run(GfnRange::from_len(Gfn::new(first + low), count));
            bits &= u64::MAX
                .checked_shl(u32::try_from(low + count).unwrap_or(64))
                .unwrap_or(0);
        }
    }

    fn add_run(&mut self, run: GfnRange) {
        self.pages += run.len();
        if self.run.end() == run.start() && !self.run.is_empty() {
            self.run = self.run.hull(run);
        } else {
            self.flush();
            self.run = run;
        }
    }

    fn flush(&mut self) {
        if !self.run.is_empty() {
            (self.note)(self.run);
        }
    }

    /// Reports the last run; returns the number of pages in all runs.
    pub(super) fn end(mut self) -> u64 {
        self.flush();
        self.pages
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn runs_continue_across_words() {
        let mut found = Vec::new();
        let mut note = |run: GfnRange| found.push((run.start().index(), run.end().index()));
        let mut runs = Runs::new(&mut note);
        runs.add(0, 1 << 63 | 0b110);
        runs.add(1, u64::MAX);
        runs.add(2, 1);
        runs.add(4, 1);
        assert_eq!(runs.end(), 2 + 1 + 64 + 1 + 1);
        assert_eq!(found, [(1, 3), (63, 129), (256, 257)]);
    }
}
