//! The `verify` workload: whole pages, every byte checked at every access.
//!
//! An access checks the page against the expected generation and, unless it only reads, writes the
//! next one. As in the Linux test guest, some pages are all zero in every other generation, and
//! some are written once and then only read.

use crate::clock::ticks;
use crate::memory::Memory;
use crate::options::Options;
use hikkoshi_checked_pages::page::{self, BadPage, Fault, PageKind, WORDS};
use hikkoshi_checked_pages::random::Random;

/// One of this many accesses goes to a page that is never written again.
const CLEAN_EVERY: usize = 16;
/// Findings that are printed; later ones are only counted, because the console is slow.
const PRINTED: u64 = 8;

/// The pages and their expected content.
#[derive(Debug)]
pub struct Verify {
    memory: Memory,
    /// Number of pages that are written repeatedly; the others follow.
    written: usize,
    /// From here to `written`, pages are sometimes zero.
    zero_from: usize,
    write_percent: u64,
    random: Random,
    /// The highest generation written.
    pub newest: u32,
    /// Bad pages found so far.
    pub bad: u64,
}

impl Verify {
    /// Writes the first generation of every page.
    pub fn new(memory: Memory, options: &Options) -> Self {
        let count = memory.pages.len();
        let written = count - count * options.clean_percent / 100;
        let mut verify = Self {
            zero_from: written - (count * options.zero_percent / 100).min(written),
            memory,
            written,
            write_percent: options.write_percent,
            random: Random::new(options.seed),
            newest: 0,
            bad: 0,
        };
        verify.memory.expected.fill(0);
        for number in 0..count {
            verify.write(number);
        }
        verify
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.memory.pages.len()
    }

    /// Makes one access and returns how long touching the memory took, in ticks.
    pub fn access(&mut self) -> u64 {
        let (number, write) = self.choose();
        // Any word of the page: late or torn data need not be at its start.
        let word = self.random.below(WORDS);
        let touched = &raw const self.memory.pages[number][word];
        let before = ticks();
        // SAFETY: a word of a page. Volatile, so that it is read between the readings of the clock.
        let _ = unsafe { touched.read_volatile() };
        let took = ticks().wrapping_sub(before);
        self.check(number);
        if write {
            self.memory.expected[number] = self.memory.expected[number].wrapping_add(1);
            self.write(number);
        }
        took
    }

    /// Checks every page.
    pub fn sweep(&mut self) {
        for number in 0..self.pages() {
            self.check(number);
        }
    }

    /// The page of the next access, and whether it may be written.
    fn choose(&mut self) -> (usize, bool) {
        let clean = self.pages() - self.written;
        if clean > 0 && self.random.below(CLEAN_EVERY) == 0 {
            return (self.written + self.random.below(clean), false);
        }
        let number = self.random.below(self.written);
        let write = self.write_percent == 100 || self.random.percent(self.write_percent);
        (number, write)
    }

    fn kind(&self, number: usize) -> PageKind {
        if (self.zero_from..self.written).contains(&number) {
            PageKind::SometimesZero
        } else {
            PageKind::Filled
        }
    }

    /// Writes the expected generation.
    fn write(&mut self, number: usize) {
        let (expected, kind) = (self.memory.expected[number], self.kind(number));
        page::write(&mut self.memory.pages[number], number, expected, kind);
        self.newest = self.newest.max(expected);
    }

    /// Checks a page; reports and corrects a bad one, so that it is reported once.
    fn check(&mut self, number: usize) {
        let (expected, kind) = (self.memory.expected[number], self.kind(number));
        if let Err(bad) = page::check(&self.memory.pages[number], number, expected, kind) {
            self.bad += 1;
            if self.bad <= PRINTED {
                self.print(&bad);
            }
            self.write(number);
        }
    }

    fn print(&self, bad: &BadPage) {
        let address = (&raw const self.memory.pages[bad.page]).expose_provenance();
        let instead = match bad.fault {
            Fault::Stale { generation } => Some(("held_generation", generation)),
            Fault::Swapped { page } => Some(("held_page", page)),
            Fault::Zero | Fault::Corrupt | Fault::NotZero => None,
        };
        let (name, value) = instead.unwrap_or(("", 0));
        let instead = format_args!(" {name}={value}");
        crate::say!(
            "BAD: page={} address={address:#x} physical={address:#x} fault={} word={} held={:#x} \
             wanted={:#x} wanted_generation={}{}",
            bad.page,
            bad.fault,
            bad.word,
            bad.held,
            bad.wanted,
            bad.generation,
            if name.is_empty() {
                format_args!("")
            } else {
                instead
            },
        );
    }
}
