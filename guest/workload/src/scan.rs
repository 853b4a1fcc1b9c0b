//! The `scan` workload: on command, every worker reads its part of the region once, from start to
//! end.
//!
//! The parts are contiguous, and every byte of every page is checked, so a scan without findings
//! has seen the whole region arrive.

use crate::clock::ticks;
use crate::page::{self, PageKind};
use crate::random::Random;
use crate::region::RegionPart;
use crate::worker::{Commands, Workload};
use std::sync::atomic::Ordering;

/// A worker's part of the region, and the position of its scan.
#[derive(Debug)]
pub(crate) struct Scan {
    part: RegionPart,
    kind: PageKind,
    next: usize,
}

impl Scan {
    /// Fills every page of the part with content of this kind.
    pub(crate) fn new(mut part: RegionPart, kind: PageKind) -> Self {
        for index in 0..part.len() {
            let number = part.number(index);
            page::write(part.page(index), number, 0, kind);
        }
        Self {
            part,
            kind,
            next: 0,
        }
    }

    fn check(&mut self, index: usize, findings: &mut Vec<String>) {
        let number = self.part.number(index);
        if let Err(bad) = page::check(self.part.page(index), number, 0, self.kind) {
            let address = self.part.address(index) as usize;
            let physical = crate::guest_physical::address_of(address)
                .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
            findings.push(format!(
                "page={number} address={address:#x} physical={physical} fault={} word={} held={:#x} wanted={:#x}",
                bad.fault, bad.word, bad.held, bad.wanted
            ));
            // Correct the page, so that one bad page is one finding.
            page::write(self.part.page(index), number, 0, self.kind);
        }
    }
}

impl Workload for Scan {
    fn is_due(&self, commands: &Commands) -> bool {
        self.next < self.part.len() && commands.scan_started.load(Ordering::Relaxed)
    }

    fn access(&mut self, _random: &mut Random, findings: &mut Vec<String>) -> u64 {
        let index = self.next;
        self.next += 1;
        let touched = self.part.address(index).cast::<u64>();
        let before = ticks();
        // SAFETY: the address is that of a mapped page of this part, which only this thread uses.
        // Volatile, so that it is read between the two readings of the clock.
        let _ = unsafe { touched.read_volatile() };
        let took = ticks().wrapping_sub(before);
        self.check(index, findings);
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        for index in 0..self.part.len() {
            self.check(index, findings);
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
    use crate::region::Region;

    fn scans() -> Vec<Scan> {
        Region::resident(10)
            .unwrap()
            .split(3)
            .zip([PageKind::Filled, PageKind::Repeating, PageKind::Repeating])
            .map(|(part, kind)| Scan::new(part, kind))
            .collect()
    }

    fn scan(scan: &mut Scan) -> Vec<String> {
        let commands = Commands::default();
        assert!(!scan.is_due(&commands), "not before the command");
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
    fn a_scan_of_good_memory_has_no_findings() {
        let mut scans = scans();
        for one in &mut scans {
            assert_eq!(scan(one), Vec::<String>::new());
        }
        assert_eq!(scans.iter().map(Scan::pages).sum::<usize>(), 10);
    }

    #[test]
    fn bad_pages_are_found_by_scan_and_sweep() {
        let mut scans = scans();
        scans[1].part.page(2).fill(0);
        let findings = scan(&mut scans[1]);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("page=5 ") && findings[0].contains("fault=zero"),
            "{findings:?}"
        );
        scans[2].part.page(0)[511] ^= 1;
        let mut findings = Vec::new();
        scans[2].sweep(&mut findings);
        assert!(findings[0].contains("fault=corrupt"), "{findings:?}");
    }
}
