//! Virtual processors in threads of their own, that fault, fill and write in three views while the log is
//! taken, stopped and started in other forms, and pages are unmapped, protected, split and put together: in
//! the end the copy equals the memory.
#![cfg(not(loom))]
// Helpers outside the test functions: their failure is the message too.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hikkoshi_ept::testing::{Access, Machine, Ram, Stop};
use hikkoshi_ept::{
    Capabilities, Form, Frame, Gfn, GfnRange, Guest, Level, MapError, Mapping, Permissions,
    Qualification, SplitError, StartError, TakeError, VcpuError, View, Violation,
};

const PAGES: u64 = 2048;
const HOST: u64 = 1 << 18;
/// Two in the main view, one in a second one, one in a nested one.
const CPUS: usize = 4;
/// Where the nested view sees the guest's frames.
const SHIFT: u64 = 1 << 20;
const WRITES: u64 = 60_000;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// A view, and where in it the guest's frame 0 is.
#[derive(Clone, Copy)]
struct Place {
    view: View,
    shift: u64,
}

const MAIN: Place = Place {
    view: View::MAIN,
    shift: 0,
};

/// One write in a view, with the page filled first if it is not there: as a superpage now and then.
fn write(
    machine: &Machine<'_, &Ram>,
    (guest, place): (&Guest<&Ram>, Place),
    cpu: usize,
    page: u64,
    then: &dyn Fn(),
) {
    let address = (page + place.shift) << 12;
    loop {
        match machine.access(cpu, address, Access::Write, |_| then()) {
            Ok(()) => return,
            Err(Stop::Violation(Violation::Absent(at))) => {
                assert_eq!(at.index(), page + place.shift);
                let gfn = Gfn::new(page);
                let first = gfn.align_down(Level::Large);
                let large = GfnRange::from_len(first, Level::Large.pages()).intersect(guest.all());
                let one = GfnRange::from_len(gfn, 1);
                let range = if page.is_multiple_of(3) { large } else { one };
                let mapping = Mapping::ram(range, Frame::new(HOST + range.start().index()));
                let mapped = if place.shift == 0 {
                    guest.map(place.view, &mapping)
                } else {
                    guest.map_nested(place.view, range.start().plus(place.shift), &mapping)
                };
                match mapped {
                    // No frame is left for a moment: tables taken out are not freed yet. Or a neighbour is
                    // protected.
                    Ok(()) | Err(MapError::NoMemory(_) | MapError::Occupied(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            // Protected for a moment, or not to be split for one.
            Err(Stop::Violation(Violation::Denied(_) | Violation::NoMemory(_))) => {
                thread::yield_now();
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Stops the log of a part or of everything, and starts it again, of everything in another form. What was
/// written meanwhile is not logged: all of it is to be copied again.
fn restart(guest: &Guest<&Ram>, machine: &Machine<'_, &Ram>, seed: &mut u64) {
    let part = GfnRange::from_len(Gfn::new(next(seed) % PAGES), 700).intersect(guest.all());
    let (range, form) = match (next(seed) % 4, guest.logging()) {
        (0, Some(form)) => (part, form),
        (1, _) => (guest.all(), Form::DirtyFlags),
        (2, _) => (guest.all(), Form::Pml),
        _ => (guest.all(), Form::WriteProtection),
    };
    guest.stop_log(range, machine).unwrap();
    while let Err(error) = guest.start_log(form, range, machine) {
        assert_eq!(error, StartError::NoMemory);
    }
    guest.mark(range);
}

/// Splits, puts together and protects leaves, in the main view or the nested one.
fn reshape(guest: &Guest<&Ram>, machine: &Machine<'_, &Ram>, place: Place, seed: &mut u64) {
    let at = Gfn::new(next(seed) % PAGES + place.shift);
    match guest.split(place.view, at, Level::Page) {
        Ok(flush) => guest.discharge(flush, machine),
        Err(error) => assert!(matches!(error, SplitError::NoMemory(_))),
    }
    let at = Gfn::new(next(seed) % PAGES + place.shift).align_down(Level::Large);
    if let Ok(flush) = guest.merge(place.view, at, Level::Large) {
        guest.discharge(flush, machine);
    }
    let range = GfnRange::from_len(Gfn::new(next(seed) % PAGES + place.shift), 30);
    for permissions in [Permissions::Read, Permissions::All] {
        loop {
            let (flush, done) = guest.protect(place.view, range, permissions);
            guest.discharge(flush, machine);
            if done.is_ok() {
                break;
            }
        }
    }
}

fn run(form: Form) {
    let ram = Ram::new(300);
    let free = ram.free_frames();
    {
        let guest = Guest::new(&ram, PAGES + 20, CPUS + 1, Capabilities::ALL).unwrap();
        let machine = Machine::new(&guest, CPUS).unwrap();
        let second = guest.add_view().unwrap();
        let nested = guest.add_nested_view().unwrap();
        assert!(machine.enter_view(CPUS - 2, second));
        assert!(machine.enter_view(CPUS - 1, nested));
        let second = Place {
            view: second,
            shift: 0,
        };
        let nested = Place {
            view: nested,
            shift: SHIFT,
        };
        let memory: Vec<_> = (0..PAGES + 20).map(|_| AtomicU64::new(0)).collect();
        let copy: Vec<_> = (0..PAGES + 20).map(|_| AtomicU64::new(0)).collect();
        let running = AtomicBool::new(true);
        let take = |range: GfnRange| {
            let mut pages = Vec::new();
            match guest.take(range, &machine, &mut |run| pages.extend(run.iter())) {
                Ok(count) => assert_eq!(count, pages.len() as u64),
                Err(TakeError::Off) => assert_eq!(pages, []),
            }
            for page in pages.into_iter().map(|page| page.index() as usize) {
                copy[page].store(memory[page].load(Ordering::Relaxed), Ordering::Relaxed);
            }
        };
        guest.start_log(form, guest.all(), &machine).unwrap();
        let (guest, machine, memory, running, take) = (&guest, &machine, &memory, &running, &take);
        thread::scope(|scope| {
            let vcpus: Vec<_> = (0..CPUS)
                .map(|cpu| {
                    let place = match cpu + 2 {
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
                            write(machine, (guest, place), cpu, page, &store);
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
            // Whoever changes their mind about how to log.
            scope.spawn(move || {
                let mut seed = 2;
                let mut times = 0;
                while running.load(Ordering::Relaxed) || times < 10 {
                    restart(guest, machine, &mut seed);
                    times += 1;
                    thread::yield_now();
                }
            });
            // The hypervisor's own wishes for leaves.
            scope.spawn(move || {
                let mut seed = 3;
                while running.load(Ordering::Relaxed) {
                    for place in [MAIN, nested] {
                        reshape(guest, machine, place, &mut seed);
                    }
                    thread::yield_now();
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
                        write(machine, (guest, MAIN), cpu, page, &store);
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
