//! Every interleaving of virtual processors and those who work on their tables, up to a bound of forced
//! switches: `make test-loom`. Tables have two entries here, and page-modification logs too.
//!
//! The invariant of all models: whoever copies the pages that a take reports, once the take has
//! returned, and does so once more when the virtual processors have stopped, holds what the guest wrote.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    AtomicU64, Capabilities, Frame, FrameAllocator, Gfn, GfnRange, Guest, Level, LogMethod,
    Mapping, MergeError, PageType, Permissions, TakeError, View, ViolationOutcome,
};

use loom::thread;

const PAGES: u64 = 4;
const HOST: u64 = 16;

/// A guest, its processors, its memory's content, and the copy that a migration makes of it.
struct World {
    guest: &'static Guest<TestMemory>,
    machine: Machine<'static, TestMemory>,
    data: Vec<AtomicU64>,
    copy: Vec<AtomicU64>,
}

impl World {
    /// Everything mapped with leaves up to `largest`; page 0 written before the log starts.
    fn new(method: LogMethod, max_level: Level, cpus: usize) -> Arc<Self> {
        let world = Self::unlogged(max_level, cpus);
        world
            .guest
            .start_log(method, world.guest.all(), &world.machine)
            .unwrap();
        world
    }

    fn unlogged(max_level: Level, cpus: usize) -> Arc<Self> {
        Self::with_room(max_level, cpus, cpus)
    }

    /// With room for more processors than there are.
    fn with_room(max_level: Level, cpus: usize, room: usize) -> Arc<Self> {
        let guest = Guest::new(TestMemory::new(30), PAGES, room, Capabilities::ALL).unwrap();
        let guest: &'static Guest<TestMemory> = Box::leak(Box::new(guest));
        let mapping = Mapping {
            max_level,
            ..Mapping::ram(guest.all(), Frame::new(HOST))
        };
        guest.map(View::MAIN, &mapping).unwrap();
        let machine = Machine::new(guest, cpus).unwrap();
        let words = || (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let world = Self {
            guest,
            machine,
            data: words(),
            copy: words(),
        };
        Arc::new(world)
    }

    /// A virtual processor writes, if the page is there.
    fn write(&self, cpu: usize, page: u64, value: u64) {
        let _ = self.machine.access(cpu, page << 12, Access::Write, |host| {
            assert_eq!(host >> 12, HOST + page);
            self.data[page as usize].store(value, Ordering::Relaxed);
        });
    }

    /// Takes the log of a range and copies what it reports.
    fn take(&self, range: GfnRange) {
        let mut pages = Vec::new();
        self.guest
            .take_log(range, &self.machine, &mut |run| pages.extend(run.iter()))
            .unwrap();
        for page in pages {
            let page = page.index() as usize;
            let value = self.data[page].load(Ordering::Relaxed);
            self.copy[page].store(value, Ordering::Relaxed);
        }
    }

    /// The virtual processors have stopped: the last take, and the comparison.
    fn finish(self: Arc<Self>) {
        self.take(self.guest.all());
        for (page, (data, copy)) in self.data.iter().zip(&self.copy).enumerate() {
            let (data, copy) = (data.load(Ordering::Relaxed), copy.load(Ordering::Relaxed));
            assert_eq!(data, copy, "a write to page {page} was lost");
        }
        self.close();
    }

    /// Frees everything, or loom would run out of memory before interleavings.
    ///
    /// Whoever writes into a freed frame spoils what it was filled with, which the allocator looks at.
    fn close(self: Arc<Self>) {
        let world = Arc::try_unwrap(self).ok().unwrap();
        while world.guest.memory().allocate().is_some() {}
        drop(world.machine);
        // SAFETY: made by `Box::leak`, and the machine, which borrowed it, is gone.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(std::ptr::from_ref(world.guest).cast_mut()) });
    }
}

fn check(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 100_000;
    builder.check(model);
}

fn first() -> GfnRange {
    GfnRange::from_len(Gfn::new(0), 2)
}

/// A processor sets the dirty flag, with the translation remembered or not, while the log is taken.
#[test]
fn set_dirty_flag_vs_take() {
    check(3, || {
        let world = World::new(LogMethod::DirtyFlags, Level::Size4K, 1);
        world.write(0, 0, 1);
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                world.write(0, 0, 2);
                world.write(0, 1, 3);
            })
        };
        world.take(first());
        vcpu.join().unwrap();
        world.finish();
    });
}

/// Two processors fault on the same page while the log is taken.
#[test]
fn fault_vs_take() {
    check(2, || {
        let world = World::new(LogMethod::WriteProtection, Level::Size4K, 2);
        let vcpu = |cpu: usize| {
            let world = world.clone();
            thread::spawn(move || world.write(cpu, 0, 1 + cpu as u64))
        };
        let vcpus = [vcpu(0), vcpu(1)];
        world.take(first());
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.finish();
    });
}

/// A page that is in the log already, and writable, is written again while the log is taken.
#[test]
fn write_again_vs_take() {
    check(3, || {
        let world = World::new(LogMethod::WriteProtection, Level::Size4K, 1);
        world.write(0, 0, 1);
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                world.write(0, 0, 2);
                world.write(0, 0, 3);
            })
        };
        world.take(first());
        world.take(first());
        vcpu.join().unwrap();
        world.finish();
    });
}

/// Two processors write into one superpage, which splits, while the log is taken.
#[test]
fn split_vs_write() {
    check(2, || {
        let world = World::new(LogMethod::WriteProtection, Level::Size2M, 2);
        let vcpu = |cpu: usize| {
            let world = world.clone();
            thread::spawn(move || world.write(cpu, cpu as u64, 5))
        };
        let vcpus = [vcpu(0), vcpu(1)];
        world.take(first());
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.finish();
    });
}

/// A superpage is split by the hypervisor while a processor writes through it, and the flag counts.
#[test]
fn explicit_split_vs_write() {
    check(3, || {
        let world = World::new(LogMethod::Pml, Level::Size2M, 1);
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                world.write(0, 0, 5);
                world.write(0, 1, 6);
            })
        };
        let flush = world
            .guest
            .split(View::MAIN, Gfn::new(0), Level::Size4K)
            .unwrap();
        world.guest.flush(flush, &world.machine);
        vcpu.join().unwrap();
        world.finish();
    });
}

/// A processor fills its page-modification log, and empties it at an exit, while a report makes it do so.
#[test]
fn flush_vs_report() {
    check(3, || {
        let world = World::new(LogMethod::Pml, Level::Size4K, 1);
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                for page in 0..3 {
                    world.write(0, page, 7);
                }
                world.write(0, 0, 8);
            })
        };
        world.take(first());
        vcpu.join().unwrap();
        world.finish();
    });
}

/// The same with two processors, which write the same page among others.
#[test]
fn flush_of_two_vs_report() {
    check(2, || {
        let world = World::new(LogMethod::Pml, Level::Size4K, 2);
        let vcpu = |cpu: usize| {
            let world = world.clone();
            thread::spawn(move || {
                for page in [0, 1 + cpu as u64, 3] {
                    world.write(cpu, page, 7 + cpu as u64);
                }
            })
        };
        let vcpus = [vcpu(0), vcpu(1)];
        world.take(first());
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.finish();
    });
}

/// A page that only its flag knows to be dirty is unmapped while the log is taken.
#[test]
fn unmap_vs_take() {
    check(3, || {
        let world = World::new(LogMethod::DirtyFlags, Level::Size4K, 1);
        world.write(0, 0, 1);
        let remover = {
            let world = world.clone();
            thread::spawn(move || {
                let flush = world
                    .guest
                    .unmap(View::MAIN, GfnRange::from_len(Gfn::new(0), 1));
                world.guest.flush(flush, &world.machine);
            })
        };
        world.take(first());
        // Before the call, so in this log, whatever the other thread is doing.
        assert_eq!(world.copy[0].load(Ordering::Relaxed), 1);
        remover.join().unwrap();
        world.finish();
    });
}

/// Permissions are changed, which writes the entry anew, while the log is taken.
#[test]
fn protect_vs_take() {
    check(3, || {
        let world = World::new(LogMethod::WriteProtection, Level::Size4K, 1);
        world.write(0, 0, 1);
        let protector = {
            let world = world.clone();
            thread::spawn(move || {
                let range = GfnRange::from_len(Gfn::new(0), 1);
                let (flush, done) = world
                    .guest
                    .protect(View::MAIN, range, Permissions::ReadWrite);
                done.unwrap();
                world.guest.flush(flush, &world.machine);
                world.write(0, 0, 2);
            })
        };
        world.take(first());
        protector.join().unwrap();
        world.finish();
    });
}

/// A page is mapped while logging starts: what is written once it has started is logged.
#[test]
fn map_vs_start() {
    for method in [
        LogMethod::WriteProtection,
        LogMethod::DirtyFlags,
        LogMethod::Pml,
    ] {
        check(2, move || {
            let world = World::unlogged(Level::Size4K, 1);
            let page = GfnRange::from_len(Gfn::new(0), 1);
            let flush = world.guest.unmap(View::MAIN, page);
            world.guest.flush(flush, &world.machine);
            during_start(world, method, move |world| {
                let mapping = Mapping::ram(page, Frame::new(HOST));
                world.guest.map(View::MAIN, &mapping).unwrap();
            });
        });
    }
}

/// Runs `work` and an access to page 0 on another thread while logging starts: what is written once it
/// has started is logged.
fn during_start(world: Arc<World>, method: LogMethod, work: impl FnOnce(&World) + Send + 'static) {
    let started = Arc::new(AtomicU64::new(0));
    let vcpu = {
        let (world, started) = (world.clone(), started.clone());
        thread::spawn(move || {
            work(&world);
            // Make the processor remember the page as writable, and dirty.
            world.machine.access(0, 0, Access::Write, |_| ()).unwrap();
            if started.load(Ordering::Acquire) == 1 {
                world.write(0, 0, 9);
            }
        })
    };
    world
        .guest
        .start_log(method, world.guest.all(), &world.machine)
        .unwrap();
    started.store(1, Ordering::Release);
    vcpu.join().unwrap();
    world.finish();
}

/// A superpage is split, or leaves are put together, while logging starts.
#[test]
fn split_and_merge_vs_start() {
    for method in [
        LogMethod::WriteProtection,
        LogMethod::DirtyFlags,
        LogMethod::Pml,
    ] {
        check(2, move || {
            let world = World::unlogged(Level::Size2M, 1);
            during_start(world, method, |world| {
                let split = world.guest.split(View::MAIN, Gfn::new(0), Level::Size4K);
                world.guest.flush(split.unwrap(), &world.machine);
            });
        });
        check(2, move || {
            let world = World::unlogged(Level::Size4K, 1);
            during_start(world, method, |world| {
                match world.guest.merge(View::MAIN, Gfn::new(0), Level::Size2M) {
                    Ok(flush) => world.guest.flush(flush, &world.machine),
                    Err(error) => assert_eq!(error, MergeError::Logged(Gfn::new(0))),
                }
            });
        });
    }
}

/// A processor is added while a log starts: once both are done, it logs.
#[test]
fn add_vs_start() {
    check(3, || {
        let world = World::with_room(Level::Size4K, 1, 2);
        let adder = {
            let world = world.clone();
            thread::spawn(move || {
                let cpu = world.machine.add_cpu().unwrap();
                world.machine.access(cpu, 0, Access::Write, |_| ()).unwrap();
                cpu
            })
        };
        world
            .guest
            .start_log(LogMethod::Pml, world.guest.all(), &world.machine)
            .unwrap();
        let cpu = adder.join().unwrap();
        world.write(cpu, 0, 9);
        world.write(cpu, 1, 9);
        world.finish();
    });
}

/// A processor is added while a log stops: it does not log into a buffer that was given back.
#[test]
fn add_vs_stop() {
    check(3, || {
        let world = World::with_room(Level::Size4K, 1, 2);
        world
            .guest
            .start_log(LogMethod::Pml, world.guest.all(), &world.machine)
            .unwrap();
        let adder = {
            let world = world.clone();
            thread::spawn(move || {
                let cpu = world.machine.add_cpu().unwrap();
                world.write(cpu, 0, 1);
                world.write(cpu, 1, 1);
                cpu
            })
        };
        world
            .guest
            .stop_log(world.guest.all(), &world.machine)
            .unwrap();
        let cpu = adder.join().unwrap();
        world.write(cpu, 2, 2);
        world.close();
    });
}

/// A page is mapped in two views, and a processor in each writes to it while the log is taken.
#[test]
fn two_views_vs_take() {
    for method in [
        LogMethod::WriteProtection,
        LogMethod::DirtyFlags,
        LogMethod::Pml,
    ] {
        check(2, move || {
            let world = World::unlogged(Level::Size4K, 2);
            let view = world.guest.add_view().unwrap();
            let page = GfnRange::from_len(Gfn::new(0), 1);
            let mapping = Mapping::ram(page, Frame::new(HOST));
            world.guest.map(view, &mapping).unwrap();
            assert!(world.machine.enter_view(1, view));
            world.guest.start_log(method, page, &world.machine).unwrap();
            world.write(1, 0, 1);
            let vcpu = |cpu: usize| {
                let world = world.clone();
                thread::spawn(move || world.write(cpu, 0, 2 + cpu as u64))
            };
            let vcpus = [vcpu(0), vcpu(1)];
            world.take(first());
            for vcpu in vcpus {
                vcpu.join().unwrap();
            }
            world.finish();
        });
    }
}

/// One of two views loses the page while the log is taken: the other's leaf is found all the same.
#[test]
fn unmap_of_one_view_vs_take() {
    for method in [LogMethod::WriteProtection, LogMethod::DirtyFlags] {
        check(2, move || {
            let world = World::unlogged(Level::Size4K, 1);
            let view = world.guest.add_view().unwrap();
            let page = GfnRange::from_len(Gfn::new(0), 1);
            let mapping = Mapping::ram(page, Frame::new(HOST));
            world.guest.map(view, &mapping).unwrap();
            world.guest.start_log(method, page, &world.machine).unwrap();
            world.write(0, 0, 1);
            let remover = {
                let world = world.clone();
                thread::spawn(move || {
                    let flush = world.guest.unmap(view, page);
                    world.guest.flush(flush, &world.machine);
                })
            };
            world.take(first());
            world.write(0, 0, 2);
            world.take(first());
            assert_eq!(world.copy[0].load(Ordering::Relaxed), 2);
            remover.join().unwrap();
            world.finish();
        });
    }
}

/// An address of a nested view is mapped to another guest frame while the log is taken and pages are
/// taken away by guest frame.
#[test]
fn remap_of_nested_view_vs_take() {
    check(2, || {
        let world = World::unlogged(Level::Size4K, 1);
        let nested = world.guest.add_nested_view().unwrap();
        let at = GfnRange::from_len(Gfn::new(2), 1);
        let map = move |world: &World, page: u64| {
            let page = GfnRange::from_len(Gfn::new(page), 1);
            let mapping = Mapping::ram(page, Frame::new(HOST + page.start().index()));
            world
                .guest
                .map_nested(nested, at.start(), &mapping)
                .unwrap();
        };
        map(&world, 0);
        assert!(world.machine.enter_view(0, nested));
        world
            .guest
            .start_log(LogMethod::WriteProtection, first(), &world.machine)
            .unwrap();
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                let flush = world.guest.unmap(nested, at);
                world.guest.flush(flush, &world.machine);
                map(&world, 1);
                // The view's page 2 is the guest's page 1 by now.
                let wrote = world.machine.access(0, 2 << 12, Access::Write, |host| {
                    assert_eq!(host >> 12, HOST + 1);
                    world.data[1].store(5, Ordering::Relaxed);
                });
                wrote.unwrap();
            })
        };
        world.take(first());
        let flush = world
            .guest
            .unmap_all_views(GfnRange::from_len(Gfn::new(0), 1));
        world.guest.flush(flush, &world.machine);
        vcpu.join().unwrap();
        let left = world.guest.lookup(nested, at.start()).unwrap();
        assert_eq!(
            (left.page_type, left.gfn),
            (PageType::LogDirtyRam, Some(Gfn::new(1)))
        );
        world.finish();
    });
}

/// A table is taken out and freed while another thread looks through it, and a processor has cached the
/// way there: freed frames are poisoned.
#[test]
fn free_vs_walk() {
    check(2, || {
        let world = World::unlogged(Level::Size4K, 1);
        world.write(0, 0, 1);
        let walker = {
            let world = world.clone();
            thread::spawn(move || {
                let found = world.guest.lookup(View::MAIN, Gfn::new(0)).unwrap();
                // Not what a freed table is filled with.
                assert!(found.host.is_none_or(|host| host == Frame::new(HOST)));
                let _ = world.machine.access(0, 1 << 12, Access::Read, |_| ());
            })
        };
        let flush = world.guest.unmap(View::MAIN, first());
        world.guest.flush(flush, &world.machine);
        walker.join().unwrap();
        world.close();
    });
}

/// Leaves are put together while a processor writes to them, then a log is started: all is there.
#[test]
fn merge_vs_write() {
    check(2, || {
        let world = World::unlogged(Level::Size4K, 1);
        world.write(0, 0, 1);
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                let done = world.machine.access(0, 1 << 12, Access::Write, |_| ());
                // The entry is not there for a moment: the exit is answered by trying again.
                done.unwrap();
            })
        };
        let flush = world
            .guest
            .merge(View::MAIN, Gfn::new(0), Level::Size2M)
            .unwrap();
        world.guest.flush(flush, &world.machine);
        vcpu.join().unwrap();
        let merged = world.guest.lookup(View::MAIN, Gfn::new(1)).unwrap();
        assert_eq!(merged.level, Level::Size2M);
        assert!(merged.entry.dirty());
        world.close();
    });
}

/// A page is unmapped while it and its neighbour are put together, or fail to be: it is gone, and the
/// processor has forgotten it once the obligation is met.
#[test]
fn unmap_vs_merge() {
    for (page, alike) in [(0, true), (1, true), (0, false)] {
        check(3, move || {
            let world = World::unlogged(Level::Size4K, 1);
            let page = GfnRange::from_len(Gfn::new(page), 1);
            if !alike {
                let other = GfnRange::from_len(Gfn::new(1), 1);
                let (flush, done) = world.guest.protect(View::MAIN, other, Permissions::Read);
                done.unwrap();
                world.guest.flush(flush, &world.machine);
            }
            let at = page.start();
            world
                .machine
                .access(0, at.address(), Access::Write, |_| ())
                .unwrap();
            let merger = {
                let world = world.clone();
                thread::spawn(move || {
                    if let Ok(flush) = world.guest.merge(View::MAIN, Gfn::new(0), Level::Size2M) {
                        assert!(alike);
                        world.guest.flush(flush, &world.machine);
                    }
                })
            };
            let flush = world.guest.unmap(View::MAIN, page);
            world.guest.flush(flush, &world.machine);
            let absent = Err(AccessError::Violation(ViolationOutcome::Absent(at)));
            let read = world.machine.access(0, at.address(), Access::Read, |_| ());
            assert_eq!(read, absent);
            merger.join().unwrap();
            assert_eq!(
                world.guest.lookup(View::MAIN, at).unwrap().page_type,
                PageType::Absent
            );
            world.close();
        });
    }
}

/// The log is stopped, and started in another form, while it is taken: what is written from then on is
/// logged.
#[test]
fn take_vs_restart() {
    use LogMethod::{DirtyFlags, Pml, WriteProtection};
    for (old, new) in [
        (Pml, WriteProtection),
        (DirtyFlags, WriteProtection),
        (WriteProtection, DirtyFlags),
        (WriteProtection, Pml),
    ] {
        check(2, move || {
            let world = World::new(old, Level::Size4K, 1);
            let page = GfnRange::from_len(Gfn::new(0), 1);
            let changer = {
                let world = world.clone();
                thread::spawn(move || {
                    let (guest, machine) = (world.guest, &world.machine);
                    guest.stop_log(guest.all(), machine).unwrap();
                    guest.start_log(new, page, machine).unwrap();
                    world.write(0, 0, 2);
                    // So that the log knows of the page while the other thread takes it.
                    guest.mark_dirty(page);
                })
            };
            let taken = world.guest.take_log(page, &world.machine, &mut |_| ());
            assert!(taken.is_ok() || taken == Err(TakeError::Off));
            changer.join().unwrap();
            for (data, copy) in world.data.iter().zip(&world.copy) {
                copy.store(data.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            world.write(0, 0, 3);
            world.finish();
        });
    }
}

/// A guest whose only processor runs in a nested view with the same addresses, which maps the first pages.
fn nested_world() -> (Arc<World>, View) {
    let world = World::unlogged(Level::Size4K, 1);
    let nested = world.guest.add_nested_view().unwrap();
    let mapping = Mapping {
        max_level: Level::Size4K,
        ..Mapping::ram(first(), Frame::new(HOST))
    };
    world
        .guest
        .map_nested(nested, Gfn::new(0), &mapping)
        .unwrap();
    assert!(world.machine.enter_view(0, nested));
    (world, nested)
}

/// Takes page 1 back by guest frame while `work` runs on another thread: it is gone from the nested view.
fn during_unmap_all_views(
    (world, nested): (Arc<World>, View),
    work: impl FnOnce(&World, View) + Send + 'static,
) -> Arc<World> {
    let page = GfnRange::from_len(Gfn::new(1), 1);
    let worker = {
        let world = world.clone();
        thread::spawn(move || work(&world, nested))
    };
    let flush = world.guest.unmap_all_views(page);
    world.guest.flush(flush, &world.machine);
    let read = world
        .machine
        .access(0, page.start().address(), Access::Read, |_| ());
    let absent = Err(AccessError::Violation(ViolationOutcome::Absent(
        page.start(),
    )));
    assert_eq!(read, absent);
    worker.join().unwrap();
    let left = world.guest.lookup(nested, page.start()).unwrap();
    assert_eq!(left.page_type, PageType::Absent);
    world
}

/// Pages of a nested view are taken away by guest frame while they are put together, or fail to be.
#[test]
fn unmap_all_views_vs_merge() {
    for alike in [true, false] {
        check(3, move || {
            let (world, nested) = nested_world();
            if !alike {
                let other = GfnRange::from_len(Gfn::new(1), 1);
                let (flush, done) = world.guest.protect(nested, other, Permissions::Read);
                done.unwrap();
                world.guest.flush(flush, &world.machine);
            }
            let merge = move |world: &World, nested| {
                if let Ok(flush) = world.guest.merge(nested, Gfn::new(0), Level::Size2M) {
                    assert!(alike);
                    world.guest.flush(flush, &world.machine);
                }
            };
            during_unmap_all_views((world, nested), merge).close();
        });
    }
}

/// The same while the pages are split from a superpage.
#[test]
fn unmap_all_views_vs_split() {
    check(3, || {
        let (world, nested) = nested_world();
        let flush = world.guest.merge(nested, Gfn::new(0), Level::Size2M);
        world.guest.flush(flush.unwrap(), &world.machine);
        let split = |world: &World, nested| {
            let flush = world.guest.split(nested, Gfn::new(0), Level::Size4K);
            world.guest.flush(flush.unwrap(), &world.machine);
        };
        during_unmap_all_views((world, nested), split).close();
    });
}

/// The same while the processor writes to them, or the log is taken: each holds the entry for a moment.
#[test]
fn unmap_all_views_vs_write_and_take() {
    for take in [false, true] {
        check(3, move || {
            let (world, nested) = nested_world();
            let method = LogMethod::WriteProtection;
            let guest = world.guest;
            guest.start_log(method, first(), &world.machine).unwrap();
            if take {
                world.write(0, 1, 1);
            }
            let work = move |world: &World, _| {
                if take {
                    world.take(first());
                } else {
                    world.write(0, 1, 1);
                }
            };
            during_unmap_all_views((world, nested), work).finish();
        });
    }
}

/// A view is removed while the log is taken, and the processor is still in it: what it writes by what it
/// remembers, before it is told to forget, is not lost.
#[test]
fn remove_view_vs_take() {
    check(3, || {
        let world = World::unlogged(Level::Size4K, 1);
        let view = world.guest.add_view().unwrap();
        let page = GfnRange::from_len(Gfn::new(0), 1);
        let mapping = Mapping::ram(page, Frame::new(HOST));
        world.guest.map(view, &mapping).unwrap();
        assert!(world.machine.enter_view(0, view));
        let method = LogMethod::WriteProtection;
        world.guest.start_log(method, page, &world.machine).unwrap();
        world.write(0, 0, 1);
        let remover = {
            let world = world.clone();
            thread::spawn(move || {
                let flush = world.guest.remove_view(view);
                world.guest.flush(flush, &world.machine);
                assert!(world.guest.add_view().is_ok(), "the number is free again");
            })
        };
        world.take(first());
        // Goes through only by what it remembers.
        world.write(0, 0, 2);
        remover.join().unwrap();
        world.finish();
    });
}
