//! The order of accesses to pages, as in the Linux test guest.

use hikkoshi_checked_pages::random::Random;

/// The order in which a worker accesses its pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Uniformly at random.
    Random,
    /// One after the other, then again from the start.
    Sequential,
    /// 90 % of the accesses go to 10 % of the pages.
    Hotspot,
}

/// Selects one page after the other.
#[derive(Debug)]
pub struct PageOrder {
    pattern: Pattern,
    next: usize,
}

impl PageOrder {
    /// Starts at the first page.
    pub fn new(pattern: Pattern) -> Self {
        Self { pattern, next: 0 }
    }

    /// The next of `pages` pages (at least one).
    pub fn next(&mut self, random: &mut Random, pages: usize) -> usize {
        match self.pattern {
            Pattern::Random => random.below(pages),
            Pattern::Sequential => {
                let page = if self.next < pages { self.next } else { 0 };
                self.next = page + 1;
                page
            }
            Pattern::Hotspot if random.percent(90) => random.below(pages.div_ceil(10)),
            Pattern::Hotspot => random.below(pages),
        }
    }
}
