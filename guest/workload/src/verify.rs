//! The `verify` workload: whole pages, checked to the byte at every access.
//!
//! A worker remembers, apart from the pages, which generation each is of. An access checks the
//! page against it and, unless it only reads, writes the next generation. Some pages are written
//! once and then only read; some are all zero every other generation; and with `grow` new pages,
//! never touched before, join while the guest runs.

use crate::clock::{Clock, ticks};
use crate::options::Options;
use crate::page::{self, BadPage, Fault, PageKind, WORDS};
use crate::page_order::PageOrder;
use crate::random::Random;
use crate::region::RegionPart;
use crate::worker::Workload;

/// One access in this many goes to a page that is never written again.
const CLEAN_EVERY: usize = 16;

/// A worker's pages and what they should hold.
#[derive(Debug)]
pub(crate) struct Verify {
    /// Pages that are there from the start: first the written ones, then the sometimes zero ones,
    /// then the clean ones.
    pages: RegionPart,
    /// How many are written, the sometimes zero ones included.
    written: usize,
    /// From here to `written` they are sometimes zero.
    zero_from: usize,
    /// Pages that are touched one by one as time goes.
    growth: RegionPart,
    grown: usize,
    /// Ticks between two first touches; `None`: no growth.
    grow_interval: Option<u64>,
    grow_next: u64,
    /// Added to a growth page's number, so that no two pages have the same.
    growth_base: usize,
    /// The generation each page is of, the first ones' and then the grown ones'.
    due: Vec<u32>,
    page_order: PageOrder,
    write_percent: u64,
    newest: u32,
}

impl Verify {
    /// Writes the first generation of every page of `pages`; `growth` stays untouched.
    pub(crate) fn new(
        mut pages: RegionPart,
        growth: RegionPart,
        options: &Options,
        clock: Clock,
    ) -> Self {
        let percent = |percent: usize| pages.len() * percent / 100;
        let written = pages.len() - percent(options.clean_percent);
        let zero_from = written - percent(options.zero_percent).min(written);
        let per_second = options.grow as u64 * 256 / options.threads as u64;
        let grow_interval = clock.ticks_per_second().checked_div(per_second);
        let mut due = Vec::with_capacity(pages.len() + growth.len());
        due.resize(pages.len(), 0);
        for index in 0..pages.len() {
            let kind = kind_of(index, zero_from, written);
            let number = pages.number(index);
            page::write(pages.page(index), number, 0, kind);
        }
        Self {
            pages,
            written,
            zero_from,
            growth,
            grown: 0,
            grow_interval,
            grow_next: ticks(),
            growth_base: options.mib * 256,
            due,
            page_order: PageOrder::new(options.pattern),
            write_percent: options.write_percent,
            newest: 0,
        }
    }

    /// Touches the next page of the growth, if it is time: it must be zero, and gets content.
    fn grow(&mut self, findings: &mut Vec<String>) {
        let Some(interval) = self.grow_interval else {
            return;
        };
        let now = ticks();
        if now < self.grow_next || self.grown == self.growth.len() {
            return;
        }
        // A hold-up is made up for in a burst, but not for ever.
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
        self.due.push(1);
        self.write(index);
    }

    /// Which page an access goes to, and whether it may be written.
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
        kind_of(index, self.zero_from, self.written)
    }

    /// Writes the generation that is due.
    fn write(&mut self, index: usize) {
        let (number, due, kind) = (self.number(index), self.due[index], self.kind(index));
        page::write(self.words(index), number, due, kind);
        self.newest = self.newest.max(due);
    }

    /// Checks a page; a bad one is told of and put right, so that it is told of once.
    fn check(&mut self, index: usize, findings: &mut Vec<String>) {
        let (number, due, kind) = (self.number(index), self.due[index], self.kind(index));
        if let Err(bad) = page::check(self.words(index), number, due, kind) {
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

fn kind_of(index: usize, zero_from: usize, written: usize) -> PageKind {
    if (zero_from..written).contains(&index) {
        PageKind::SometimesZero
    } else {
        PageKind::Filled
    }
}

impl Workload for Verify {
    fn access(&mut self, random: &mut Random, findings: &mut Vec<String>) -> u64 {
        self.grow(findings);
        if self.pages.len() == 0 {
            return 0;
        }
        let (index, write) = self.choose(random);
        // Any word of the page: what arrives late or torn need not be its start.
        let word = random.below(WORDS);
        let touched = &raw const self.words(index)[word];
        let before = ticks();
        // SAFETY: the pointer is to a word of a mapped page of this worker's. Volatile, so that it
        // is read between the two readings of the clock.
        let _ = unsafe { touched.read_volatile() };
        let took = ticks().wrapping_sub(before);
        self.check(index, findings);
        if write {
            self.due[index] = self.due[index].wrapping_add(1);
            self.write(index);
        }
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        for index in 0..self.due.len() {
            self.check(index, findings);
        }
    }

    fn pages(&self) -> usize {
        self.due.len()
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
        let pages = Region::resident(256).unwrap().share(1).next().unwrap();
        let growth = Region::untouched(64).unwrap().share(1).next().unwrap();
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
            verify.due[verify.written..].iter().all(|&due| due == 0),
            "clean pages were left alone"
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
    fn growth_joins_and_is_checked() {
        // So much a second that every access brings a page.
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
    fn a_page_that_was_not_empty_at_its_first_touch_is_found() {
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
            assert!(sweep(&mut verify).is_empty(), "told once");
        }
    }

    #[test]
    fn a_rolled_back_page_is_found_by_an_access_too() {
        let mut verify = worker(0);
        let old = *verify.pages.page(3);
        work(&mut verify, 5_000);
        assert!(verify.due[3] > 0);
        *verify.pages.page(3) = old;
        let findings = work(&mut verify, 5_000);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("page=3 ") && findings[0].contains("held_generation=0"),
            "{findings:?}"
        );
    }
}
