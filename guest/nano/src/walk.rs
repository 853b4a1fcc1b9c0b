//! The `walk` workload: on command, every worker reads all pages of the region once, from start to
//! end, and checks every byte. So several tasks need a page that is on its way.

use crate::findings;
use crate::memory::{Part, Region};
use crate::worker::{Touch, Work, scan_has_started};
use hikkoshi_checked_pages::page::{self, PageKind};
use hikkoshi_checked_pages::random::Random;

/// The region, and the position of the worker's walk.
#[derive(Debug)]
pub struct Walk {
    region: Region,
    next: usize,
}

impl Walk {
    /// Fills the pages of a part. Nobody writes to them afterwards.
    pub fn new(mut part: Part, pages: usize) -> Self {
        for index in 0..part.len() {
            let number = part.number(index);
            page::write(part.page(index), number, 0, PageKind::Filled);
        }
        Self {
            // SAFETY: pages are read when the workers have filled them, and never written again.
            region: unsafe { Region::new(pages) },
            next: 0,
        }
    }

    fn check(&self, number: usize) {
        let page = self.region.page(number);
        if let Err(bad) = page::check(page, number, 0, PageKind::Filled) {
            findings::bad_page(&bad, self.region.address(number));
        }
    }
}

impl Work for Walk {
    fn is_due(&self) -> bool {
        self.next < self.region.len() && scan_has_started()
    }

    fn access(&mut self, _: &mut Random) -> Touch {
        let number = self.next;
        self.next += 1;
        let touch = Touch::read(&self.region.page(number)[0]);
        self.check(number);
        touch
    }

    fn sweep(&mut self) {
        for number in 0..self.region.len() {
            self.check(number);
        }
    }

    fn pages(&self) -> usize {
        self.region.len()
    }
}
