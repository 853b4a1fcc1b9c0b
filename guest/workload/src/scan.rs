//! The `scan` workload: every worker reads its part of the region once, from start to end, when it
//! is told to begin.
//!
//! The parts are contiguous, and every byte of every page is checked when the scan comes by, so
//! that a scan that ends well has seen all of the region arrive.

use crate::clock::ticks;
use crate::page::{self, PageKind};
use crate::random::Random;
use crate::region::RegionPart;
use crate::worker::{Commands, Workload};
use std::sync::atomic::Ordering;

/// A worker's part of the region and how far its scan has come.
#[derive(Debug)]
pub(crate) struct Scan {
    share: RegionPart,
    next: usize,
}

impl Scan {
    /// Fills every page of the share.
    pub(crate) fn new(mut share: RegionPart) -> Self {
        for index in 0..share.len() {
            let number = share.number(index);
            page::write(share.page(index), number, 0, PageKind::Filled);
        }
        Self { share, next: 0 }
    }

    fn check(&mut self, index: usize, findings: &mut Vec<String>) {
        let number = self.share.number(index);
        if let Err(bad) = page::check(self.share.page(index), number, 0, PageKind::Filled) {
            let address = self.share.address(index) as usize;
            let physical = crate::guest_physical::address_of(address)
                .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
            findings.push(format!(
                "page={number} address={address:#x} physical={physical} fault={} word={} held={:#x} wanted={:#x}",
                bad.fault, bad.word, bad.held, bad.wanted
            ));
            // Good again, so that one bad page is one finding.
            page::write(self.share.page(index), number, 0, PageKind::Filled);
        }
    }
}

impl Workload for Scan {
    fn is_due(&self, commands: &Commands) -> bool {
        self.next < self.share.len() && commands.scan_started.load(Ordering::Relaxed)
    }

    fn access(&mut self, _random: &mut Random, findings: &mut Vec<String>) -> u64 {
        let index = self.next;
        self.next += 1;
        let touched = self.share.address(index).cast::<u64>();
        let before = ticks();
        // SAFETY: the address is that of a mapped page of this share, which only this thread uses.
        // Volatile, so that it is read between the two readings of the clock.
        let _ = unsafe { touched.read_volatile() };
        let took = ticks().wrapping_sub(before);
        self.check(index, findings);
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        for index in 0..self.share.len() {
            self.check(index, findings);
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
    use crate::region::Region;

    fn scans() -> Vec<Scan> {
        Region::resident(10)
            .unwrap()
            .split(3)
            .map(Scan::new)
            .collect()
    }

    fn scan(scan: &mut Scan) -> Vec<String> {
        let commands = Commands::default();
        assert!(!scan.is_due(&commands), "not before it is told");
        commands.scan_started.store(true, Ordering::Relaxed);
        let (mut random, mut findings) = (Random::new(1), Vec::new());
        let mut pages = 0;
        while scan.is_due(&commands) {
            scan.access(&mut random, &mut findings);
            pages += 1;
        }
        assert_eq!(pages, scan.pages());
        findings
    }

    #[test]
    fn good_memory_is_read_once_and_gives_no_finding() {
        let mut scans = scans();
        for one in &mut scans {
            assert_eq!(scan(one), Vec::<String>::new());
        }
        assert_eq!(scans.iter().map(Scan::pages).sum::<usize>(), 10);
    }

    #[test]
    fn a_page_that_did_not_come_is_found_by_the_scan_and_by_a_sweep() {
        let mut scans = scans();
        scans[1].share.page(2).fill(0);
        let findings = scan(&mut scans[1]);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("page=5 ") && findings[0].contains("fault=zero"),
            "{findings:?}"
        );
        scans[2].share.page(0)[511] ^= 1;
        let mut findings = Vec::new();
        scans[2].sweep(&mut findings);
        assert!(findings[0].contains("fault=corrupt"), "{findings:?}");
    }
}
