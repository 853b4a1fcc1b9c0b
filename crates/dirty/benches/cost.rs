//! The cost of tracking for the tracker on this machine: `cargo bench -p hikkoshi-dirty`. Needs
//! root.

// The unsafe blocks are accesses to a mapping of this program. The results are printed.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Target, map_shared, memory_file};
use hikkoshi_dirty::{DirtyLog, PagemapLog, Scan};
use hikkoshi_linux::{HostAddr, Pagemap};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, RemoteUserfault};

const BYTES: u64 = 1 << 30;

/// Pages of a range: 128 MiB, as for a paused guest.
const RANGE: u64 = 32 << 10;

/// How often each time is measured. The median is printed.
const ROUNDS: usize = 9;

/// How often both logs are measured.
const PAIRS: usize = 3;

/// Indices of words in the shared page: the address of the memory; the number of fills that are
/// requested and done; the distance between runs of pages, and the length of a run.
const ADDRESS: usize = 0;
const WANTED: usize = 1;
const DONE: usize = 2;
const EVERY: usize = 3;
const RUN: usize = 4;

fn main() {
    let file = memory_file(BYTES, false);
    let fd = file.as_raw_fd();
    let target = Target::spawn(|shared| {
        let length = usize::try_from(BYTES).unwrap();
        let memory = map_shared(length, fd);
        shared.set(ADDRESS, memory.expose_provenance() as u64);
        for done in 1.. {
            shared.set(DONE, done);
            shared.wait(WANTED, done);
            let [every, run] = [EVERY, RUN].map(|word| usize::try_from(shared.get(word)).unwrap());
            for first in (0..length / PAGE_SIZE).step_by(every) {
                for page in first..(first + run).min(length / PAGE_SIZE) {
                    unsafe { memory.add(page * PAGE_SIZE).write_volatile(1) };
                }
            }
        }
        0
    });
    let shared = target.shared;
    let fill = |every: u64, run: u64| {
        shared.set(EVERY, every);
        shared.set(RUN, run);
        let wanted = shared.add(WANTED, 1) + 1;
        shared.wait(DONE, wanted + 1);
    };
    shared.wait(DONE, 1);
    fill(1, 1);
    let layout = RamLayout::new(vec![RamBlock::new("ram", BYTES, PAGE_BYTES)]).unwrap();
    let hosts = [HostAddr(shared.get(ADDRESS))];
    // The second: as on a kernel that does not report holes. In turn, because other programs
    // disturb.
    let logs = [("", true), (", with a scan for holes", false)];
    for (how, reports_holes) in logs.into_iter().cycle().take(2 * PAIRS) {
        let taken = RemoteUserfault::create(target.pid, Features::FOR_DIRTY_LOG).unwrap();
        let start = Instant::now();
        let userfault = taken.userfault().clone();
        let kernel = |pagemap: Arc<Pagemap>| -> Arc<dyn Scan> { pagemap };
        let log =
            PagemapLog::start_with(userfault, &layout, &hosts, reports_holes, kernel).unwrap();
        log.protect(layout.all()).unwrap();
        println!("1 GiB{how}: start {:?}", start.elapsed());
        measure(&log, &layout, &fill);
        let start = Instant::now();
        log.stop().unwrap();
        println!("stop {:?}", start.elapsed());
        taken.close_remote().unwrap();
    }
}

/// Prints how long it takes to read the log, by what was written.
fn measure(log: &PagemapLog, layout: &RamLayout, fill: &dyn Fn(u64, u64)) {
    for (what, every, run) in [
        ("1 page in 10,000", 10_000, 1),
        ("1 page in 100", 100, 1),
        ("1 page in 3", 3, 1),
        ("every page", 1, 1),
        ("64 pages in 4096", 4096, 64),
    ] {
        let mut takes: Vec<(Duration, u64)> = (0..ROUNDS)
            .map(|_| {
                fill(every, run);
                take(log, layout)
            })
            .collect();
        takes.sort_unstable();
        let (median, pages) = takes[ROUNDS / 2];
        let mut clean: Vec<_> = (0..ROUNDS).map(|_| take(log, layout).0).collect();
        clean.sort_unstable();
        fill(every, run);
        let start = Instant::now();
        log.count(layout.all()).unwrap();
        let count = start.elapsed();
        take(log, layout);
        println!(
            "{what} written: take {median:?} ({pages} pages), clean {:?}, count {count:?}",
            clean[ROUNDS / 2]
        );
    }
}

/// Takes all of the log, in ranges as pre-copy does. Returns the time, and the number of pages.
fn take(log: &PagemapLog, layout: &RamLayout) -> (Duration, u64) {
    let mut pages = 0;
    let start = Instant::now();
    for range in layout.all().chunks(RANGE) {
        log.take(range, &mut |run: PageRange| pages += run.len())
            .unwrap();
    }
    (start.elapsed(), pages)
}
