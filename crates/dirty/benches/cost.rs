//! The cost of tracking for the tracker on this machine: `cargo bench -p hikkoshi-dirty`. Needs
//! root.

// The unsafe blocks are accesses to a mapping of this program. The results are printed.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;

use std::os::fd::AsRawFd;
use std::time::Instant;

use common::{Target, map_shared, memory_file};
use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, RemoteUserfault};

const BYTES: u64 = 1 << 30;

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
    let layout = RamLayout::new(vec![RamBlock {
        id: "ram".to_owned(),
        bytes: BYTES,
        host_page: PAGE_BYTES,
        guest: Vec::new(),
    }])
    .unwrap();
    let taken = RemoteUserfault::create(target.pid, Features::FOR_DIRTY_LOG).unwrap();
    let start = Instant::now();
    let hosts = [HostAddr(shared.get(ADDRESS))];
    let log = PagemapLog::start(taken.userfault().clone(), &layout, &hosts).unwrap();
    println!("1 GiB: start {:?}", start.elapsed());
    for (what, every, run) in [
        ("1 page in 10,000", 10_000, 1),
        ("1 page in 100", 100, 1),
        ("1 page in 3", 3, 1),
        ("every page", 1, 1),
        ("64 pages in 4096", 4096, 64),
    ] {
        fill(every, run);
        for what in [what, "nothing"] {
            let start = Instant::now();
            log.count(layout.all()).unwrap();
            let count = start.elapsed();
            let (mut pages, mut runs) = (0, 0);
            let start = Instant::now();
            log.take(layout.all(), &mut |run: PageRange| {
                pages += run.len();
                runs += 1;
            })
            .unwrap();
            println!(
                "{what} written: take {:?} ({pages} pages, {runs} runs), count {count:?}",
                start.elapsed()
            );
        }
    }
    let start = Instant::now();
    log.stop().unwrap();
    println!("stop {:?}", start.elapsed());
    taken.close_remote().unwrap();
}
