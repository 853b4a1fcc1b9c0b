//! Why no log uses the soft-dirty bits that kernels before 6.7 have, too (decision 0030): each test
//! shows one reason, on a kernel with `CONFIG_MEM_SOFT_DIRTY`. `make test-kernels` runs them with
//! Linux 6.1.

// The unsafe blocks are system calls, and accesses to the test's own mappings.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{HugePages, aloud, eventually, memory_file};

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// "pte is soft-dirty" (`Documentation/admin-guide/mm/pagemap.rst`).
const SOFT_DIRTY: u64 = 1 << 55;

/// Memory of this process, and its file if it has one.
struct Memory {
    start: *mut u8,
    bytes: usize,
    file: Option<File>,
}

// SAFETY: its words are accessed as atomics.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(bytes: usize, flags: i32, file: Option<File>) -> Self {
        let descriptor = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, descriptor, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start.cast();
        Self { start, bytes, file }
    }

    fn private(bytes: usize, advice: i32) -> Self {
        let memory = Self::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None);
        memory.advise(0, bytes, advice);
        memory
    }

    fn shared(bytes: usize) -> Self {
        let file = memory_file(bytes as u64, false);
        Self::map(bytes, libc::MAP_SHARED, Some(file))
    }

    fn word(&self, page: usize) -> &AtomicU64 {
        assert!(page < self.pages());
        unsafe { &*self.start.add(page * PAGE).cast() }
    }

    fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    fn write(&self, pages: std::ops::Range<usize>) {
        for page in pages {
            self.word(page).fetch_add(1, Ordering::SeqCst);
        }
    }

    fn advise(&self, first: usize, bytes: usize, advice: i32) {
        let start = unsafe { self.start.add(first * PAGE) };
        assert_eq!(unsafe { libc::madvise(start.cast(), bytes, advice) }, 0);
    }

    /// The pages whose bit is set.
    fn dirty(&self) -> Vec<usize> {
        let mut entries = vec![0; self.pages() * 8];
        let at = self.start.addr() / PAGE * 8;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, at as u64).unwrap();
        let (entries, _) = entries.as_chunks();
        let is_dirty = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & SOFT_DIRTY != 0;
        let found = entries.iter().enumerate();
        found
            .filter(|(_, entry)| is_dirty(entry))
            .map(|(page, _)| page)
            .collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Clears the bits of this whole process; there is no smaller unit.
fn clear() {
    std::fs::write("/proc/self/clear_refs", "4").unwrap();
}

/// One test at a time: clearing concerns the whole process. `None`, with a printed message, if the
/// kernel has no such bits.
fn kernel_has_them() -> Option<std::sync::MutexGuard<'static, ()>> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let one = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let memory = Memory::private(PAGE, libc::MADV_NOHUGEPAGE);
    memory.write(0..1);
    if memory.dirty() == [0] {
        return Some(one);
    }
    aloud("NOT TESTED: soft-dirty bits: this kernel has none (CONFIG_MEM_SOFT_DIRTY)");
    None
}

/// What the bits can do.
#[test]
fn a_write_after_clearing_sets_the_bit() {
    let Some(_one) = kernel_has_them() else {
        return;
    };
    for memory in [
        Memory::private(4 * HUGE, libc::MADV_NOHUGEPAGE),
        Memory::shared(4 * HUGE),
    ] {
        memory.write(0..memory.pages());
        assert_eq!(memory.dirty().len(), memory.pages());
        clear();
        assert_eq!(memory.dirty().len(), 0);
        memory.write(5..7);
        assert_eq!(memory.dirty(), [5, 6]);
    }
}

/// There is no operation that reads a bit and clears it: a write between the two is lost.
#[test]
fn writes_between_reading_and_clearing_are_lost() {
    let Some(_one) = kernel_has_them() else {
        return;
    };
    let memory = Memory::private(8 * HUGE, libc::MADV_NOHUGEPAGE);
    memory.write(0..memory.pages());
    clear();
    let current = |page: usize| memory.word(page).load(Ordering::SeqCst);
    let mut copy: Vec<u64> = (0..memory.pages()).map(current).collect();
    let begin = Instant::now();
    let mut wrong = 0;
    while wrong == 0 && begin.elapsed() < Duration::from_secs(60) {
        wrong = pages_lost_in_100_rounds(&memory, &mut copy);
    }
    let writes: u64 = (0..memory.pages()).map(current).sum();
    let (pages, took) = (memory.pages(), begin.elapsed());
    eprintln!("{writes} writes in {took:.1?}: {wrong} of {pages} pages wrong");
    assert!(wrong > 0);
}

/// Updates `copy` from the bits while a thread writes, and once more when it has ended. Returns
/// how many pages of it are wrong then.
fn pages_lost_in_100_rounds(memory: &Memory, copy: &mut [u64]) -> usize {
    let current = |page: usize| memory.word(page).load(Ordering::SeqCst);
    let round = |copy: &mut [u64]| {
        let dirty = memory.dirty();
        clear();
        for page in dirty {
            copy[page] = current(page);
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1;
            while !stop.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                memory
                    .word(random % memory.pages())
                    .fetch_add(1, Ordering::SeqCst);
            }
        });
        eventually("the first write", || {
            (0..memory.pages()).any(|page| copy[page] != current(page))
        });
        (0..100).for_each(|_| round(copy));
        stop.store(true, Ordering::Relaxed);
    });
    round(copy);
    (0..memory.pages())
        .filter(|page| copy[*page] != current(*page))
        .count()
}

/// A guest that returns memory: the zeros that it relies on are not in the log.
#[test]
fn dropped_pages_lose_the_bit() {
    let Some(_one) = kernel_has_them() else {
        return;
    };
    let private = Memory::private(2 * HUGE, libc::MADV_NOHUGEPAGE);
    let shared = Memory::shared(2 * HUGE);
    clear();
    for memory in [&private, &shared] {
        memory.write(0..memory.pages());
        assert_eq!(memory.dirty().len(), memory.pages());
    }
    private.advise(0, private.bytes, libc::MADV_DONTNEED);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let file = shared.file.as_ref().unwrap().as_raw_fd();
    assert_eq!(unsafe { libc::fallocate(file, mode, 0, 2 << 21) }, 0);
    for memory in [&private, &shared] {
        assert_eq!(memory.dirty().len(), 0);
    }
}

/// Shared memory that the kernel swaps out loses the bits with the entries of the page table.
#[test]
fn shared_memory_that_is_swapped_out_loses_the_bit() {
    let Some(_one) = kernel_has_them() else {
        return;
    };
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    if swaps.lines().count() < 2 {
        aloud("NOT TESTED: soft-dirty bits of memory that is swapped out: no swap space");
        return;
    }
    let private = Memory::private(HUGE, libc::MADV_NOHUGEPAGE);
    let shared = Memory::shared(HUGE);
    clear();
    for memory in [&private, &shared] {
        memory.write(0..memory.pages());
        assert_eq!(memory.dirty().len(), memory.pages());
        memory.advise(0, memory.bytes, libc::MADV_PAGEOUT);
    }
    assert_eq!(private.dirty().len(), private.pages(), "private memory");
    let kept = shared.dirty().len();
    eprintln!("shared memory: {kept} of {} pages dirty", shared.pages());
    assert!(kept < shared.pages() / 2);
}

/// The bits of hugetlb memory are not cleared one by one: a write after clearing is not reported.
#[test]
fn hugetlb_memory_has_no_bits() {
    let Some(_one) = kernel_has_them() else {
        return;
    };
    let Some(_pages) = HugePages::reserve(2) else {
        return;
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let memory = Memory::map(2 * HUGE, flags, None);
    memory.write(0..memory.pages());
    clear();
    memory.write(0..memory.pages());
    assert_eq!(memory.dirty().len(), 0);
}

/// One write to a transparent huge page makes 512 pages dirty, in each round.
#[test]
fn one_write_makes_a_huge_page_dirty() {
    let Some(_one) = kernel_has_them() else {
        return;
    };
    let memory = Memory::private(4 * HUGE, libc::MADV_HUGEPAGE);
    memory.write(0..memory.pages());
    let usage = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let huge = usage
        .lines()
        .find(|line| line.starts_with("AnonHugePages:"));
    if huge.is_none_or(|line| line.split_whitespace().nth(1) == Some("0")) {
        aloud("NOT TESTED: soft-dirty bits of transparent huge pages: the kernel gave none");
        return;
    }
    for _ in 0..3 {
        clear();
        memory.write(1024..1025);
        let dirty = memory.dirty();
        eprintln!("one write: {} dirty pages", dirty.len());
        assert!(dirty.contains(&1024));
        assert_eq!(dirty.len(), HUGE / PAGE);
    }
}

/// How long reading and clearing take: the guest would have to be paused for both. This runs on
/// kernels without the bits, too: they walk the page tables as well.
#[test]
#[ignore = "a measurement, for a quiet machine"]
fn what_reading_and_clearing_cost() {
    let memory = Memory::private(1 << 30, libc::MADV_NOHUGEPAGE);
    let mut entries = vec![1; memory.pages() * 8];
    let at = (memory.start.addr() / PAGE * 8) as u64;
    for _ in 0..5 {
        memory.write(0..memory.pages());
        let begin = Instant::now();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, at).unwrap();
        let read = begin.elapsed();
        clear();
        let cleared = begin.elapsed() - read;
        eprintln!("1 GiB: read in {read:.1?}, cleared in {cleared:.1?}");
    }
}
