//! The `verify` workload: whole pages, every byte checked at every access.
//!
//! An access checks the page against the expected generation and, unless it only reads, writes the
//! next one. As in the Linux test guest, some pages are all zero in every other generation, and
//! some are written once and then only read.

use crate::findings;
use crate::memory::Part;
use crate::options::Options;
use crate::page_order::PageOrder;
use crate::worker::{Touch, Work};
use hikkoshi_checked_pages::page::{self, PageKind, WORDS};
use hikkoshi_checked_pages::random::Random;

/// One of this many accesses goes to a page that is never written again.
const CLEAN_EVERY: usize = 16;

/// A worker's pages and their expected content.
#[derive(Debug)]
pub struct Verify {
    part: Part,
    page_order: PageOrder,
    /// Number of pages that are written repeatedly; the others follow.
    written: usize,
    /// From here to `written`, pages are sometimes zero.
    zero_from: usize,
    write_percent: u64,
    newest: u32,
}

impl Verify {
    /// Writes the first generation of every page.
    pub fn new(part: Part, options: &Options) -> Self {
        let count = part.len();
        let written = count - count * options.clean_percent / 100;
        let mut verify = Self {
            zero_from: written - (count * options.zero_percent / 100).min(written),
            part,
            page_order: PageOrder::new(options.pattern),
            written,
            write_percent: options.write_percent,
            newest: 0,
        };
        for index in 0..count {
            verify.write(index);
        }
        verify
    }

    /// The page of the next access, and whether it may be written.
    fn choose(&mut self, random: &mut Random) -> (usize, bool) {
        let clean = self.part.len() - self.written;
        if clean > 0 && random.below(CLEAN_EVERY) == 0 {
            return (self.written + random.below(clean), false);
        }
        let index = self.page_order.next(random, self.written);
        let write = self.write_percent == 100 || random.percent(self.write_percent);
        (index, write)
    }

    fn kind(&self, index: usize) -> PageKind {
        if (self.zero_from..self.written).contains(&index) {
            PageKind::SometimesZero
        } else {
            PageKind::Filled
        }
    }

    /// Writes the expected generation.
    fn write(&mut self, index: usize) {
        let (expected, kind) = (self.part.expected(index), self.kind(index));
        let number = self.part.number(index);
        page::write(self.part.page(index), number, expected, kind);
        self.newest = self.newest.max(expected);
    }

    /// Checks a page; reports and corrects a bad one, so that it is reported once.
    fn check(&mut self, index: usize) {
        let (expected, kind) = (self.part.expected(index), self.kind(index));
        let number = self.part.number(index);
        if let Err(bad) = page::check(self.part.page(index), number, expected, kind) {
            findings::bad_page(&bad, self.part.address(index));
            self.write(index);
        }
    }
}

impl Work for Verify {
    fn access(&mut self, random: &mut Random) -> Touch {
        let (index, write) = self.choose(random);
        // Any word of the page: late or torn data need not be at its start.
        let word = random.below(WORDS);
        let touch = Touch::read(&self.part.page(index)[word]);
        self.check(index);
        if write {
            self.part.expect_next(index);
            self.write(index);
        }
        touch
    }

    fn sweep(&mut self) {
        for index in 0..self.part.len() {
            self.check(index);
        }
    }

    fn pages(&self) -> usize {
        self.part.len()
    }

    fn generation(&self) -> u32 {
        self.newest
    }
}
