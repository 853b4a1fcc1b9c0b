//! Virtual processors in threads of their own, that fault, fill and write while the log is taken, its
//! ranges come and go, and pages are unmapped: in the end the copy equals the memory.
#![cfg(not(loom))]
// Helpers outside the test functions: their failure is the message too.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hikkoshi_ept::model::{Access, Machine, Ram, Stop};
use hikkoshi_ept::{
    Capabilities, Form, Frame, Gfn, GfnRange, Guest, Level, MapError, Mapping, Qualification,
    VcpuError, View, Violation,
};

const PAGES: u64 = 2048;
const HOST: u64 = 1 << 18;
const CPUS: usize = 3;
const WRITES: u64 = 60_000;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// One write in a view, with the page filled first if it is not there: as a superpage now and then.
fn write(
    machine: &Machine<'_, &Ram>,
    (guest, view): (&Guest<&Ram>, View),
    cpu: usize,
    page: u64,
    then: &dyn Fn(),
) {
    loop {
        match machine.access(cpu, page << 12, Access::Write, |_| then()) {
            Ok(()) => return,
            Err(Stop::Violation(Violation::Absent(at))) => {
                let first = at.align_down(Level::Large);
                let large = GfnRange::from_len(first, Level::Large.pages()).intersect(guest.all());
                let one = GfnRange::from_len(at, 1);
                let range = if page.is_multiple_of(3) { large } else { one };
                let host = Frame::new(HOST + range.start().index());
                match guest.map(view, &Mapping::ram(range, host)) {
                    // None of the frames is left for a moment: tables taken out are not freed yet.
                    Ok(()) | Err(MapError::NoMemory(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn run(form: Form) {
    let ram = Ram::new(150);
    let free = ram.free_frames();
    {
        let guest = Guest::new(&ram, PAGES + 20, CPUS + 1, Capabilities::ALL).unwrap();
        let machine = Machine::new(&guest, CPUS).unwrap();
        let second = guest.add_view().unwrap();
        assert!(machine.enter_view(CPUS - 1, second));
        let memory: Vec<_> = (0..PAGES + 20).map(|_| AtomicU64::new(0)).collect();
        let copy: Vec<_> = (0..PAGES + 20).map(|_| AtomicU64::new(0)).collect();
        let running = AtomicBool::new(true);
        let take = |range: GfnRange| {
            let mut pages = Vec::new();
            guest
                .take(range, &machine, &mut |run| pages.extend(run.iter()))
                .unwrap();
            for page in pages.into_iter().map(|page| page.index() as usize) {
                copy[page].store(memory[page].load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        guest.start_log(form, guest.all(), &machine).unwrap();
        let (guest, machine, memory, running, take) = (&guest, &machine, &memory, &running, &take);
        thread::scope(|scope| {
            let vcpus: Vec<_> = (0..CPUS)
                .map(|cpu| {
                    let view = if cpu == CPUS - 1 { second } else { View::MAIN };
                    scope.spawn(move || {
                        let mut seed = 88_172_645_463_325_252 + cpu as u64;
                        for number in 1..=WRITES {
                            let page = next(&mut seed) % PAGES;
                            let store = || {
                                memory[page as usize]
                                    .store(number << 8 | cpu as u64, Ordering::Relaxed);
                            };
                            write(machine, (guest, view), cpu, page, &store);
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
            // A processor that comes and goes; it writes pages of its own, and leaves some in its log.
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
                        write(machine, (guest, View::MAIN), cpu, page, &store);
                    }
                    machine.remove_cpu(cpu);
                }
            });
            // The host, which wants memory back, and gathers its obligations.
            scope.spawn(move || {
                let mut seed = 1;
                while running.load(Ordering::Relaxed) {
                    let start = Gfn::new(next(&mut seed) % PAGES);
                    let mut flush = guest.unmap(View::MAIN, GfnRange::from_len(start, 40));
                    let more = guest.age_everywhere(guest.all(), &mut |_| ()).unwrap();
                    guest.batch(&mut flush, more);
                    guest.batch(
                        &mut flush,
                        guest.unmap_everywhere(GfnRange::from_len(start, 600)),
                    );
                    guest.discharge(flush, machine);
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
                "page {page}, {form:?}"
            );
        }
        guest.stop_log(guest.all(), machine).unwrap();
        let flush = guest.unmap(View::MAIN, guest.all());
        guest.discharge(flush, machine);
    }
    assert_eq!(ram.free_frames(), free, "frames leaked, {form:?}");
}

#[test]
fn write_protection() {
    run(Form::WriteProtection);
}

#[test]
fn dirty_flags() {
    run(Form::DirtyFlags);
}

#[test]
fn pml() {
    run(Form::Pml);
}

type Work<'a> = &'a (dyn Fn(&Guest<Ram>, View) + Sync);

/// The host takes a page of a nested view back by guest frame, again and again, while `work` goes on in
/// other threads: whenever it has, the page is gone, and it stays gone until it is mapped again.
fn take_back(logged: bool, work: [Work<'_>; 2]) {
    let guest = Guest::new(Ram::new(200), Level::Large.pages(), 0, Capabilities::ALL).unwrap();
    let nested = guest.add_nested_view().unwrap();
    if logged {
        guest
            .start_log(Form::WriteProtection, guest.all(), &())
            .unwrap();
    }
    let mapping = Mapping {
        largest: Level::Page,
        ..Mapping::ram(guest.all(), Frame::new(HOST))
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
            let flush = guest.unmap_everywhere(page);
            let found = guest.lookup(nested, page.start()).unwrap();
            left += u32::from(found.host.is_some());
            guest.discharge(flush, &());
        }
        running.store(false, Ordering::Relaxed);
    });
    assert_eq!(left, 0);
}

#[test]
fn a_nested_page_is_taken_back_while_it_is_written_and_its_log_taken() {
    let fault = |guest: &Guest<Ram>, nested| {
        guest.violation(nested, 7 << 12, Qualification(2));
    };
    let take = |guest: &Guest<Ram>, _| {
        guest.take(guest.all(), &(), &mut |_| ()).unwrap();
    };
    take_back(true, [&fault, &take]);
}

#[test]
fn a_nested_page_is_taken_back_while_leaves_are_split_and_put_together() {
    let merge = |guest: &Guest<Ram>, nested| {
        if let Ok(flush) = guest.merge(nested, Gfn::new(0), Level::Large) {
            guest.discharge(flush, &());
        }
    };
    let split = |guest: &Guest<Ram>, nested| {
        let flush = guest.split(nested, Gfn::new(0), Level::Page).unwrap();
        guest.discharge(flush, &());
    };
    take_back(false, [&merge, &split]);
}
