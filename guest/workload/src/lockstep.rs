//! The `lockstep` workload: every worker reads every page repeatedly, all of them the same page at
//! the same time.
//!
//! So all processors fault on a missing page at once. No worker writes, and every worker checks
//! every byte of every page.

use crate::clock::ticks;
use crate::page::{self, PageKind};
use crate::random::Random;
use crate::region::{Region, SharedRegion};
use crate::worker::Workload;
use std::sync::{Arc, Barrier};

/// One worker's position in the pages that all workers read.
#[derive(Debug)]
pub(crate) struct Lockstep {
    region: SharedRegion,
    next: usize,
    /// All workers wait here before each page.
    step: Arc<Barrier>,
    /// Pages that were found bad; each is reported once.
    bad: Vec<bool>,
}

impl Lockstep {
    /// Fills every page, for `workers` workers.
    pub(crate) fn all(region: Region, workers: usize) -> impl Iterator<Item = Self> {
        let region =
            region.fill_shared(|number, words| page::write(words, number, 0, PageKind::Filled));
        Self::reading(region, workers)
    }

    fn reading(region: SharedRegion, workers: usize) -> impl Iterator<Item = Self> {
        let step = Arc::new(Barrier::new(workers));
        (0..workers).map(move |_| Self {
            bad: vec![false; region.len()],
            region: region.clone(),
            next: 0,
            step: Arc::clone(&step),
        })
    }

    fn check(&mut self, number: usize, findings: &mut Vec<String>) {
        let words = self.region.page(number);
        let Err(bad) = page::check(words, number, 0, PageKind::Filled) else {
            return;
        };
        if std::mem::replace(&mut self.bad[number], true) {
            return;
        }
        let address = std::ptr::from_ref(words) as usize;
        let physical = crate::guest_physical::address_of(address)
            .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
        findings.push(format!(
            "page={number} address={address:#x} physical={physical} fault={} word={} held={:#x} wanted={:#x}",
            bad.fault, bad.word, bad.held, bad.wanted
        ));
    }
}

impl Workload for Lockstep {
    fn access(&mut self, _random: &mut Random, findings: &mut Vec<String>) -> u64 {
        let number = self.next;
        self.next = (number + 1) % self.region.len();
        self.step.wait();
        let touched = &raw const self.region.page(number)[0];
        let before = ticks();
        // SAFETY: the pointer is to a word of a mapped page that no thread writes any more.
        // Volatile, so that it is read between the two readings of the clock.
        let _ = unsafe { touched.read_volatile() };
        let took = ticks().wrapping_sub(before);
        self.check(number, findings);
        took
    }

    fn sweep(&mut self, findings: &mut Vec<String>) {
        for number in 0..self.region.len() {
            self.check(number, findings);
        }
    }

    fn pages(&self) -> usize {
        self.region.len()
    }

    fn generation(&self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 6;

    /// Two passes by each of three workers.
    fn work(region: Region) -> Vec<Vec<String>> {
        let workers: Vec<_> = Lockstep::all(region, 3).collect();
        std::thread::scope(|scope| {
            let threads: Vec<_> = workers
                .into_iter()
                .map(|mut worker| {
                    scope.spawn(move || {
                        let (mut random, mut findings) = (Random::new(1), Vec::new());
                        for _ in 0..2 * worker.pages() {
                            worker.access(&mut random, &mut findings);
                        }
                        worker.sweep(&mut findings);
                        findings
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn good_memory_gives_no_finding() {
        let findings = work(Region::resident(PAGES).unwrap());
        assert_eq!(findings, [const { Vec::<String>::new() }; 3]);
    }

    #[test]
    fn every_worker_finds_a_bad_page_once() {
        let region = Region::resident(PAGES).unwrap();
        // Page 4 has the content of another page.
        let region = region.fill_shared(|number, words| {
            let number = if number == 4 { 3 } else { number };
            page::write(words, number, 0, PageKind::Filled);
        });
        let mut workers: Vec<_> = Lockstep::reading(region, 1).collect();
        let (mut random, mut findings) = (Random::new(1), Vec::new());
        for _ in 0..3 * PAGES {
            workers[0].access(&mut random, &mut findings);
        }
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("page=4 "), "{findings:?}");
    }
}
