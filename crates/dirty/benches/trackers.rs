//! The trackers side by side, for a guest under KVM whose processor writes: `cargo bench -p
//! hikkoshi-dirty --bench trackers`. Needs root and /dev/kvm, 2 GiB of memory (18 GiB for all of
//! it), and some minutes.

// The unsafe blocks describe memory of this program.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;
#[path = "../tests/common/kvm_guest.rs"]
mod kvm_guest;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main,
};
use hikkoshi_dirty::kvm::KvmLog;
use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_linux::host_memory_available;
use hikkoshi_pages::{PAGE_BYTES, Page, PageRange};
use hikkoshi_userfault::{Features, Userfault};
use kvm_guest::{KvmGuest, Shape};

type Group<'a> = BenchmarkGroup<'a, WallTime>;

const GIB: u64 = 1 << 30;

/// The largest ring that KVM offers.
const ENTRIES: u32 = 65_536;

#[derive(Clone, Copy, PartialEq)]
enum Tracker {
    Off,
    Pagemap,
    Bitmap,
    ManualProtect,
    Ring,
}

const TRACKERS: [(&str, Tracker); 4] = [
    ("pagemap", Tracker::Pagemap),
    ("KVM bitmap", Tracker::Bitmap),
    ("KVM manual protect", Tracker::ManualProtect),
    ("KVM ring", Tracker::Ring),
];

/// A guest with one block of RAM and one processor, and its log.
struct Logged {
    log: Option<Arc<dyn DirtyLog>>,
    guest: KvmGuest,
}

impl Logged {
    fn new(tracker: Tracker, bytes: u64, slot_bytes: u64) -> Self {
        let guest = KvmGuest::new(&Shape {
            blocks: &[bytes],
            slot_pages: slot_bytes / PAGE_BYTES,
            vcpus: 1,
            ring: (tracker == Tracker::Ring).then_some(ENTRIES),
        });
        let kvm = |log: KvmLog| {
            let log = Arc::new(log);
            guest.monitor().log.set(Arc::clone(&log)).unwrap();
            log as Arc<dyn DirtyLog>
        };
        let log: Option<Arc<dyn DirtyLog>> = match tracker {
            Tracker::Off => None,
            Tracker::Pagemap => {
                let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG).unwrap();
                let log = PagemapLog::start(Arc::new(userfault), &guest.layout, &guest.hosts());
                Some(Arc::new(log.unwrap()))
            }
            Tracker::Bitmap => Some(kvm(KvmLog::bitmap(guest.slots()).unwrap())),
            Tracker::ManualProtect => Some(kvm(KvmLog::manual_protect(guest.slots()).unwrap())),
            Tracker::Ring => {
                let rings = Arc::clone(guest.rings.as_ref().unwrap());
                Some(kvm(KvmLog::ring(guest.slots(), rings).unwrap()))
            }
        };
        Self { log, guest }
    }

    /// Makes so many pages dirty, spread evenly, and only these.
    fn dirty(&self, count: u64) {
        let step = self.guest.layout.pages() / count;
        self.guest.fill(0, Page::new(0), step, count, 1);
    }

    fn take(&self, range: PageRange) -> u64 {
        let mut pages = 0;
        if let Some(log) = &self.log {
            log.take(range, &mut |run| pages += run.len()).unwrap();
        }
        pages
    }

    fn take_all(&self) -> u64 {
        self.take(self.guest.layout.all())
    }

    /// Times rounds in which 1,000 pages are taken.
    fn take_a_thousand(&self, rounds: u64) -> Duration {
        let take = || assert_eq!(self.take_all(), 1_000);
        timed(rounds, 20, || self.dirty(1_000), take)
    }
}

/// Times `work` in rounds, each after `prepare`, which is not timed, and takes longer: so there are
/// at most `most` rounds. Returns `rounds` times the median. (Criterion warms up by the clock, so
/// the groups do that for 1 ms only: it would ask for more and more rounds.)
fn timed(rounds: u64, most: u64, mut prepare: impl FnMut(), mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..rounds.min(most))
        .map(|_| {
            prepare();
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] * u32::try_from(rounds).unwrap()
}

fn group<'a>(criterion: &'a mut Criterion, name: &str, millis: u64) -> Group<'a> {
    let mut group = criterion.benchmark_group(format!("trackers, {name}"));
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(1));
    group.measurement_time(Duration::from_millis(millis));
    group
}

/// By the number of dirty pages, in a guest of 1 GiB that has all its memory.
fn take_by_dirty_pages(criterion: &mut Criterion) {
    let mut group = group(criterion, "take by dirty pages", 200);
    for (name, tracker) in TRACKERS {
        let logged = Logged::new(tracker, GIB, GIB);
        let pages = logged.guest.layout.pages();
        logged.dirty(pages);
        logged.take_all();
        for count in [0, 1, 10, 100, 1_000, 10_000, 100_000, pages] {
            let most = if count < 100_000 { 20 } else { 3 };
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter_custom(|rounds| {
                    let prepare = || {
                        if count > 0 {
                            logged.dirty(count);
                        }
                    };
                    timed(rounds, most, prepare, || {
                        assert_eq!(logged.take_all(), count);
                    })
                });
            });
        }
    }
    group.finish();
}

/// By the size of the guest: 1,000 pages, spread over all of it; it has touched no others.
fn take_by_guest_size(criterion: &mut Criterion) {
    let mut group = group(criterion, "take by guest size", 200);
    for (name, tracker) in TRACKERS {
        for gibibytes in [1, 2, 4, 8, 16] {
            let logged = Logged::new(tracker, gibibytes * GIB, gibibytes * GIB);
            logged.take_all();
            group.bench_function(BenchmarkId::new(name, gibibytes), |bencher| {
                bencher.iter_custom(|rounds| logged.take_a_thousand(rounds));
            });
        }
    }
    group.finish();
}

/// By the memory that a guest of 16 GiB has touched: 1,000 pages are dirty, spread over all of it.
/// The largest is left out if the machine does not have the memory.
fn take_by_touched_memory(criterion: &mut Criterion) {
    const GUEST: u64 = 16;
    let mut group = group(criterion, "take by touched memory", 200);
    for (name, tracker) in [TRACKERS[0], TRACKERS[1]] {
        let logged = Logged::new(tracker, GUEST * GIB, GUEST * GIB);
        let mut touched = 0;
        for gibibytes in [0, 1, 4, GUEST] {
            if (gibibytes - touched) * GIB > host_memory_available().unwrap() / 10 * 9 {
                continue;
            }
            let pages = |gibibytes| gibibytes * GIB / PAGE_BYTES;
            let first = Page::new(pages(touched));
            let count = pages(gibibytes) - pages(touched);
            if count > 0 {
                logged.guest.fill(0, first, 1, count, 1);
            }
            touched = gibibytes;
            logged.take_all();
            group.bench_function(BenchmarkId::new(name, gibibytes), |bencher| {
                bencher.iter_custom(|rounds| logged.take_a_thousand(rounds));
            });
        }
    }
    group.finish();
}

/// One pass over a guest of 16 GiB with 1,000 dirty pages, in ranges of so many MiB: 2, as pre-copy
/// takes the log, and 128. The RAM is in slots of so many GiB.
fn pass_in_ranges(criterion: &mut Criterion) {
    let mut group = group(criterion, "pass in ranges", 500);
    for (name, tracker) in TRACKERS {
        for slot in [16, 1] {
            let logged = Logged::new(tracker, 16 * GIB, slot * GIB);
            logged.take_all();
            for mebibytes in [2, 128] {
                let range = (mebibytes << 20) / PAGE_BYTES;
                let name = format!("{name}, slots of {slot} GiB");
                group.bench_function(BenchmarkId::new(name, mebibytes), |bencher| {
                    bencher.iter_custom(|rounds| {
                        let pass = || {
                            for part in logged.guest.layout.all().chunks(range) {
                                logged.take(part);
                            }
                        };
                        timed(rounds, 3, || logged.dirty(1_000), pass)
                    });
                });
            }
        }
    }
    group.finish();
}

/// One pass over 2 GiB in 8 slots, with 100,000 dirty pages, by several threads, each of which
/// takes every second or fourth range of 32 MiB.
fn take_by_threads(criterion: &mut Criterion) {
    const RANGE: u64 = (32 << 20) / PAGE_BYTES;
    const DIRTY: u64 = 100_000;
    let mut group = group(criterion, "take by threads", 500);
    for (name, tracker) in TRACKERS {
        let logged = Logged::new(tracker, 2 * GIB, GIB / 4);
        logged.take_all();
        for threads in [1, 2, 4] {
            group.bench_function(BenchmarkId::new(name, threads), |bencher| {
                bencher.iter_custom(|rounds| {
                    let log = logged.log.as_deref().unwrap();
                    let all = logged.guest.layout.all();
                    let take = |thread| {
                        for range in all.chunks(RANGE).skip(thread).step_by(threads) {
                            log.take(range, &mut |_| ()).unwrap();
                        }
                    };
                    let work = || {
                        thread::scope(|scope| {
                            for thread in 0..threads {
                                scope.spawn(move || take(thread));
                            }
                        });
                    };
                    timed(rounds, 9, || logged.dirty(DIRTY), work)
                });
            });
        }
    }
    group.finish();
}

/// What the guest pays: the time of a write to each of 50,000 pages, clean ones and dirty ones.
fn write(criterion: &mut Criterion) {
    const PAGES: u64 = 50_000;
    let mut group = group(criterion, "writes", 500);
    for (name, tracker) in [("no log", Tracker::Off)].into_iter().chain(TRACKERS) {
        let logged = Logged::new(tracker, GIB, GIB);
        logged.dirty(PAGES);
        for (what, clean) in [("clean pages", true), ("dirty pages", false)] {
            group.bench_function(format!("{what}, {name}"), |bencher| {
                bencher.iter_custom(|rounds| {
                    let prepare = || {
                        if clean {
                            logged.take_all();
                        }
                    };
                    timed(rounds, 5, prepare, || logged.dirty(PAGES))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(
    benches,
    take_by_dirty_pages,
    take_by_guest_size,
    take_by_touched_memory,
    pass_in_ranges,
    take_by_threads,
    write
);
criterion_main!(benches);
