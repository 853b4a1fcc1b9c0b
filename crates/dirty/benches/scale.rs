//! What grows with the size of a guest, written or not: the log's start, take and stop, and the
//! bitmap of pages, at 64 GiB, 256 GiB and 1 TiB: `cargo bench -p hikkoshi-dirty --bench scale`.
//! Needs root and 2 GiB of memory: the guest's memory is a mapping of which little was touched. And
//! 8 GiB of memory that is all there, in pages of 4 KiB and in transparent huge pages.

// The unsafe blocks are accesses to a mapping of this program. The results are printed.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_BYTES, Page, PageBitmap, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, Userfault};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const GIB: u64 = 1 << 30;

/// Pages that exist, spread evenly: each has a page of page tables of its own.
const TOUCHED: u64 = 16_384;

/// Pages that are written before each take.
const WRITTEN: u64 = 1_000;

/// Each time is the median of so many.
const ROUNDS: usize = 9;

/// Memory of which only a part exists.
struct Sparse {
    start: NonNull<u8>,
    bytes: usize,
}

impl Sparse {
    /// In pages of 4 KiB, or in huge pages as far as the kernel has some.
    fn new(bytes: u64, pages: Advice) -> Self {
        let bytes = usize::try_from(bytes).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }.unwrap();
        // SAFETY: all of that mapping, which nothing uses yet.
        unsafe { madvise(start, bytes, pages) }.unwrap();
        let start = NonNull::new(start.cast()).unwrap();
        Self { start, bytes }
    }

    /// Writes to `count` pages, evenly over all of it.
    fn write(&self, count: u64) {
        let step = self.bytes as u64 / count / PAGE_BYTES * PAGE_BYTES;
        for number in 0..count {
            let offset = usize::try_from(number * step).unwrap();
            // SAFETY: `offset` is in the mapping, which only this program uses.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, of which no reference exists.
        unsafe { munmap(self.start.as_ptr().cast(), self.bytes) }.unwrap();
    }
}

fn main() {
    println!(
        "medians; {TOUCHED} pages exist, {WRITTEN} were written; * is in the downtime of post-copy"
    );
    for gib in [64, 256, 1024] {
        println!("{gib} GiB:");
        log(gib * GIB, TOUCHED, Advice::LinuxNoHugepage);
        bitmap(gib * GIB);
    }
    for (what, pages) in [
        ("pages of 4 KiB", Advice::LinuxNoHugepage),
        ("huge pages", Advice::LinuxHugepage),
    ] {
        println!("8 GiB, all of it there, {what}:");
        log(8 * GIB, 8 * GIB / PAGE_BYTES, pages);
    }
}

fn log(bytes: u64, touched: u64, pages: Advice) {
    let memory = Sparse::new(bytes, pages);
    memory.write(touched);
    let layout = RamLayout::new(vec![RamBlock::new("ram", bytes, PAGE_BYTES)]).unwrap();
    let hosts = [HostAddr(memory.start.as_ptr().expose_provenance() as u64)];
    let mut log = None;
    let start = median(
        &mut log,
        |log: &mut Option<PagemapLog>| drop(log.take()),
        |log| {
            let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG).unwrap();
            let started = PagemapLog::start(Arc::new(userfault), &layout, &hosts);
            *log = Some(started.unwrap());
        },
    );
    println!("  start a log                  {start:?}");
    let log = &log.unwrap();
    let take_part = |part| {
        let mut pages = 0;
        log.take(part, &mut |run: PageRange| pages += run.len())
            .unwrap();
        pages
    };
    let take = |threads: u64, expected: u64| {
        let all = layout.all();
        let size = all.len() / threads;
        let part = |nth| PageRange::from_len(Page::new(nth * size), size);
        let pages: u64 = thread::scope(|scope| {
            let started: Vec<_> = (0..threads)
                .map(|nth| scope.spawn(move || take_part(part(nth))))
                .collect();
            started.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert!(pages >= expected, "{pages}");
    };
    take(1, 0);
    for (what, threads, count) in [
        ("* take, nothing written", 1, 0),
        ("* the same, 2 threads", 2, 0),
        ("* the same, 4 threads", 4, 0),
        ("* take", 1, WRITTEN),
    ] {
        let prepare = |(): &mut ()| {
            if count > 0 {
                memory.write(count);
            }
        };
        let time = median(&mut (), prepare, |()| take(threads, count));
        println!("  {what:<28} {time:?}");
    }
    let began = Instant::now();
    log.stop().unwrap();
    println!("  stop, once                   {:?}", began.elapsed());
}

/// The bitmap of the pages that are owed.
fn bitmap(bytes: u64) {
    let pages = bytes / PAGE_BYTES;
    let nothing = |(): &mut ()| {};
    let time = median(&mut (), nothing, |()| {
        drop(PageBitmap::full(pages));
    });
    println!("  allocate a full bitmap       {time:?}");
    let owed = PageBitmap::empty(pages);
    for number in 0..WRITTEN {
        owed.set(Page::new(number * (pages / WRITTEN)));
    }
    let time = median(&mut (), nothing, |()| assert_eq!(owed.count(), WRITTEN));
    println!("  * count                      {time:?}");
    let time = median(&mut (), nothing, |()| {
        assert_eq!(owed.runs(owed.all()).count() as u64, WRITTEN);
    });
    println!("  * runs of owed pages         {time:?}");
}

fn median<S>(
    state: &mut S,
    mut prepare: impl FnMut(&mut S),
    mut work: impl FnMut(&mut S),
) -> Duration {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            prepare(state);
            let began = Instant::now();
            work(state);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}
