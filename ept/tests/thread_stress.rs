//! Stress test with threads: vCPUs fault, map and write in three views while the log is taken,
//! stopped and restarted with other methods, and pages are unmapped, protected, split and merged.
//! At the end the copy equals the memory.
#![cfg(not(loom))]
// Helpers outside the test functions: an unwrap that fails is a test failure too.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, ExitQualification, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, MapError,
    Mapping, Permissions, SplitError, StartError, TakeError, VcpuError, View, ViolationOutcome,
};

const PAGES: u64 = 2048;
const HOST: u64 = 1 << 18;
/// Two vCPUs in the main view, one in a second view, one in a nested view.
const CPUS: usize = 4;
/// Address of guest frame 0 in the nested view.
const SHIFT: u64 = 1 << 20;
const WRITES: u64 = 60_000;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// A view, and its address of guest frame 0.
#[derive(Clone, Copy)]
struct ViewOffset {
    view: View,
    shift: u64,
}

const MAIN: ViewOffset = ViewOffset {
    view: View::MAIN,
    shift: 0,
};

/// Writes to one page in a view. Maps the page first if it is not mapped, sometimes as a superpage.
fn write(
    machine: &Machine<'_, &TestMemory>,
    (guest, in_view): (&Guest<&TestMemory>, ViewOffset),
    cpu: usize,
    page: u64,
    then: &dyn Fn(),
) {
    let address = (page + in_view.shift) << 12;
    loop {
        match machine.access(cpu, address, Access::Write, |_| then()) {
            Ok(()) => return,
            Err(AccessError::Violation(ViolationOutcome::Absent(at))) => {
                assert_eq!(at.index(), page + in_view.shift);
                let gfn = Gfn::new(page);
                let first = gfn.align_down(Level::Size2M);
                let large = GfnRange::from_len(first, Level::Size2M.pages()).intersect(guest.all());
                let one = GfnRange::from_len(gfn, 1);
                let range = if page.is_multiple_of(3) { large } else { one };
                let mapping = Mapping::ram(range, HostFrame::new(HOST + range.start().index()));
                let mapped = if in_view.shift == 0 {
                    guest.map(in_view.view, &mapping)
                } else {
                    guest.map_nested(in_view.view, range.start().plus(in_view.shift), &mapping)
                };
                match mapped {
                    // No frame is free at the moment because detached tables are not freed yet, or
                    // a neighbouring page is protected.
                    Ok(()) | Err(MapError::NoMemory(_) | MapError::Occupied(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            // The page is protected, or cannot be split, at the moment.
            Err(AccessError::Violation(
                ViolationOutcome::Denied(_) | ViolationOutcome::NoMemory(_),
            )) => {
                thread::yield_now();
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Stops the log of a part or of everything, and starts it again, for everything with another
/// method. Writes in between are not logged, so all of these pages are marked dirty.
fn restart(guest: &Guest<&TestMemory>, machine: &Machine<'_, &TestMemory>, seed: &mut u64) {
    let part = GfnRange::from_len(Gfn::new(next(seed) % PAGES), 700).intersect(guest.all());
    let (range, method) = match (next(seed) % 4, guest.log_method()) {
        (0, Some(method)) => (part, method),
        (1, _) => (guest.all(), LogMethod::DirtyFlags),
        (2, _) => (guest.all(), LogMethod::Pml),
        _ => (guest.all(), LogMethod::WriteProtection),
    };
    guest.stop_log(range, machine).unwrap();
    while let Err(error) = guest.start_log(method, range, machine) {
        assert_eq!(error, StartError::NoMemory);
    }
    guest.mark_dirty(range);
}

/// Splits, merges and protects leaves, in the main view or the nested view.
fn reshape(
    guest: &Guest<&TestMemory>,
    machine: &Machine<'_, &TestMemory>,
    in_view: ViewOffset,
    seed: &mut u64,
) {
    let at = Gfn::new(next(seed) % PAGES + in_view.shift);
    match guest.split(in_view.view, at, Level::Size4K) {
        Ok(flush) => guest.flush(flush, machine),
        Err(error) => assert!(matches!(error, SplitError::NoMemory(_))),
    }
    let at = Gfn::new(next(seed) % PAGES + in_view.shift).align_down(Level::Size2M);
    if let Ok(flush) = guest.merge(in_view.view, at, Level::Size2M) {
        guest.flush(flush, machine);
    }
    let range = GfnRange::from_len(Gfn::new(next(seed) % PAGES + in_view.shift), 30);
    for permissions in [Permissions::Read, Permissions::All] {
        loop {
            let (flush, done) = guest.protect(in_view.view, range, permissions);
            guest.flush(flush, machine);
            if done.is_ok() {
                break;
            }
        }
    }
}

fn run(method: LogMethod) {
    let ram = TestMemory::new(300);
    let free = ram.free_frames();
    {
        let guest = Guest::new(&ram, PAGES + 20, CPUS + 1, Capabilities::ALL).unwrap();
        let machine = Machine::new(&guest, CPUS).unwrap();
        let second = guest.add_view().unwrap();
        let nested = guest.add_nested_view().unwrap();
        assert!(machine.enter_view(CPUS - 2, second));
        assert!(machine.enter_view(CPUS - 1, nested));
        let second = ViewOffset {
            view: second,
            shift: 0,
        };
        let nested = ViewOffset {
            view: nested,
            shift: SHIFT,
        };
        let memory: Vec<_> = (0..PAGES + 20).map(|_| AtomicU64::new(0)).collect();
        let copy: Vec<_> = (0..PAGES + 20).map(|_| AtomicU64::new(0)).collect();
        let running = AtomicBool::new(true);
        let take = |range: GfnRange| {
            let mut pages = Vec::new();
            match guest.take_log(range, &machine, &mut |run| pages.extend(run.iter())) {
                Ok(count) => assert_eq!(count, pages.len() as u64),
                Err(TakeError::Off) => assert_eq!(pages, []),
            }
            for page in pages.into_iter().map(|page| page.index() as usize) {
                copy[page].store(memory[page].load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        guest.start_log(method, guest.all(), &machine).unwrap();
        let (guest, machine, memory, running, take) = (&guest, &machine, &memory, &running, &take);
        thread::scope(|scope| {
            let vcpus: Vec<_> = (0..CPUS)
                .map(|cpu| {
                    let in_view = match cpu + 2 {
                        CPUS => second,
                        number if number > CPUS => nested,
                        _ => MAIN,
                    };
                    scope.spawn(move || {
                        let mut seed = 88_172_645_463_325_252 + cpu as u64;
                        for number in 1..=WRITES {
                            let page = next(&mut seed) % PAGES;
                            let store = || {
                                memory[page as usize]
                                    .store(number << 8 | cpu as u64, Ordering::Relaxed);
                            };
                            write(machine, (guest, in_view), cpu, page, &store);
                        }
                    })
                })
                .collect();
            // The migration.
            scope.spawn(move || {
                let mut at = 0;
                while running.load(Ordering::Relaxed) {
                    take(GfnRange::from_len(Gfn::new(at), 300));
                    at = (at + 300) % (PAGES + 20);
                }
            });
            // Restarts the log with other methods.
            scope.spawn(move || {
                let mut seed = 2;
                let mut times = 0;
                while running.load(Ordering::Relaxed) || times < 10 {
                    restart(guest, machine, &mut seed);
                    times += 1;
                    thread::yield_now();
                }
            });
            // Changes leaves for the hypervisor.
            scope.spawn(move || {
                let mut seed = 3;
                while running.load(Ordering::Relaxed) {
                    for in_view in [MAIN, nested] {
                        reshape(guest, machine, in_view, &mut seed);
                    }
                    thread::yield_now();
                }
            });
            // Adds and removes a vCPU, which writes its own pages and leaves some of them in its
            // log.
            scope.spawn(move || {
                let mut number = 0;
                while running.load(Ordering::Relaxed) {
                    let cpu = match machine.add_cpu() {
                        Ok(cpu) => cpu,
                        Err(VcpuError::NoMemory) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    for page in PAGES..PAGES + 20 {
                        number += 1;
                        let store = || memory[page as usize].store(number, Ordering::Relaxed);
                        write(machine, (guest, MAIN), cpu, page, &store);
                    }
                    machine.remove_cpu(cpu);
                }
            });
            // Reclaims memory for the host and combines the flushes.
            scope.spawn(move || {
                let mut seed = 1;
                while running.load(Ordering::Relaxed) {
                    let start = Gfn::new(next(&mut seed) % PAGES);
                    let mut flush = guest.unmap(View::MAIN, GfnRange::from_len(start, 40));
                    let more = guest.age_all_views(guest.all(), &mut |_| ()).unwrap();
                    guest.batch(&mut flush, more);
                    guest.batch(
                        &mut flush,
                        guest.unmap_all_views(GfnRange::from_len(start, 600)),
                    );
                    guest.flush(flush, machine);
                    thread::yield_now();
                }
            });
            for vcpu in vcpus {
                vcpu.join().unwrap();
            }
            running.store(false, Ordering::Relaxed);
        });
        take(guest.all());
        let value = |words: &[AtomicU64], page: usize| words[page].load(Ordering::Relaxed);
        for page in 0..(PAGES + 20) as usize {
            assert_eq!(
                value(&copy, page),
                value(memory, page),
                "page {page}, {method:?}"
            );
        }
        guest.stop_log(guest.all(), machine).unwrap();
        let flush = guest.unmap(View::MAIN, guest.all());
        guest.flush(flush, machine);
    }
    assert_eq!(ram.free_frames(), free, "frames leaked, {method:?}");
}

#[test]
fn write_protection() {
    run(LogMethod::WriteProtection);
}

#[test]
fn dirty_flags() {
    run(LogMethod::DirtyFlags);
}

#[test]
fn pml() {
    run(LogMethod::Pml);
}

type Work<'a> = &'a (dyn Fn(&Guest<TestMemory>, View) + Sync);

/// Unmaps a page of a nested view by guest frame, repeatedly, while `work` runs on other threads.
/// After each unmap the page must be unmapped until it is mapped again.
fn unmap_repeatedly(logged: bool, work: [Work<'_>; 2]) {
    let guest = Guest::new(
        TestMemory::new(200),
        Level::Size2M.pages(),
        0,
        Capabilities::ALL,
    )
    .unwrap();
    let nested = guest.add_nested_view().unwrap();
    if logged {
        guest
            .start_log(LogMethod::WriteProtection, guest.all(), &())
            .unwrap();
    }
    let mapping = Mapping {
        max_level: Level::Size4K,
        ..Mapping::ram(guest.all(), HostFrame::new(HOST))
    };
    let running = AtomicBool::new(true);
    let (guest, running) = (&guest, &running);
    let mut left = 0;
    thread::scope(|scope| {
        for work in work {
            scope.spawn(move || {
                while running.load(Ordering::Relaxed) {
                    work(guest, nested);
                }
            });
        }
        let page = GfnRange::from_len(Gfn::new(7), 1);
        for _ in 0..if logged { 100_000 } else { 3_000 } {
            let mut mapping = mapping;
            if logged {
                mapping.guest = page;
                mapping.host = mapping.host.plus(page.start().index());
            }
            let at = mapping.guest.start();
            guest.map_nested(nested, at, &mapping).unwrap();
            let flush = guest.unmap_all_views(page);
            let found = guest.lookup(nested, page.start()).unwrap();
            left += u32::from(found.host.is_some());
            guest.flush(flush, &());
        }
        running.store(false, Ordering::Relaxed);
    });
    assert_eq!(left, 0);
}

#[test]
fn a_nested_page_is_unmapped_during_writes_and_takes() {
    let fault = |guest: &Guest<TestMemory>, nested| {
        guest.handle_ept_violation(nested, 7 << 12, ExitQualification(2));
    };
    let take = |guest: &Guest<TestMemory>, _| {
        guest.take_log(guest.all(), &(), &mut |_| ()).unwrap();
    };
    unmap_repeatedly(true, [&fault, &take]);
}

#[test]
fn a_nested_page_is_unmapped_during_splits_and_merges() {
    let merge = |guest: &Guest<TestMemory>, nested| {
        if let Ok(flush) = guest.merge(nested, Gfn::new(0), Level::Size2M) {
            guest.flush(flush, &());
        }
    };
    let split = |guest: &Guest<TestMemory>, nested| {
        let flush = guest.split(nested, Gfn::new(0), Level::Size4K).unwrap();
        guest.flush(flush, &());
    };
    unmap_repeatedly(false, [&merge, &split]);
}
