//! Invalidations by host address with 1, 32 and 512 memory slots, unmapping a large guest, what it
//! costs to start a log, and takes by several threads: `cargo bench -p hikkoshi-ept --bench
//! invalidation`. Uses 2 GB of memory.
#![allow(missing_docs, clippy::unwrap_used)] // what criterion's macros make

mod common;

use std::hint::black_box;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use common::{GIB, Host, PAGES_16_GIB, dirty, guest, protect_by_walking, timed};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use hikkoshi_ept::{
    FRAME_BYTES, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping, MemorySlot,
    MemorySlots, View,
};

/// The address of the guest's memory in the hypervisor.
const BASE: u64 = 0x7f00_0000_0000;

/// The pages of 128 GiB.
const PAGES_128_GIB: u64 = 128 * GIB;

/// A guest's memory in `count` slots of the same size. Each is a mapping of the hypervisor's, with
/// a page between two of them that is not the guest's.
fn slots(pages: u64, count: u64) -> Vec<MemorySlot> {
    let each = pages / count;
    let slot = |number| MemorySlot {
        host: BASE + number * (each + 1) * FRAME_BYTES,
        guest: GfnRange::from_len(Gfn::new(number * each), each),
    };
    (0..count).map(slot).collect()
}

/// The guest frames at `host`, found by looking at each slot.
fn scan(slots: &[MemorySlot], host: &Range<u64>, found: &mut dyn FnMut(GfnRange)) {
    for slot in slots {
        let end = slot.host + slot.guest.len() * FRAME_BYTES;
        let (first, last) = (host.start.max(slot.host), host.end.min(end));
        if first < last {
            let start = slot.guest.start().plus((first - slot.host) / FRAME_BYTES);
            let end = (last - slot.host).div_ceil(FRAME_BYTES);
            found(GfnRange::new(start, slot.guest.start().plus(end)));
        }
    }
}

/// Which guest frames an invalidation means, and unmapping them: a page in the last slot, one that
/// is in no slot, and 64 MiB, which are in several if there are many.
fn by_host_address(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("by host address");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(500));
    let guest = guest(PAGES_16_GIB, Level::Size4K);
    for count in [1, 32, 512] {
        let all = slots(PAGES_16_GIB, count);
        let index = MemorySlots::new(&all).unwrap();
        let last = all.last().unwrap();
        let page = last.host..last.host + FRAME_BYTES;
        let nobodys = BASE + (64 << 30)..BASE + (64 << 30) + FRAME_BYTES;
        for (what, host) in [("find a page", &page), ("find nothing", &nobodys)] {
            group.bench_function(
                BenchmarkId::new(format!("{what}, index"), count),
                |bencher| {
                    bencher.iter(|| index.frames_at(black_box(host.clone())).count());
                },
            );
            group.bench_function(
                BenchmarkId::new(format!("{what}, scan"), count),
                |bencher| {
                    bencher.iter(|| {
                        let mut found = 0;
                        scan(black_box(&all), black_box(host), &mut |_| found += 1);
                        found
                    });
                },
            );
        }
        // Across the first slots.
        let large = BASE + (1 << 20)..BASE + (65 << 20);
        let frames: Vec<_> = index.frames_at(large.clone()).collect();
        let remap = || {
            for range in &frames {
                map(&guest, *range, Level::Size4K);
            }
        };
        let flush = guest.unmap_host(&index, large.clone());
        guest.flush(flush, &());
        group.bench_function(BenchmarkId::new("unmap 64 MiB, index", count), |bencher| {
            bencher.iter_custom(|rounds| {
                timed(rounds, remap, || {
                    let flush = guest.unmap_host(&index, large.clone());
                    guest.flush(flush, &());
                })
            });
        });
        remap();
    }
    group.finish();
}

fn map(guest: &Guest<Host>, range: GfnRange, max_level: Level) {
    let host = HostFrame::new((1 << 30) + range.start().index());
    let mapping = Mapping {
        max_level,
        ..Mapping::ram(range, host)
    };
    guest.map(View::MAIN, &mapping).unwrap();
}

/// Unmapping a guest of 128 GiB as a whole.
fn unmap_128_gib(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("unmap 128 GiB");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(1));
    group.measurement_time(Duration::from_millis(1));
    for (leaves, max_level) in [
        ("1 GiB leaves", Level::Size1G),
        ("2 MiB leaves", Level::Size2M),
        ("4 KiB leaves", Level::Size4K),
    ] {
        let guest = guest(PAGES_128_GIB, max_level);
        let unmap = || {
            let flush = guest.unmap(View::MAIN, guest.all());
            guest.flush(flush, &());
        };
        unmap();
        group.bench_function(leaves, |bencher| {
            bencher
                .iter_custom(|rounds| timed(rounds, || map(&guest, guest.all(), max_level), unmap));
        });
    }
    group.finish();
}

/// Starting a log for 16 GiB: the first protection of all leaves, which the reverse map finds;
/// beside a walk of all tables that protects them.
fn start(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("start a log");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(1));
    group.measurement_time(Duration::from_millis(500));
    for (leaves, max_level) in [
        ("2 MiB leaves", Level::Size2M),
        ("4 KiB leaves", Level::Size4K),
    ] {
        let guest = guest(PAGES_16_GIB, max_level);
        let _vcpu = guest.add_vcpu().unwrap();
        for (name, method) in [
            ("write protection", LogMethod::WriteProtection),
            ("page-modification log", LogMethod::Pml),
        ] {
            group.bench_function(BenchmarkId::new(name, leaves), |bencher| {
                bencher.iter_custom(|rounds| {
                    let stop = || {
                        if guest.log_method().is_some() {
                            guest.stop_log(guest.all(), &()).unwrap();
                        }
                    };
                    let start = || guest.start_log(method, guest.all(), &()).unwrap();
                    let time = timed(rounds, stop, start);
                    stop();
                    time
                });
            });
        }
        group.bench_function(BenchmarkId::new("walk of all tables", leaves), |bencher| {
            bencher.iter_custom(|rounds| {
                let writable = || protect_by_walking(&guest, true);
                timed(rounds, writable, || protect_by_walking(&guest, false))
            });
        });
        protect_by_walking(&guest, true);
    }
    group.finish();
}

/// Taking a log with a million dirty pages, by several threads that take parts of 128 MiB in turn.
/// A take holds no lock.
fn take_by_threads(criterion: &mut Criterion) {
    const DIRTY: u64 = 1_000_000;
    const PART: u64 = GIB / 8;
    let mut group = criterion.benchmark_group("take by threads");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1000));
    let guest = guest(PAGES_16_GIB, Level::Size4K);
    let vcpu = guest.add_vcpu().unwrap();
    guest.start_log(LogMethod::Pml, guest.all(), &()).unwrap();
    for threads in [1, 2, 4] {
        let take = |number: u64| {
            let parts = (number..PAGES_16_GIB / PART).step_by(threads);
            let mut pages = 0;
            for part in parts {
                let range = GfnRange::from_len(Gfn::new(part * PART), PART);
                pages += guest.take_log(range, &(), &mut |_| {}).unwrap();
            }
            pages
        };
        group.bench_function(threads.to_string(), |bencher| {
            bencher.iter_custom(|rounds| {
                let work = || {
                    let pages: u64 = thread::scope(|scope| {
                        let others: Vec<_> = (1..threads as u64)
                            .map(|number| scope.spawn(move || take(number)))
                            .collect();
                        let own = take(0);
                        own + others
                            .into_iter()
                            .map(|one| one.join().unwrap())
                            .sum::<u64>()
                    });
                    assert_eq!(pages, DIRTY);
                };
                timed(rounds, || dirty(&guest, vcpu, DIRTY), work)
            });
        });
    }
    group.finish();
}

criterion_group!(
    benches,
    by_host_address,
    unmap_128_gib,
    start,
    take_by_threads
);
criterion_main!(benches);
