//! The `dirty` workload: writes one word per page, as fast as possible.
//!
//! The word contains the page's number and how often it was written. Each access checks the number.
//! A sweep adds up the counts, and their sum must be the number of writes: a stale or missing page
//! changes it.

use crate::findings;
use crate::memory::Part;
use crate::options::Options;
use crate::page_order::PageOrder;
use crate::worker::{Touch, Work};
use hikkoshi_checked_pages::random::Random;

const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// A worker's pages, and their expected state.
#[derive(Debug)]
pub struct Dirty {
    part: Part,
    page_order: PageOrder,
    write_percent: u64,
    /// Writes since the counts were last corrected.
    writes: u64,
}

impl Dirty {
    /// Stores its number in every page.
    pub fn new(part: Part, options: &Options) -> Self {
        let mut dirty = Self {
            part,
            page_order: PageOrder::new(options.pattern),
            write_percent: options.write_percent,
            writes: 0,
        };
        for index in 0..dirty.part.len() {
            dirty.correct(index);
        }
        dirty
    }

    fn correct(&mut self, index: usize) {
        self.part.page(index)[0] = self.wanted(index);
    }

    fn wanted(&self, index: usize) -> u64 {
        (self.part.number(index) as u64) << COUNT_BITS
    }

    fn is_good(&self, index: usize, held: u64) -> bool {
        held & !COUNT_MASK == self.wanted(index)
    }

    fn report(&self, index: usize, held: u64) {
        let address = self.part.address(index);
        findings::report(format_args!(
            "page={} address={address:#x} physical={address:#x} fault={} word=0 held={held:#x} \
             wanted={:#x}",
            self.part.number(index),
            if held == 0 { "zero" } else { "swapped" },
            self.wanted(index),
        ));
    }
}

impl Work for Dirty {
    fn access(&mut self, random: &mut Random) -> Touch {
        let index = self.page_order.next(random, self.part.len());
        let write = self.write_percent == 100 || random.percent(self.write_percent);
        let word = &raw mut self.part.page(index)[0];
        let (touch, held) = Touch::time(|| {
            // SAFETY: a word of a page of this part. Volatile, so that the memory is accessed
            // between the two readings of the clock.
            unsafe {
                let held = word.read_volatile();
                if write {
                    word.write_volatile(held.wrapping_add(1));
                }
                held
            }
        });
        self.writes += u64::from(write);
        if !self.is_good(index, held) {
            self.report(index, held);
            // So that one lost page is one finding; the sum shows the rest.
            self.correct(index);
        }
        touch
    }

    fn sweep(&mut self) {
        let mut counted = 0;
        for index in 0..self.part.len() {
            let held = self.part.page(index)[0];
            if self.is_good(index, held) {
                counted += held & COUNT_MASK;
            } else {
                self.report(index, held);
            }
        }
        if counted != self.writes {
            findings::report(format_args!(
                "fault=sum pages={} held={counted} wanted={}",
                self.part.len(),
                self.writes
            ));
            self.writes = counted;
        }
    }

    fn pages(&self) -> usize {
        self.part.len()
    }
}
