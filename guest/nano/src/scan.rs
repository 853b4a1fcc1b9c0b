//! The `scan` workload: on command, every worker reads its pages once, from start to end, and
//! checks every byte.

use crate::findings;
use crate::memory::Part;
use crate::worker::{Touch, Work, scan_has_started};
use hikkoshi_checked_pages::page::{self, PageKind};
use hikkoshi_checked_pages::random::Random;

/// A worker's pages, and the position of its scan.
#[derive(Debug)]
pub struct Scan {
    part: Part,
    next: usize,
}

impl Scan {
    /// Fills every page.
    pub fn new(part: Part) -> Self {
        let mut scan = Self { part, next: 0 };
        for index in 0..scan.part.len() {
            scan.write(index);
        }
        scan
    }

    fn write(&mut self, index: usize) {
        let number = self.part.number(index);
        page::write(self.part.page(index), number, 0, PageKind::Filled);
    }

    fn check(&mut self, index: usize) {
        let number = self.part.number(index);
        if let Err(bad) = page::check(self.part.page(index), number, 0, PageKind::Filled) {
            findings::bad_page(&bad, self.part.address(index));
            // So that one bad page is one finding.
            self.write(index);
        }
    }
}

impl Work for Scan {
    fn is_due(&self) -> bool {
        self.next < self.part.len() && scan_has_started()
    }

    fn access(&mut self, _: &mut Random) -> Touch {
        let index = self.next;
        self.next += 1;
        let touch = Touch::read(&self.part.page(index)[0]);
        self.check(index);
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
}
