//! The `dirty` workload: writes one word per page, as fast as possible.
//!
//! The word contains the page's number and how often it was written. Each access checks the number.
//! A sweep adds up the counts, and their sum must be the number of writes: a stale or missing page
//! changes it.

use crate::clock::ticks;
use crate::options::Options;
use crate::page_order::PageOrder;
use crate::random::Random;
use crate::region::RegionPart;
use crate::worker::Workload;

const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// A worker's part of the region, and its expected state.
#[derive(Debug)]
pub(crate) struct Dirty {
    part: RegionPart,
    page_order: PageOrder,
    write_percent: u64,
    /// Writes since the counts were last corrected.
    writes: u64,
}

impl Dirty {
    /// Stores its number in every page of the part.
    pub(crate) fn new(mut part: RegionPart, options: &Options) -> Self {
        for index in 0..part.len() {
            let number = part.number(index) as u64;
            part.page(index)[0] = number << COUNT_BITS;
        }
        Self {
            part,
            page_order: PageOrder::new(options.pattern),
            write_percent: options.write_percent,
            writes: 0,
        }
    }

    fn describe(&self, index: usize, held: u64) -> String {
        let number = self.part.number(index);
        let address = self.part.address(index) as usize;
        let physical = crate::guest_physical::address_of(address)
            .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
        let fault = if held == 0 { "zero" } else { "swapped" };
        format!(
            "page={number} address={address:#x} physical={physical} fault={fault} word=0 held={held:#x} wanted={:#x}",
            (number as u64) << COUNT_BITS
        )
    }

    fn is_good(&self, index: usize, held: u64) -> bool {
        held >> COUNT_BITS == self.part.number(index) as u64
    }
}

impl Workload for Dirty {
    fn access(&mut self, random: &mut Random, findings: &mut Vec<String>) -> u64 {
        if self.part.len() == 0 {
            return 0;
        }
        let index = self.page_order.next(random, self.part.len());
        let write = self.write_percent == 100 || random.percent(self.write_percent);
        let word = self.part.address(index).cast::<u64>();
        let before = ticks();
        // SAFETY: the address is that of a mapped page of this part, which only this thread uses.
        // Volatile, so that the memory is accessed between the two readings of the clock.
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
            // Correct the page, so that one lost page is one finding; the sum shows the rest.
            let number = self.part.number(index) as u64;
            self.part.page(index)[0] = number << COUNT_BITS;
        }
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        let mut counted = 0;
        for index in 0..self.part.len() {
            let held = self.part.page(index)[0];
            if self.is_good(index, held) {
                counted += held & COUNT_MASK;
            } else {
                findings.push(self.describe(index, held));
            }
        }
        if counted != self.writes {
            findings.push(format!(
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
        let part = Region::resident(64).unwrap().interleave(1).next().unwrap();
        let options = Options {
            pattern: Pattern::Random,
            write_percent: 70,
            ..Options::default()
        };
        let mut dirty = Dirty::new(part, &options);
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
        dirty.part.page(5)[0] -= 1;
        assert!(sweep(&mut dirty)[0].starts_with("fault=sum"));
        assert!(sweep(&mut dirty).is_empty(), "reported once");

        let mut dirty = worked();
        dirty.part.page(5)[0] = 0;
        assert!(sweep(&mut dirty)[0].contains("page=5 "));

        let mut dirty = worked();
        let other = dirty.part.page(6)[0];
        dirty.part.page(5)[0] = other;
        let findings = sweep(&mut dirty);
        assert!(findings[0].contains("fault=swapped"), "{findings:?}");
    }
}
