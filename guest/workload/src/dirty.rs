//! The `dirty` workload: one word a page, written as fast as it goes.
//!
//! The word holds the page's number and how often it was written. Each access checks the number;
//! a sweep adds the counts up, and their sum must be the number of writes made: a page that came
//! stale, or not at all, is missing from it.

use crate::clock::ticks;
use crate::options::Options;
use crate::page_order::PageOrder;
use crate::random::Random;
use crate::region::RegionPart;
use crate::worker::Workload;

const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// A worker's part of the region and what it remembers of it.
#[derive(Debug)]
pub(crate) struct Dirty {
    share: RegionPart,
    page_order: PageOrder,
    write_percent: u64,
    /// Writes made since the counts were last made to fit.
    writes: u64,
}

impl Dirty {
    /// Marks every page of the share with its number.
    pub(crate) fn new(mut share: RegionPart, options: &Options) -> Self {
        for index in 0..share.len() {
            let number = share.number(index) as u64;
            share.page(index)[0] = number << COUNT_BITS;
        }
        Self {
            share,
            page_order: PageOrder::new(options.pattern),
            write_percent: options.write_percent,
            writes: 0,
        }
    }

    fn describe(&self, index: usize, held: u64) -> String {
        let number = self.share.number(index);
        let address = self.share.address(index) as usize;
        let physical = crate::guest_physical::address_of(address)
            .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
        let fault = if held == 0 { "zero" } else { "swapped" };
        format!(
            "page={number} address={address:#x} physical={physical} fault={fault} word=0 held={held:#x} wanted={:#x}",
            (number as u64) << COUNT_BITS
        )
    }

    fn is_good(&self, index: usize, held: u64) -> bool {
        held >> COUNT_BITS == self.share.number(index) as u64
    }
}

impl Workload for Dirty {
    fn access(&mut self, random: &mut Random, findings: &mut Vec<String>) -> u64 {
        if self.share.len() == 0 {
            return 0;
        }
        let index = self.page_order.next(random, self.share.len());
        let write = self.write_percent == 100 || random.percent(self.write_percent);
        let word = self.share.address(index).cast::<u64>();
        let before = ticks();
        // SAFETY: the address is that of a mapped page of this share, which only this thread uses.
        // Volatile, so that the memory is touched between the two readings of the clock.
        let held = unsafe {
            let held = word.read_volatile();
            if write {
                word.write_volatile(held.wrapping_add(1));
            }
            held
        };
        let took = ticks().wrapping_sub(before);
        self.writes += u64::from(write);
        if !self.is_good(index, held) {
            findings.push(self.describe(index, held));
            // Good again, so that one lost page is one finding; the sum tells the rest.
            let number = self.share.number(index) as u64;
            self.share.page(index)[0] = number << COUNT_BITS;
        }
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        let mut counted = 0;
        for index in 0..self.share.len() {
            let held = self.share.page(index)[0];
            if self.is_good(index, held) {
                counted += held & COUNT_MASK;
            } else {
                findings.push(self.describe(index, held));
            }
        }
        if counted != self.writes {
            findings.push(format!(
                "fault=sum pages={} held={counted} wanted={}",
                self.share.len(),
                self.writes
            ));
            self.writes = counted;
        }
    }

    fn pages(&self) -> usize {
        self.share.len()
    }

    fn generation(&self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Pattern;
    use crate::region::Region;

    fn worked() -> Dirty {
        let share = Region::resident(64).unwrap().share(1).next().unwrap();
        let options = Options {
            pattern: Pattern::Random,
            write_percent: 70,
            ..Options::default()
        };
        let mut dirty = Dirty::new(share, &options);
        let (mut random, mut findings) = (Random::new(1), Vec::new());
        for _ in 0..10_000 {
            dirty.access(&mut random, &mut findings);
        }
        assert!(findings.is_empty(), "{findings:?}");
        assert!((6_000..8_000).contains(&dirty.writes), "{}", dirty.writes);
        dirty
    }

    fn sweep(dirty: &mut Dirty) -> Vec<String> {
        let mut findings = Vec::new();
        dirty.sweep(&mut findings);
        findings
    }

    #[test]
    fn good_memory_gives_no_finding() {
        assert_eq!(sweep(&mut worked()), Vec::<String>::new());
    }

    #[test]
    fn a_lost_write_a_zero_page_and_a_swapped_page_are_found() {
        let mut dirty = worked();
        dirty.share.page(5)[0] -= 1;
        assert!(sweep(&mut dirty)[0].starts_with("fault=sum"));
        assert!(sweep(&mut dirty).is_empty(), "told once");

        let mut dirty = worked();
        dirty.share.page(5)[0] = 0;
        assert!(sweep(&mut dirty)[0].contains("page=5 "));

        let mut dirty = worked();
        let other = dirty.share.page(6)[0];
        dirty.share.page(5)[0] = other;
        let findings = sweep(&mut dirty);
        assert!(findings[0].contains("fault=swapped"), "{findings:?}");
    }
}
