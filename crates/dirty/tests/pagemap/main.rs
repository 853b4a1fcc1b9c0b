//! `PagemapLog` with a second process that has tmpfs and hugetlb memory, or files on a disk.

// The unsafe blocks are system calls, and accesses to the test's own mappings.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]

#[path = "../../../linux/tests/common/mod.rs"]
mod common;
mod concurrent_drops;
mod disk_files;
mod hidden_holes;
#[path = "../common/pinning_device.rs"]
mod pinning_device;
mod process;
mod this_kernel;

use common::HugePages;
use hikkoshi_dirty::contract_tests::{self, Guest as _};
use hikkoshi_dirty::{DirtyError, DirtyLog, PagemapLog, StartError};
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_userfault::open_userfaults;
use process::{Process, WRITE};

const MIB: u64 = 1 << 20;
const SMALL: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

/// Blocks of small pages: the sizes and the host page sizes.
const BLOCKS: [(u64, u64); 3] = [
    (5 * MIB + 3 * SMALL, SMALL),
    (16 * SMALL, SMALL),
    (9 * MIB, SMALL),
];

/// Blocks with 8 huge pages.
const HUGE_BLOCKS: [(u64, u64); 3] = [(4 * HUGE, HUGE), (3 * MIB, SMALL), (4 * HUGE, HUGE)];

fn passes_the_contract_tests(process: &Process) {
    let taken = process.take_userfault();
    contract_tests::check(process, &process.start(&taken));
    taken.close_remote().unwrap();
}

#[test]
fn tmpfs_and_private_memory_pass_the_contract_tests() {
    passes_the_contract_tests(&Process::new(&BLOCKS));
    passes_the_contract_tests(&Process::private(&BLOCKS));
}

#[test]
fn hugetlb_memory_passes_the_contract_tests() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    for start in [Process::new, Process::private] {
        passes_the_contract_tests(&start(&HUGE_BLOCKS));
    }
}

#[test]
fn memory_that_is_not_protected_costs_nothing_and_is_dirty() {
    for process in [
        Process::new(&[(4 * MIB, SMALL)]),
        Process::private(&[(4 * MIB, SMALL)]),
    ] {
        // The others were never used.
        for page in 0..256 {
            process.write(Page::new(page), 1);
        }
        let taken = process.take_userfault();
        let log = PagemapLog::start_unprotected(
            taken.userfault().clone(),
            &process.layout,
            &process.hosts(),
        )
        .unwrap();
        let all = process.layout.all();
        let protected = PageRange::from_len(Page::new(100), 8);
        assert_eq!(log.count(all).unwrap(), 1024);
        log.protect(protected).unwrap();
        assert_eq!(log.count(all).unwrap(), 1024 - 8);
        for page in [103, 500] {
            process.write(Page::new(page), 2);
        }
        let mut found = Vec::new();
        log.take(protected, &mut |run| found.push(run)).unwrap();
        assert_eq!(found, [PageRange::one(Page::new(103))]);
        // Taking a range protects nothing outside of it.
        assert_eq!(log.count(all).unwrap(), 1024 - 8);
        log.stop().unwrap();
        taken.close_remote().unwrap();
    }
}

/// This is why pages are drained between take and copy. If this test fails because the data is
/// reported, the kernel now reports it, and drains may be unnecessary.
#[test]
fn data_that_lands_in_a_pinned_page_is_not_reported() {
    let process = Process::new(&[(4 * MIB, SMALL)]);
    let (early, late) = (Page::new(3), Page::new(700));
    process.pin(early);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    let all = process.layout.all();
    let take = || {
        let mut found = Vec::new();
        log.take(all, &mut |run: PageRange| found.extend(run.iter()))
            .unwrap();
        found
    };
    // Pinned before the log was started.
    assert_eq!(take(), []);
    let copy = process.read(early);
    process.land(77);
    assert_eq!(take(), []);
    assert_ne!(process.read(early), copy, "the data landed before the copy");
    assert_eq!(process.read(early), 77);
    // Pinned before the take.
    process.pin(late);
    assert_eq!(take(), [late]);
    let copy = process.read(late);
    process.land(78);
    assert_eq!(take(), []);
    assert_ne!(process.read(late), copy, "the data landed before the copy");
    assert_eq!(process.read(late), 78);
}

/// Two threads take at the same time: every page is reported to one of them.
#[test]
fn concurrent_takes_share_the_pages() {
    let process = Process::new(&[(8 * MIB, SMALL)]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    let all = process.layout.all();
    for _ in 0..20 {
        let expected: Vec<Page> = all.iter().step_by(3).collect();
        for page in &expected {
            process.command(WRITE, *page, 1);
        }
        let mut found: Vec<Page> = std::thread::scope(|scope| {
            let take = || {
                let mut found = Vec::new();
                log.take(all, &mut |run: PageRange| found.extend(run.iter()))
                    .unwrap();
                found
            };
            let other = scope.spawn(take);
            let mut found = take();
            found.extend(other.join().unwrap());
            found
        });
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

/// After the stop everything is restored: nothing is registered, the guest runs, and tracking can
/// be started again.
#[test]
fn stop_restores_everything() {
    let process = Process::new(&[(4 * MIB, SMALL)]);
    for round in 0..3 {
        let taken = process.take_userfault();
        let log = process.start(&taken);
        process.command(WRITE, Page::new(round), 1);
        assert_eq!(log.count(process.layout.all()).unwrap(), 1);
        drop(log);
        taken.close_remote().unwrap();
        drop(taken);
        let held = hikkoshi_linux::Process::open(process.target.0.pid).unwrap();
        assert_eq!(open_userfaults(&held).unwrap(), []);
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", process.target.0.pid));
        // `uw`: a mapping that is registered for write protection.
        assert!(!smaps.unwrap().contains(" uw"), "still registered");
    }
    process.command(WRITE, Page::new(7), 1);
}

#[test]
fn a_failed_start_leaves_nothing_registered() {
    let process = Process::new(&[(MIB, SMALL), (MIB, SMALL)]);
    let taken = process.take_userfault();
    let mut hosts = process.hosts();
    hosts[1] = HostAddr(hosts[1].0 + 1);
    let error = PagemapLog::start(taken.userfault().clone(), &process.layout, &hosts).unwrap_err();
    assert!(
        matches!(&error, StartError::Block { block, .. } if block == "ram1"),
        "{error}"
    );
    let error =
        PagemapLog::start(taken.userfault().clone(), &process.layout, &hosts[..1]).unwrap_err();
    assert!(matches!(
        error,
        StartError::Addresses {
            blocks: 2,
            given: 1
        }
    ));
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", process.target.0.pid));
    assert!(!smaps.unwrap().contains(" uw"), "still registered");
}

/// A process that has ended must not look clean.
#[test]
fn an_ended_process_is_an_error() {
    let process = Process::new(&[(4 * MIB, SMALL)]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    process.command(WRITE, Page::new(3), 1);
    process.target.0.kill(libc::SIGKILL);
    process.target.0.join();
    let all = process.layout.all();
    let result = log.take(all, &mut |_| {});
    assert!(
        matches!(result, Err(DirtyError::ProcessGone { .. })),
        "{result:?}"
    );
    assert!(matches!(
        log.count(all),
        Err(DirtyError::ProcessGone { .. })
    ));
    log.stop().unwrap();
    taken.close_remote().unwrap();
}

/// If memory is replaced during tracking, the log returns an error and reports what it may have
/// cleared.
#[test]
fn untracked_memory_is_an_error() {
    let process = Process::new(&[(4 * MIB, SMALL)]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    process.command(WRITE, Page::new(3), 1);
    let block = process.layout.block(0).unwrap().0.bytes;
    let half =
        hikkoshi_linux::HostRange::new(HostAddr(process.hosts()[0].0 + block / 2), block / 2);
    taken.userfault().unregister(half).unwrap();
    let mut found = Vec::new();
    let all = process.layout.all();
    let result = log.take(all, &mut |run: PageRange| found.extend(run.iter()));
    assert!(
        matches!(result, Err(DirtyError::NotTracked { .. })),
        "{result:?}"
    );
    // Either the page was not cleared and is still in the log, or it was reported.
    let low = PageRange::new(Page::new(0), Page::new(512));
    log.take(low, &mut |run: PageRange| found.extend(run.iter()))
        .unwrap();
    assert!(found.contains(&Page::new(3)), "{found:?}");
}
