//! The `verify` workload: whole pages, every byte checked at every access.
//!
//! A worker stores the expected generation of each page separately. An access checks the page
//! against it and, unless it only reads, writes the next generation. Some pages are written once
//! and then only read; some are all zero in every other generation; with `grow`, new pages that
//! were never touched are added while the guest runs.

use crate::clock::{Clock, ticks};
use crate::options::Options;
use crate::page::{self, BadPage, Fault, PageKind, WORDS};
use crate::page_order::PageOrder;
use crate::random::Random;
use crate::region::RegionPart;
use crate::worker::Workload;

/// One of this many accesses goes to a page that is never written again.
const CLEAN_EVERY: usize = 16;

/// A worker's pages and their expected content.
#[derive(Debug)]
pub(crate) struct Verify {
    /// Pages from the start: first the written ones, then the sometimes zero ones, then the clean
    /// ones.
    pages: RegionPart,
    /// Number of written pages, including the sometimes zero ones.
    written: usize,
    /// From here to `written`, pages are sometimes zero.
    zero_from: usize,
    /// The kind of all others.
    filled: PageKind,
    /// Pages that are touched one by one over time.
    growth: RegionPart,
    grown: usize,
    /// Ticks between two first touches; `None`: no growth.
    grow_interval: Option<u64>,
    grow_next: u64,
    /// Added to the number of a growth page, so that all numbers are different.
    growth_base: usize,
    /// The expected generation of each page: those from the start, then the grown ones.
    expected: Vec<u32>,
    page_order: PageOrder,
    write_percent: u64,
    newest: u32,
}

impl Verify {
    /// Writes the first generation of every page in `pages`; does not touch `growth`.
    pub(crate) fn new(
        mut pages: RegionPart,
        growth: RegionPart,
        options: &Options,
        clock: Clock,
    ) -> Self {
        let percent = |percent: usize| pages.len() * percent / 100;
        let written = pages.len() - percent(options.clean_percent);
        let zero_from = written - percent(options.zero_percent).min(written);
        let filled = options.filled();
        let per_second = options.grow as u64 * 256 / options.threads as u64;
        let grow_interval = clock.ticks_per_second().checked_div(per_second);
        let mut expected = Vec::with_capacity(pages.len() + growth.len());
        expected.resize(pages.len(), 0);
        for index in 0..pages.len() {
            let kind = kind_of(index, zero_from, written, filled);
            let number = pages.number(index);
            page::write(pages.page(index), number, 0, kind);
        }
        Self {
            pages,
            written,
            zero_from,
            filled,
            growth,
            grown: 0,
            grow_interval,
            grow_next: ticks(),
            growth_base: options.mib * 256,
            expected,
            page_order: PageOrder::new(options.pattern),
            write_percent: options.write_percent,
            newest: 0,
        }
    }

    /// Touches the next growth page, if it is expected: it must be zero, and is filled.
    fn grow(&mut self, findings: &mut Vec<String>) {
        let Some(interval) = self.grow_interval else {
            return;
        };
        let now = ticks();
        if now < self.grow_next || self.grown == self.growth.len() {
            return;
        }
        // After a delay, catch up in a limited burst.
        self.grow_next = (self.grow_next + interval).max(now.saturating_sub(interval * 64));
        let index = self.pages.len() + self.grown;
        if let Some(word) = self.growth.page(self.grown).iter().position(|&w| w != 0) {
            let held = self.growth.page(self.grown)[word];
            findings.push(self.describe(
                index,
                &BadPage {
                    page: self.number(index),
                    generation: 0,
                    fault: Fault::NotZero,
                    word,
                    held,
                    wanted: 0,
                },
            ));
        }
        self.grown += 1;
        self.expected.push(1);
        self.write(index);
    }

    /// The page of the next access, and whether it may be written.
    fn choose(&mut self, random: &mut Random) -> (usize, bool) {
        let clean = self.pages.len() - self.written;
        if clean > 0 && random.below(CLEAN_EVERY) == 0 {
            return (self.written + random.below(clean), false);
        }
        let at = self.page_order.next(random, self.written + self.grown);
        let index = if at < self.written { at } else { at + clean };
        let write = self.write_percent == 100 || random.percent(self.write_percent);
        (index, write)
    }

    fn number(&self, index: usize) -> usize {
        match index.checked_sub(self.pages.len()) {
            None => self.pages.number(index),
            Some(grown) => self.growth_base + self.growth.number(grown),
        }
    }

    fn words(&mut self, index: usize) -> &mut page::Words {
        match index.checked_sub(self.pages.len()) {
            None => self.pages.page(index),
            Some(grown) => self.growth.page(grown),
        }
    }

    fn kind(&self, index: usize) -> PageKind {
        kind_of(index, self.zero_from, self.written, self.filled)
    }

    /// Writes the expected generation.
    fn write(&mut self, index: usize) {
        let (number, expected, kind) = (self.number(index), self.expected[index], self.kind(index));
        page::write(self.words(index), number, expected, kind);
        self.newest = self.newest.max(expected);
    }

    /// Checks a page; reports and corrects a bad one, so that it is reported once.
    fn check(&mut self, index: usize, findings: &mut Vec<String>) {
        let (number, expected, kind) = (self.number(index), self.expected[index], self.kind(index));
        if let Err(bad) = page::check(self.words(index), number, expected, kind) {
            findings.push(self.describe(index, &bad));
            self.write(index);
        }
    }

    fn describe(&mut self, index: usize, bad: &BadPage) -> String {
        let address = std::ptr::from_mut(self.words(index)) as usize;
        let physical = crate::guest_physical::address_of(address)
            .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
        let instead = match bad.fault {
            Fault::Stale { generation } => format!(" held_generation={generation}"),
            Fault::Swapped { page } => format!(" held_page={page}"),
            Fault::Zero | Fault::Corrupt | Fault::NotZero => String::new(),
        };
        format!(
            "page={} address={address:#x} physical={physical} fault={} word={} held={:#x} wanted={:#x} wanted_generation={}{instead}",
            bad.page, bad.fault, bad.word, bad.held, bad.wanted, bad.generation
        )
    }
}

fn kind_of(index: usize, zero_from: usize, written: usize, filled: PageKind) -> PageKind {
    if (zero_from..written).contains(&index) {
        PageKind::SometimesZero
    } else {
        filled
    }
}

impl Workload for Verify {
    fn access(&mut self, random: &mut Random, findings: &mut Vec<String>) -> u64 {
        self.grow(findings);
        if self.pages.len() == 0 {
            return 0;
        }
        let (index, write) = self.choose(random);
        // Any word of the page: late or torn data need not be at its start.
        let word = random.below(WORDS);
        let touched = &raw const self.words(index)[word];
        let before = ticks();
        // SAFETY: the pointer is to a word of a mapped page of this worker. Volatile, so that it is
        // read between the two readings of the clock.
        let _ = unsafe { touched.read_volatile() };
        let took = ticks().wrapping_sub(before);
        self.check(index, findings);
        if write {
            self.expected[index] = self.expected[index].wrapping_add(1);
            self.write(index);
        }
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        for index in 0..self.expected.len() {
            self.check(index, findings);
        }
    }

    fn pages(&self) -> usize {
        self.expected.len()
    }

    fn generation(&self) -> u32 {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;

    fn worker(grow: usize) -> Verify {
        let options = Options {
            mib: 1,
            grow,
            clean_percent: 20,
            zero_percent: 30,
            write_percent: 80,
            ..Options::default()
        };
        let pages = Region::resident(256).unwrap().interleave(1).next().unwrap();
        let growth = Region::untouched(64).unwrap().interleave(1).next().unwrap();
        Verify::new(pages, growth, &options, Clock::calibrate())
    }

    fn work(verify: &mut Verify, accesses: usize) -> Vec<String> {
        let (mut random, mut findings) = (Random::new(7), Vec::new());
        for _ in 0..accesses {
            verify.access(&mut random, &mut findings);
        }
        findings
    }

    fn sweep(verify: &mut Verify) -> Vec<String> {
        let mut findings = Vec::new();
        verify.sweep(&mut findings);
        findings
    }

    #[test]
    fn good_memory_gives_no_finding() {
        let mut verify = worker(0);
        assert_eq!(work(&mut verify, 5_000), Vec::<String>::new());
        assert_eq!(sweep(&mut verify), Vec::<String>::new());
        assert!(verify.newest > 5, "pages went through generations");
        assert!(
            verify.expected[verify.written..]
                .iter()
                .all(|&expected| expected == 0),
            "clean pages were not written"
        );
        let zero = (verify.zero_from..verify.written)
            .filter(|&index| verify.pages.page(index).iter().all(|&word| word == 0))
            .count();
        let sometimes = verify.written - verify.zero_from;
        assert!(
            zero > 0 && zero < sometimes,
            "{zero} of {sometimes} are zero"
        );
    }

    #[test]
    fn grown_pages_are_checked() {
        // A rate at which every access adds a page.
        let mut verify = worker(1 << 20);
        assert_eq!(work(&mut verify, 1_000), Vec::<String>::new());
        assert_eq!(verify.grown, 64);
        assert_eq!(verify.pages(), 256 + 64);
        assert_eq!(sweep(&mut verify), Vec::<String>::new());
        verify.growth.page(63).fill(0);
        let findings = sweep(&mut verify);
        assert!(
            findings[0].contains("page=319 ") && findings[0].contains("fault=zero"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_nonzero_page_at_first_touch_is_found() {
        let mut verify = worker(1 << 20);
        verify.growth.page(0)[9] = 1;
        let findings = work(&mut verify, 10);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("fault=not-zero word=9"),
            "{findings:?}"
        );
    }

    #[test]
    fn damage_to_any_kind_of_page_is_found_once() {
        for index in [0, 150, 200, 255] {
            let mut verify = worker(0);
            verify.pages.page(index)[100] ^= 1 << 40;
            let findings = sweep(&mut verify);
            assert_eq!(findings.len(), 1, "page {index}: {findings:?}");
            assert!(findings[0].contains(&format!("page={index} ")));
            assert!(sweep(&mut verify).is_empty(), "reported once");
        }
    }

    #[test]
    fn a_rolled_back_page_is_found_by_an_access() {
        let mut verify = worker(0);
        let old = *verify.pages.page(3);
        work(&mut verify, 5_000);
        assert!(verify.expected[3] > 0);
        *verify.pages.page(3) = old;
        let findings = work(&mut verify, 5_000);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("page=3 ") && findings[0].contains("held_generation=0"),
            "{findings:?}"
        );
    }
}
