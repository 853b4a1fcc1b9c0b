//! Memory that is dropped while the log is read, where a second scan has to find the holes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_dirty::contract_tests::Guest as _;
use hikkoshi_dirty::{DirtyLog, PagemapLog, Scan};
use hikkoshi_linux::{HostAddr, HostRange, PageCategories, PageQuery};
use hikkoshi_pages::{Page, PageRange};

use crate::common::HugePages;
use crate::hidden_holes::{HidesHoles, start};
use crate::process::Process;
use crate::{HUGE, MIB, SMALL};

/// How long a process writes in all, and until its memory is compared with the copy.
const TIME: Duration = Duration::from_millis(500);
const ROUND: Duration = Duration::from_millis(20);

/// Two threads take a half each, and copy what they took; the process writes, and clears and drops,
/// random pieces of its memory.
fn no_write_is_missed(process: &Process, log: &PagemapLog) {
    let all = process.layout.all();
    let copy: Vec<AtomicU64> = all.iter().map(|_| AtomicU64::new(0)).collect();
    let index = |page: Page| usize::try_from(page.index()).unwrap();
    let reported = AtomicU64::new(0);
    let update = |range: PageRange| {
        log.take(range, &mut |run: PageRange| {
            reported.fetch_add(run.len(), Ordering::SeqCst);
            for page in run {
                copy[index(page)].store(process.read(page), Ordering::SeqCst);
            }
        })
        .unwrap();
    };
    // The blocks are equal, so this is a boundary of huge pages.
    let (low, high) = all.split_at(Page::new(all.len() / 2));
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < 3 || begin.elapsed() < TIME {
        rounds += 1;
        let ends = AtomicBool::new(false);
        process.start_dropping();
        std::thread::scope(|scope| {
            for half in [low, high] {
                let (update, ends) = (&update, &ends);
                scope.spawn(move || {
                    while !ends.load(Ordering::SeqCst) {
                        update(half);
                    }
                });
            }
            std::thread::sleep(ROUND);
            process.stop_writing();
            ends.store(true, Ordering::SeqCst);
        });
        update(all);
        for page in all {
            let copied = copy[index(page)].load(Ordering::SeqCst);
            let is = process.read(page);
            assert_eq!(
                is, copied,
                "NEVER RETRIED: round {rounds}: a write to {page:?} was missed"
            );
        }
    }
    let reported = reported.into_inner();
    eprintln!("{rounds} rounds, {reported} pages reported");
    assert!(reported > all.len(), "only {reported} pages were reported");
}

#[test]
fn no_write_is_missed_where_the_kernel_hides_holes() {
    let blocks = [(8 * MIB, SMALL), (8 * MIB, SMALL)];
    for process in [Process::new(&blocks), Process::private(&blocks)] {
        let taken = process.take_userfault();
        let log = start(&process, &taken, true, true);
        no_write_is_missed(&process, &log);
        taken.close_remote().unwrap();
    }
}

#[test]
fn no_write_to_hugetlb_memory_is_missed() {
    // Eight for one process at a time, and one for each thread that copies: a page that is dropped
    // while somebody reads it is free only afterwards, and a write that finds no free page ends
    // the process (SIGBUS).
    let Some(_pages) = HugePages::reserve(8 + 2) else {
        return;
    };
    let blocks = [(4 * HUGE, HUGE), (4 * HUGE, HUGE)];
    for new in [Process::new, Process::private] {
        let process = new(&blocks);
        let taken = process.take_userfault();
        let log = process.start(&taken);
        no_write_is_missed(&process, &log);
        taken.close_remote().unwrap();
    }
}

/// A kernel that hides holes, and a process that drops all of its memory after a certain scan.
#[derive(Debug)]
struct DropsAfter {
    kernel: HidesHoles,
    process: Arc<Process>,
    /// The scans until then; 0: it does not.
    scans: Arc<AtomicU64>,
}

impl Scan for DropsAfter {
    fn scan(
        &self,
        range: HostRange,
        query: &PageQuery,
        found: &mut dyn FnMut(HostRange, PageCategories),
    ) -> io::Result<HostAddr> {
        let reached = self.kernel.scan(range, query, found);
        let scans = self.scans.load(Ordering::SeqCst);
        self.scans.store(scans.saturating_sub(1), Ordering::SeqCst);
        if scans == 1 {
            self.process.drop_pages(self.process.layout.all());
        }
        reached
    }
}

#[test]
fn what_is_dropped_between_two_scans_is_reported() {
    let blocks = [(4 * MIB, SMALL)];
    for process in [Process::new(&blocks), Process::private(&blocks)] {
        let process = Arc::new(process);
        let taken = process.take_userfault();
        let scans = Arc::new(AtomicU64::new(0));
        let (userfault, hosts) = (Arc::clone(taken.userfault()), process.hosts());
        let log = PagemapLog::start_with(userfault, &process.layout, &hosts, false, |pagemap| {
            Arc::new(DropsAfter {
                kernel: HidesHoles(pagemap),
                process: Arc::clone(&process),
                scans: Arc::clone(&scans),
            })
        })
        .unwrap();
        let all = process.layout.all();
        log.protect(all).unwrap();
        let write_all = || all.iter().for_each(|page| process.write(page, 1));
        // There are at most three scans of each of two parts.
        for after in 1..=6 {
            write_all();
            scans.store(after, Ordering::SeqCst);
            let mut taken = Vec::new();
            log.take(all, &mut |run| taken.push(run)).unwrap();
            scans.store(0, Ordering::SeqCst);
            assert_eq!(taken, [all], "a take, dropped after scan {after}");
        }
        for after in 1..=2 {
            write_all();
            scans.store(after, Ordering::SeqCst);
            let mut peeked = Vec::new();
            log.peek(all, &mut |run| peeked.push(run)).unwrap();
            scans.store(0, Ordering::SeqCst);
            assert_eq!(peeked, [all], "a peek, dropped after scan {after}");
        }
        log.stop().unwrap();
        taken.close_remote().unwrap();
    }
}
