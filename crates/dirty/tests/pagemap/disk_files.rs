//! `PagemapLog` with memory in shared files on a disk file system, while their pages are written
//! back and evicted.
//!
//! The kernel registers any kind of mapping for asynchronous write protection (Linux 6.7,
//! `vma_can_userfault`). When it evicts a protected page, it leaves a marker in the page table, so
//! that the page is protected when it is read again. An evicted page that was written is reported,
//! like any page table entry that is empty.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hikkoshi_dirty::contract_tests::{self, Guest as _};
use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamLayout};
use rustix::fs::{Mode, OFlags};

use crate::common::{aloud, eventually};
use crate::hidden_holes;
use crate::{MIB, Process, SMALL};

/// The folder of the test's files. The build's folder is on a disk on most machines.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// ext4, XFS and Btrfs; see statfs(2).
const MAGICS: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// How often the memory is compared with its copy.
const ROUNDS: u64 = 6;

/// A process with blocks in files on a disk; `None`, with a printed message, if the test's folder
/// is not on one.
fn process(blocks: &[u64]) -> Option<Process> {
    let files = blocks.iter().map(|bytes| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(FOLDER, flags, Mode::RUSR | Mode::WUSR).unwrap());
        // The first half has content, the second is a hole. Content that is read from the disk
        // may be mapped by huge pages.
        file.write_all_at(&vec![0; usize::try_from(bytes / 2).unwrap()], 0)
            .unwrap();
        file.set_len(*bytes).unwrap();
        drop_cached(&file);
        file
    });
    let files: Vec<File> = files.collect();
    let magic: i64 = rustix::fs::fstatfs(&files[0]).unwrap().f_type;
    if !MAGICS.contains(&magic) {
        aloud(&format!(
            "NOT TESTED: {FOLDER} is not on a disk, but on {magic:#x}"
        ));
        return None;
    }
    let blocks: Vec<_> = blocks.iter().map(|bytes| (*bytes, SMALL)).collect();
    Some(Process::with(&blocks, files, true))
}

/// Writes the file's pages back, and evicts those that are not mapped.
fn drop_cached(file: &File) {
    file.sync_data().unwrap();
    let advice = libc::POSIX_FADV_DONTNEED;
    assert_eq!(
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) },
        0
    );
}

/// What the kernel does with the files while they are in use.
struct Reclaim {
    files: Vec<File>,
    ranges: Vec<libc::iovec>,
    process: OwnedFd,
}

// SAFETY: the addresses are another process's, and are only passed to the kernel.
unsafe impl Sync for Reclaim {}

impl Reclaim {
    fn of(process: &Process) -> Self {
        let pid = process.target.0.raw();
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        assert!(descriptor >= 0, "{}", io::Error::last_os_error());
        let number = i32::try_from(descriptor).unwrap();
        let range = |(HostAddr(address), file): (HostAddr, &File)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(usize::try_from(address).unwrap()),
            iov_len: usize::try_from(file.metadata().unwrap().len()).unwrap(),
        };
        Self {
            files: process
                .files
                .iter()
                .map(|file| file.try_clone().unwrap())
                .collect(),
            ranges: process
                .hosts()
                .into_iter()
                .zip(&process.files)
                .map(range)
                .collect(),
            process: unsafe { OwnedFd::from_raw_fd(number) },
        }
    }

    /// Writes dirty pages back to the disk.
    fn write_back(&self) {
        for file in &self.files {
            file.sync_data().unwrap();
        }
    }

    /// Evicts what is clean from the process's page table and from the page cache.
    fn evict(&self) {
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_raw_fd(),
                self.ranges.as_ptr(),
                self.ranges.len(),
                libc::MADV_PAGEOUT,
                0,
            )
        };
        assert!(advised >= 0, "{}", io::Error::last_os_error());
        self.files.iter().for_each(drop_cached);
    }

    /// Writes back and evicts until few pages are left: the kernel skips those that it uses itself.
    fn evict_nearly_all(&self) {
        let before = self.cached();
        eventually("the pages to be evicted", || {
            self.write_back();
            self.evict();
            self.cached() <= before / 10
        });
    }

    /// How many pages of the files are in the page cache.
    fn cached(&self) -> usize {
        self.files.iter().map(cached_pages).sum()
    }
}

/// How much of the process's files is mapped by huge pages (Linux 6.16 and later on ext4).
fn huge_kib(process: &Process) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", process.target.0.pid)).unwrap();
    let values = smaps
        .lines()
        .filter_map(|line| line.strip_prefix("FilePmdMapped:"));
    values
        .map(|value| value.trim().trim_end_matches(" kB").parse::<u64>().unwrap())
        .sum()
}

fn cached_pages(file: &File) -> usize {
    let bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let mut pages = vec![0u8; bytes / PAGE_SIZE];
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(libc::mincore(memory, bytes, pages.as_mut_ptr()), 0);
        libc::munmap(memory, bytes);
    }
    pages.iter().filter(|page| **page & 1 != 0).count()
}

/// Is set when this is dropped, also by a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn take(log: &PagemapLog, layout: &RamLayout) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    log.take(layout.all(), &mut |run: PageRange| {
        found.extend(run.iter().map(Page::index));
    })
    .unwrap();
    found
}

#[test]
fn files_on_a_disk_pass_the_contract_tests() {
    let Some(process) = process(&[5 * MIB + 3 * SMALL, 16 * SMALL, 9 * MIB]) else {
        return;
    };
    let taken = process.take_userfault();
    let log = process.start(&taken);
    contract_tests::check(&process, &log);
    taken.close_remote().unwrap();
}

/// Every step is checked: what was written is reported after it was evicted, a clean page is still
/// clean after it was evicted and read again, and a write to it is reported.
#[test]
fn evicted_pages_stay_tracked() {
    let Some(process) = process(&[12 * MIB, MIB]) else {
        return;
    };
    let layout = process.layout.clone();
    let pages = layout.pages();
    for page in 0..pages {
        process.touch(Page::new(page));
    }
    let huge = huge_kib(&process);
    eprintln!("{huge} KiB are mapped by huge pages before tracking");
    // Some are dirty before tracking begins.
    for page in (0..pages).step_by(3) {
        process.write(Page::new(page), page + 1);
    }
    let taken = process.take_userfault();
    let log = process.start(&taken);
    let reclaim = Reclaim::of(&process);
    take(&log, &layout);
    for round in 0..4 {
        assert_eq!(take(&log, &layout), BTreeSet::new(), "round {round}");
        let written: BTreeSet<u64> = (round..pages).step_by(5).collect();
        for page in &written {
            process.write(Page::new(*page), round << 32 | page);
        }
        reclaim.evict_nearly_all();
        // The migration reads a page, and the guest reads another.
        for page in (0..pages).step_by(2) {
            process.read(Page::new(page));
        }
        for page in (0..pages).step_by(7) {
            process.touch(Page::new(page));
        }
        let found = take(&log, &layout);
        assert_eq!(found, written, "round {round}: written, then evicted");
        for page in &written {
            assert_eq!(process.read(Page::new(*page)), round << 32 | page);
        }
        // Clean pages are evicted and read again.
        reclaim.evict_nearly_all();
        for page in (0..pages).step_by(2) {
            process.touch(Page::new(page));
        }
        assert_eq!(take(&log, &layout), BTreeSet::new(), "round {round}: clean");
        // They are written: some are cached, some are not.
        for page in &written {
            process.write(Page::new(*page), page + 7);
        }
        assert_eq!(
            take(&log, &layout),
            written,
            "round {round}: clean, then evicted"
        );
    }
    log.stop().unwrap();
    taken.close_remote().unwrap();
}

/// A copy that is updated only from the log stays equal to the memory, while the process writes,
/// and while all pages are written back and evicted all the time.
#[test]
fn no_write_is_missed_while_pages_are_evicted() {
    let Some(process) = process(&[5 * MIB + 3 * SMALL, 2 * MIB]) else {
        return;
    };
    let layout = process.layout.clone();
    let taken = process.take_userfault();
    let log = process.start(&taken);
    let reclaim = Reclaim::of(&process);
    let mut copy = vec![0; usize::try_from(layout.pages()).unwrap()];
    let mut update = || {
        for page in take(&log, &layout) {
            copy[usize::try_from(page).unwrap()] = process.read(Page::new(page));
        }
        copy.clone()
    };
    let (end, evicted) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                reclaim.write_back();
                let before = reclaim.cached();
                reclaim.evict();
                evicted.fetch_add(before.saturating_sub(reclaim.cached()), Ordering::SeqCst);
            }
        });
        let _end = SetAtEnd(&end);
        for round in 0..ROUNDS {
            process.start_writing();
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(1));
                update();
            }
            process.stop_writing();
            // Without this, most pages that were written last would still be in the page cache.
            reclaim.write_back();
            reclaim.evict();
            let copied = update();
            for (page, copied) in (0..).zip(copied) {
                let is = process.read(Page::new(page));
                assert_eq!(
                    is, copied,
                    "NEVER RETRIED: round {round}: a write to page {page} was missed"
                );
            }
        }
    });
    let evicted = evicted.into_inner();
    eprintln!("{evicted} pages were evicted");
    assert!(evicted > 1000, "only {evicted} pages were evicted");
    log.stop().unwrap();
    taken.close_remote().unwrap();
}

/// A guest clears memory, returns it, and uses some of it again, which the kernel may map by huge
/// pages of the file. Evicted, these leave nothing in the page table. On this kernel, and on one
/// that does not report memory without a page table.
#[test]
fn returned_memory_stays_tracked_while_it_is_evicted() {
    for hides in [false, true] {
        let Some(process) = process(&[12 * MIB, 4 * MIB]) else {
            return;
        };
        let layout = process.layout.clone();
        let taken = process.take_userfault();
        let log = hidden_holes::start(&process, &taken, hides, hides);
        let reclaim = Reclaim::of(&process);
        let mut copy = vec![0; usize::try_from(layout.pages()).unwrap()];
        let mut compare = |what: &str| {
            for page in take(&log, &layout) {
                copy[usize::try_from(page).unwrap()] = process.read(Page::new(page));
            }
            for (page, copied) in (0..).zip(&copy) {
                let is = process.read(Page::new(page));
                assert_eq!(is, *copied, "hides: {hides}, page {page}: {what}");
            }
        };
        let mut most_huge = 0;
        for round in 1..=4 {
            for page in layout.all() {
                process.write(page, round << 32 | page.index());
            }
            compare("written");
            let returned = layout.all().chunks(512).skip(1).step_by(2);
            for (number, block) in returned.clone().enumerate() {
                block.iter().for_each(|page| process.write(page, 0));
                process.drop_pages(block);
                match number % 3 {
                    0 => process.write(block.start().saturating_add(round), round),
                    1 => block.iter().for_each(|page| process.touch(page)),
                    _ => {}
                }
            }
            most_huge = most_huge.max(huge_kib(&process));
            reclaim.evict_nearly_all();
            compare("returned and evicted");
            for block in returned {
                process.write(block.start().saturating_add(7), round);
            }
            reclaim.evict_nearly_all();
            compare("returned, evicted, written and evicted");
        }
        eprintln!("hides: {hides}, up to {most_huge} KiB were mapped by huge pages");
        log.stop().unwrap();
        taken.close_remote().unwrap();
    }
}
