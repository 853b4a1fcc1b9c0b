//! `PagemapLog` with a second process that has tmpfs and hugetlb memory, or files on a disk.

// The unsafe blocks are system calls, and accesses to the test's own mappings.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr
)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;
#[path = "pagemap/disk_files.rs"]
mod disk_files;
#[path = "common/pinning_device.rs"]
mod pinning_device;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{HugePages, Shared, Target, map_shared, memory_file};
use hikkoshi_dirty::contract_tests::{self, Guest as _};
use hikkoshi_dirty::{DirtyError, DirtyLog, PagemapLog, StartError};
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, RemoteUserfault, open_userfaults};
use pinning_device::PinningDevice;

const MIB: u64 = 1 << 20;
const SMALL: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

/// Indices of words in the shared page. The guest executes one command at a time.
const COMMAND: usize = 0;
const DONE: usize = 1;
const KIND: usize = 2;
const PAGE: usize = 3;
const VALUE: usize = 4;
const WRITING: usize = 5;
const WRITERS: usize = 6;
const ADDRESSES: usize = 16;

const WRITE: u64 = 1;
const TOUCH: u64 = 2;
const PIN: u64 = 3;
const LAND: u64 = 4;

/// A second process with RAM blocks.
#[derive(Debug)]
struct Process {
    layout: RamLayout,
    /// None if the memory is private.
    files: Vec<File>,
    /// Whether the files are on a disk.
    on_disk: bool,
    target: TargetBox,
}

struct TargetBox(Target);

impl std::fmt::Debug for TargetBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.0.pid)
    }
}

impl Process {
    /// Starts a process with blocks; each is given by its size and its host page size, in bytes.
    fn new(blocks: &[(u64, u64)]) -> Self {
        let file = |(bytes, host_page): &(u64, u64)| memory_file(*bytes, *host_page != SMALL);
        Self::with(blocks, blocks.iter().map(file).collect(), false)
    }

    /// The same with private anonymous memory.
    fn private(blocks: &[(u64, u64)]) -> Self {
        Self::with(blocks, Vec::new(), false)
    }

    /// The process maps these files shared; no files: private memory.
    fn with(blocks: &[(u64, u64)], files: Vec<File>, on_disk: bool) -> Self {
        let layout = RamLayout::new(
            blocks
                .iter()
                .enumerate()
                .map(|(number, (bytes, host_page))| RamBlock {
                    id: format!("ram{number}"),
                    bytes: *bytes,
                    host_page: *host_page,
                    guest: Vec::new(),
                })
                .collect(),
        )
        .unwrap();
        let descriptor = |block| files.get(block).map_or(-1, AsRawFd::as_raw_fd);
        let raw: Vec<(i32, usize)> = blocks
            .iter()
            .enumerate()
            .map(|(block, (bytes, _))| (descriptor(block), usize::try_from(*bytes).unwrap()))
            .collect();
        let inside = layout.clone();
        let target = Target::spawn(move |shared| {
            let mappings = map_blocks(shared, &raw, &inside, on_disk);
            guest(shared, mappings, &inside)
        });
        target.shared.wait(DONE, 1);
        Self {
            layout,
            files,
            on_disk,
            target: TargetBox(target),
        }
    }

    fn hosts(&self) -> Vec<HostAddr> {
        (0..self.layout.blocks().len())
            .map(|block| HostAddr(self.target.0.shared.get(ADDRESSES + block)))
            .collect()
    }

    fn command(&self, kind: u64, page: Page, value: u64) {
        let shared = self.target.0.shared;
        shared.set(KIND, kind);
        shared.set(PAGE, page.index());
        shared.set(VALUE, value);
        let number = shared.add(COMMAND, 1) + 1;
        for round in 1u64.. {
            if shared.get(DONE) > number {
                break;
            }
            if round % 100_000 == 0 {
                assert_ne!(self.target.0.state(), 'Z', "the second process has ended");
            }
            std::thread::yield_now();
        }
    }

    fn take_userfault(&self) -> RemoteUserfault {
        RemoteUserfault::create(self.target.0.pid, Features::FOR_DIRTY_LOG).unwrap()
    }

    fn start(&self, taken: &RemoteUserfault) -> PagemapLog {
        PagemapLog::start(taken.userfault().clone(), &self.layout, &self.hosts()).unwrap()
    }
}

impl contract_tests::Guest for Process {
    fn layout(&self) -> &RamLayout {
        &self.layout
    }
    fn write(&self, page: Page, value: u64) {
        self.command(WRITE, page, value);
    }
    fn touch(&self, page: Page) {
        self.command(TOUCH, page, 0);
    }
    fn start_writing(&self) {
        self.target.0.shared.set(WRITING, 1);
        self.target.0.shared.wait(WRITERS, 2);
    }
    fn stop_writing(&self) {
        let shared = self.target.0.shared;
        shared.set(WRITING, 0);
        common::eventually("the writers to stop", || shared.get(WRITERS) == 0);
    }
    fn can_pin(&self) -> bool {
        !self.on_disk
    }
    fn pin(&self, page: Page) {
        self.command(PIN, page, 0);
    }
    fn land(&self, value: u64) {
        self.command(LAND, Page::new(0), value);
    }
    fn read(&self, page: Page) -> u64 {
        let (block, offset) = self.layout.locate(page).unwrap();
        let mut bytes = [0; 8];
        match self.files.get(block) {
            Some(file) => file.read_exact_at(&mut bytes, offset).unwrap(),
            None => File::open(format!("/proc/{}/mem", self.target.0.pid))
                .unwrap()
                .read_exact_at(&mut bytes, self.hosts()[block].0 + offset)
                .unwrap(),
        }
        u64::from_ne_bytes(bytes)
    }
}

/// Maps private anonymous memory.
fn map_private(bytes: usize, host_page: u64) -> *mut u8 {
    let huge = match host_page {
        SMALL => 0,
        _ => libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

/// Maps the blocks of the second process, and returns their addresses. QEMU advises the kernel to
/// use huge pages, which it then also does for a file on a disk.
fn map_blocks(
    shared: &Shared,
    blocks: &[(i32, usize)],
    layout: &RamLayout,
    huge_pages: bool,
) -> Vec<usize> {
    let advise = |start: *mut u8, bytes, advice| {
        let result = unsafe { libc::madvise(start.cast(), bytes, advice) };
        assert_eq!(result, 0);
    };
    let map = |(number, (fd, bytes)): (usize, &(i32, usize))| {
        let host_page = layout.block(number).unwrap().0.host_page;
        let start = match fd {
            -1 => map_private(*bytes, host_page),
            fd => map_shared(*bytes, *fd),
        };
        if huge_pages {
            advise(start, *bytes, libc::MADV_HUGEPAGE);
        }
        if host_page == SMALL && *bytes > 8 * PAGE_SIZE {
            // An madvise of a part splits the mapping into several.
            let part = unsafe { start.add(4 * PAGE_SIZE) };
            advise(part, PAGE_SIZE, libc::MADV_DONTDUMP);
        }
        shared.set(ADDRESSES + number, start.expose_provenance() as u64);
        start.addr()
    };
    blocks.iter().enumerate().map(map).collect()
}

/// The program of the second process.
fn guest(shared: &'static Shared, mappings: Vec<usize>, layout: &RamLayout) -> i32 {
    let word = {
        let layout = layout.clone();
        move |page: u64| -> *mut u64 {
            let (block, offset) = layout.locate(Page::new(page)).unwrap();
            let address = mappings[block] + usize::try_from(offset).unwrap();
            std::ptr::with_exposed_provenance_mut(address)
        }
    };
    for seed in [0x1234_5678_9abc_def1u64, 0x0fed_cba9_8765_4321] {
        let word = word.clone();
        let pages = layout.pages();
        std::thread::spawn(move || {
            let mut random = seed;
            loop {
                if shared.get(WRITING) == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                shared.add(WRITERS, 1);
                while shared.get(WRITING) != 0 {
                    for _ in 0..100 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        unsafe { word(random % pages).write_volatile(random) };
                    }
                }
                shared.add(WRITERS, u64::MAX);
            }
        });
    }
    let mut device = PinningDevice::new();
    for done in 1u64.. {
        shared.set(DONE, done);
        while shared.get(COMMAND) < done {
            std::thread::yield_now();
        }
        let at = word(shared.get(PAGE));
        match shared.get(KIND) {
            WRITE => unsafe { at.write_volatile(shared.get(VALUE)) },
            TOUCH => drop(unsafe { at.read_volatile() }),
            PIN => device.pin(at.cast()),
            LAND => device.land(shared.get(VALUE)),
            _ => return 1,
        }
    }
    0
}

#[test]
fn tmpfs_passes_the_contract_tests() {
    let process = Process::new(&[
        (5 * MIB + 3 * SMALL, SMALL),
        (16 * SMALL, SMALL),
        (9 * MIB, SMALL),
    ]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    contract_tests::check(&process, &log);
    taken.close_remote().unwrap();
}

#[test]
fn hugetlb_passes_the_contract_tests() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let process = Process::new(&[(4 * HUGE, HUGE), (3 * MIB, SMALL), (4 * HUGE, HUGE)]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    contract_tests::check(&process, &log);
    taken.close_remote().unwrap();
}

#[test]
fn private_memory_passes_the_contract_tests() {
    let process = Process::private(&[
        (5 * MIB + 3 * SMALL, SMALL),
        (16 * SMALL, SMALL),
        (9 * MIB, SMALL),
    ]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    contract_tests::check(&process, &log);
    taken.close_remote().unwrap();
}

#[test]
fn private_hugetlb_memory_passes_the_contract_tests() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let process = Process::private(&[(4 * HUGE, HUGE), (3 * MIB, SMALL), (4 * HUGE, HUGE)]);
    let taken = process.take_userfault();
    let log = process.start(&taken);
    contract_tests::check(&process, &log);
    taken.close_remote().unwrap();
}

#[test]
fn memory_that_is_not_protected_costs_nothing_and_is_dirty() {
    for process in [
        Process::new(&[(4 * MIB, SMALL)]),
        Process::private(&[(4 * MIB, SMALL)]),
    ] {
        for page in 0..1024 {
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
