//! The cost of taking a log, of unmapping and of ageing: `cargo bench -p hikkoshi-ept --bench
//! cost`.
//!
//! The tables are real tables in this machine's memory, but no processor runs on them. The effects
//! of a vCPU (an exit for the first write to a page, a dirty flag, a full log) are produced before
//! the measurement. The TLB flush is not measured either; it costs the same with every method. Uses
//! 300 MB of memory.
#![allow(missing_docs, clippy::unwrap_used)] // what criterion's macros make

mod common;

use std::time::Duration;

use common::{GIB, Host, PAGES_16_GIB, dirty, dirty_in, guest, take_by_walking, timed, use_pages};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use hikkoshi_ept::{Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping, View};

fn take_all(guest: &Guest<Host>, expected: u64) {
    let mut pages = 0;
    let taken = guest
        .take_log(guest.all(), &(), &mut |run| pages += run.len())
        .unwrap();
    assert_eq!((taken, pages), (expected, expected));
}

const LOG_METHODS: [(&str, LogMethod); 3] = [
    ("write protection", LogMethod::WriteProtection),
    ("page-modification log", LogMethod::Pml),
    ("dirty flags", LogMethod::DirtyFlags),
];

/// By the number of dirty pages, in 16 GiB of guest memory.
fn take_by_dirty_pages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("take by dirty pages");
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1000));
    let counts = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, PAGES_16_GIB];
    for (name, method) in LOG_METHODS {
        let guest = guest(PAGES_16_GIB, Level::Size4K);
        let vcpu = guest.add_vcpu().unwrap();
        guest.start_log(method, guest.all(), &()).unwrap();
        for count in counts {
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter_custom(|rounds| {
                    timed(
                        rounds,
                        || dirty(&guest, vcpu, count),
                        || take_all(&guest, count),
                    )
                });
            });
        }
    }
    let guest = guest(PAGES_16_GIB, Level::Size4K);
    let vcpu = guest.add_vcpu().unwrap();
    guest
        .start_log(LogMethod::DirtyFlags, guest.all(), &())
        .unwrap();
    for count in counts {
        group.bench_function(BenchmarkId::new("walk of all tables", count), |bencher| {
            bencher.iter_custom(|rounds| {
                let work = || assert_eq!(take_by_walking(&guest), count);
                timed(rounds, || dirty(&guest, vcpu, count), work)
            });
        });
    }
    group.finish();
}

/// By the size of the guest, with 1,000 dirty pages: spread over the whole guest, or (as a control)
/// over its first GiB, so that they are as dense as in the smallest guest.
fn take_by_guest_size(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("take by guest size");
    group.sample_size(30);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1000));
    const COUNT: u64 = 1000;
    for gib in [1, 2, 4, 8, 16, 32] {
        for (name, method) in LOG_METHODS {
            let guest = guest(gib * GIB, Level::Size4K);
            let vcpu = guest.add_vcpu().unwrap();
            guest.start_log(method, guest.all(), &()).unwrap();
            let mut take = |name: String, pages: u64| {
                group.bench_function(BenchmarkId::new(name, gib), |bencher| {
                    bencher.iter_custom(|rounds| {
                        timed(
                            rounds,
                            || dirty_in(&guest, vcpu, COUNT, pages),
                            || take_all(&guest, COUNT),
                        )
                    });
                });
            };
            take(name.into(), gib * GIB);
            if method != LogMethod::DirtyFlags {
                take(format!("{name}, all in 1 GiB"), GIB);
                continue;
            }
            group.bench_function(BenchmarkId::new("walk of all tables", gib), |bencher| {
                bencher.iter_custom(|rounds| {
                    let work = || assert_eq!(take_by_walking(&guest), COUNT);
                    timed(rounds, || dirty(&guest, vcpu, COUNT), work)
                });
            });
        }
    }
    group.finish();
}

/// Unmapping 2 MiB and 1 GiB, as one range and page by page.
fn unmap(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("unmap");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1000));
    let regions = [("2 MiB", 512, Level::Size2M), ("1 GiB", GIB, Level::Size1G)];
    for (region, pages, max_level) in regions {
        for (leaves, max_level) in [("superpage", max_level), ("4 KiB leaves", Level::Size4K)] {
            let guest = guest(GIB, max_level);
            let range = GfnRange::from_len(Gfn::new(0), pages);
            let mapping = Mapping {
                max_level,
                ..Mapping::ram(range, HostFrame::new(1 << 30))
            };
            let remap = || guest.map(View::MAIN, &mapping).unwrap();
            let flush = guest.unmap(View::MAIN, range);
            guest.flush(flush, &());
            let name = |how: &str| format!("{region} of {leaves}, {how}");
            group.bench_function(name("as a range"), |bencher| {
                bencher.iter_custom(|rounds| {
                    timed(rounds, remap, || {
                        let flush = guest.unmap(View::MAIN, range);
                        guest.flush(flush, &());
                    })
                });
            });
            group.bench_function(name("page by page"), |bencher| {
                bencher.iter_custom(|rounds| {
                    let work = || {
                        for page in range.iter() {
                            page_by_page(&guest, page, max_level);
                        }
                    };
                    timed(rounds, remap, work)
                });
            });
            // For a superpage, a call for each page would first split it, which is different work.
            if max_level == Level::Size4K {
                group.bench_function(name("a call a page"), |bencher| {
                    bencher.iter_custom(|rounds| {
                        let work = || {
                            for page in range.iter() {
                                let page = GfnRange::from_len(page, 1);
                                let flush = guest.unmap(View::MAIN, page);
                                guest.flush(flush, &());
                            }
                        };
                        timed(rounds, remap, work)
                    });
                });
            }
        }
    }
    group.finish();
}

/// Ageing 2 MiB and 1 GiB in which every page or superpage was used: as one range, by guest frame
/// in all views, and with one call for each page.
fn age(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("age");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(1000));
    let regions = [("2 MiB", 512, Level::Size2M), ("1 GiB", GIB, Level::Size1G)];
    for (region, pages, max_level) in regions {
        for (leaves, max_level) in [("superpage", max_level), ("4 KiB leaves", Level::Size4K)] {
            let guest = guest(GIB, max_level);
            let range = GfnRange::from_len(Gfn::new(0), pages);
            let used = || use_pages(&guest, range);
            let every = |found: u64| assert_eq!(found, pages);
            let name = |how: &str| format!("{region} of {leaves}, {how}");
            group.bench_function(name("as a range"), |bencher| {
                bencher.iter_custom(|rounds| {
                    timed(rounds, used, || {
                        let mut found = 0;
                        let mut note = |span: GfnRange| found += span.intersect(range).len();
                        let flush = guest.age(View::MAIN, range, &mut note).unwrap();
                        guest.flush(flush, &());
                        every(found);
                    })
                });
            });
            group.bench_function(name("as a range of all views"), |bencher| {
                bencher.iter_custom(|rounds| {
                    timed(rounds, used, || {
                        let mut found = 0;
                        let mut note = |span: GfnRange| found += span.intersect(range).len();
                        let flush = guest.age_all_views(range, &mut note).unwrap();
                        guest.flush(flush, &());
                        every(found);
                    })
                });
            });
            group.bench_function(name("page by page"), |bencher| {
                bencher.iter_custom(|rounds| {
                    timed(rounds, used, || {
                        let mut found = 0;
                        for page in range.iter() {
                            let page = GfnRange::from_len(page, 1);
                            let mut note = |span: GfnRange| found += span.intersect(range).len();
                            let flush = guest.age(View::MAIN, page, &mut note).unwrap();
                            guest.flush(flush, &());
                        }
                        every(found);
                    })
                });
            });
        }
    }
    group.finish();
}

/// Does what an invalidation without ranges does for each 4 KiB page: looks up the page at every
/// leaf size and unmaps what it finds.
fn page_by_page(guest: &Guest<Host>, page: Gfn, max_level: Level) {
    for level in Level::LEAVES {
        let found = guest.lookup(View::MAIN, page.align_down(level)).unwrap();
        if found.level == level && found.host.is_some() {
            let span = GfnRange::from_len(page.align_down(level), level.pages());
            let flush = guest.unmap(View::MAIN, span);
            guest.flush(flush, &());
            assert!(level <= max_level);
        }
    }
}

criterion_group!(benches, take_by_dirty_pages, take_by_guest_size, unmap, age);
criterion_main!(benches);
