//! Drops pages of a real process, and finds which ones it has.

#![allow(missing_docs)]
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::{HugePages, Target, aloud};
use hikkoshi_linux::{
    DropPagesError, HostAddr, HostRange, PageCategories, PageQuery, Pagemap, Process, drop_pages,
};

const PAGE: u64 = 4096;

/// 32 MiB.
const PAGES: u64 = 8192;

/// What the process does with its memory before it reports the address.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    flags: i32,
    locked: bool,
    huge: bool,
    /// Every how many pages one is written.
    every: u64,
}

/// A process with private memory, of which it writes some pages. It ends when it is asked to.
fn target(kind: Kind) -> (Target, Arc<Process>) {
    let target = Target::spawn(move |shared| unsafe {
        let bytes = usize::try_from(PAGES * PAGE).unwrap();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | kind.flags;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mut memory = libc::mmap(std::ptr::null_mut(), bytes * 2, protection, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        memory = memory.byte_add(memory.align_offset(2 << 20));
        let advice = if kind.huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        if kind.flags & libc::MAP_HUGETLB == 0 {
            assert_eq!(libc::madvise(memory, bytes, advice), 0);
        }
        if kind.locked {
            assert_eq!(libc::mlock(memory, bytes), 0);
        }
        for page in (0..PAGES).step_by(usize::try_from(kind.every).unwrap()) {
            let at = memory.byte_add(usize::try_from(page * PAGE).unwrap());
            at.cast::<u64>().write_volatile(page + 1);
        }
        shared.set(0, memory as u64);
        shared.wait(1, 1);
        0
    });
    target.shared.wait(0, 1);
    let process = Arc::new(Process::open(target.pid).unwrap());
    (target, process)
}

fn pages(target: &Target, from: u64, count: u64) -> HostRange {
    HostRange::new(HostAddr(target.shared.get(0) + from * PAGE), count * PAGE)
}

/// The numbers of the pages that the process has, as runs: first page, number of pages.
fn present(target: &Target, pagemap: &Pagemap) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    pagemap
        .pages(pages(target, 0, PAGES), |run| {
            let first = (run.addr.0 - target.shared.get(0)) / PAGE;
            match found.last_mut() {
                Some((from, count)) if *from + *count == first => *count += run.len / PAGE,
                _ => found.push((first, run.len / PAGE)),
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    let first = pagemap.first_pages(pages(target, 0, PAGES)).unwrap();
    let first = first.map(|run| (run.addr.0 - target.shared.get(0)) / PAGE);
    assert_eq!(first, found.first().map(|&(from, _)| from));
    found
}

fn finish(target: &Target) {
    target.shared.set(1, 1);
    assert_eq!(target.join(), 0, "the process was not disturbed");
}

#[test]
fn thousands_of_ranges_are_dropped() {
    let (target, process) = target(Kind {
        every: 1,
        ..Kind::default()
    });
    let pagemap = Pagemap::open(Some(&process)).unwrap();
    assert_eq!(present(&target, &pagemap), [(0, PAGES)]);
    let ranges: Vec<_> = (0..3000)
        .map(|number| pages(&target, number * 2, 1))
        .collect();
    let descriptors = target.descriptors();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", target.pid)).unwrap();
    let before = maps();
    let begun = std::time::Instant::now();
    drop_pages(&process, &ranges).unwrap();
    aloud(&format!(
        "3,000 ranges were dropped in {:?}",
        begun.elapsed()
    ));
    let left = present(&target, &pagemap);
    assert_eq!(left.len(), 3000);
    assert!(
        left.iter()
            .take(2999)
            .zip(0..)
            .all(|(run, number)| *run == (number * 2 + 1, 1))
    );
    assert_eq!(left.last(), Some(&(5999, PAGES - 5999)));
    assert_eq!(target.descriptors(), descriptors, "nothing is left open");
    assert_eq!(maps(), before, "nothing is left mapped");
    drop_pages(&process, &[]).unwrap();
    drop_pages(&process, &[pages(&target, 0, PAGES)]).unwrap();
    assert_eq!(present(&target, &pagemap), []);
    finish(&target);
}

#[test]
fn locked_memory_is_dropped() {
    let (target, process) = target(Kind {
        every: 1,
        locked: true,
        ..Kind::default()
    });
    let pagemap = Pagemap::open(Some(&process)).unwrap();
    assert_eq!(present(&target, &pagemap), [(0, PAGES)]);
    drop_pages(&process, &[pages(&target, 1, 2), pages(&target, 5, 1)]).unwrap();
    assert_eq!(present(&target, &pagemap), [(0, 1), (3, 2), (6, PAGES - 6)]);
    drop_pages(&process, &[pages(&target, 0, PAGES)]).unwrap();
    assert_eq!(present(&target, &pagemap), []);
    finish(&target);
}

#[test]
fn a_part_of_a_transparent_huge_page_is_dropped() {
    let (target, process) = target(Kind {
        every: 512,
        huge: true,
        ..Kind::default()
    });
    let pagemap = Pagemap::open(Some(&process)).unwrap();
    if present(&target, &pagemap) != [(0, PAGES)] {
        aloud("NOT TESTED: no transparent huge pages here");
        return;
    }
    drop_pages(&process, &[pages(&target, 3, 1), pages(&target, 600, 10)]).unwrap();
    assert_eq!(
        present(&target, &pagemap),
        [(0, 3), (4, 596), (610, PAGES - 610)]
    );
    finish(&target);
}

#[test]
fn hugetlb_pages_are_dropped_whole() {
    let Some(_pages) = HugePages::reserve(PAGES / 512 * 2) else {
        return;
    };
    let (target, process) = target(Kind {
        every: 1024,
        flags: libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
        ..Kind::default()
    });
    let pagemap = Pagemap::open(Some(&process)).unwrap();
    assert_eq!(present(&target, &pagemap).first(), Some(&(0, 512)));
    drop_pages(
        &process,
        &[pages(&target, 0, 512), pages(&target, 2048, 512)],
    )
    .unwrap();
    assert_eq!(present(&target, &pagemap).first(), Some(&(1024, 512)));
    let part = drop_pages(
        &process,
        &[pages(&target, 1025, 1), pages(&target, 1027, 1)],
    );
    assert!(
        matches!(part, Err(DropPagesError::Refused { .. })),
        "{part:?}"
    );
    finish(&target);
}

#[test]
fn a_range_that_is_refused_is_named_and_the_others_are_dropped() {
    let (target, process) = target(Kind {
        every: 1,
        ..Kind::default()
    });
    let wrong = HostRange::new(HostAddr(target.shared.get(0) + 1), PAGE);
    let ranges = [pages(&target, 0, 1), wrong, pages(&target, 9, 1)];
    let error = drop_pages(&process, &ranges).unwrap_err();
    assert!(error.to_string().contains(&wrong.to_string()), "{error}");
    let pagemap = Pagemap::open(Some(&process)).unwrap();
    assert_eq!(present(&target, &pagemap), [(1, PAGES - 1)]);
    finish(&target);
}

#[test]
fn a_process_that_has_ended_is_an_error() {
    let (target, process) = target(Kind {
        every: 1,
        ..Kind::default()
    });
    let range = pages(&target, 0, 1);
    finish(&target);
    let error = drop_pages(&process, &[range]).unwrap_err();
    assert!(matches!(error, DropPagesError::Inject(_)), "{error}");
}

/// A scan reports what the entries say, also where a page-table entry is a marker.
#[test]
fn holes_are_not_touched_by_looking_at_them() {
    let (target, process) = target(Kind {
        every: 100,
        ..Kind::default()
    });
    let pagemap = Pagemap::open(Some(&process)).unwrap();
    let expected: Vec<_> = (0..PAGES).step_by(100).map(|page| (page, 1)).collect();
    for _ in 0..2 {
        assert_eq!(present(&target, &pagemap), expected);
    }
    let query = PageQuery {
        any_of: PageCategories::PRESENT,
        report: PageCategories::PRESENT,
        max_regions: 3,
        ..PageQuery::default()
    };
    let mut regions = Vec::new();
    let reached = pagemap
        .scan(pages(&target, 0, PAGES), &query, &mut |region, _| {
            regions.push(region)
        })
        .unwrap();
    assert_eq!(regions, [0, 100, 200].map(|page| pages(&target, page, 1)));
    assert!(reached <= pages(&target, 300, 1).addr);
    finish(&target);
}
