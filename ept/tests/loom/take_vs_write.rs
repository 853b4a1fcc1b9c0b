//! Models of a take while vCPUs write, with each method of logging.

use hikkoshi_ept::{Gfn, GfnRange, HostFrame, Level, LogMethod, Mapping, View};
use loom::thread;

use crate::world::{HOST, World, check, first_pages};

/// A processor sets the dirty flag, with and without a cached translation, while the log is taken.
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
        world.take(first_pages());
        vcpu.join().unwrap();
        world.finish();
    });
}

/// Two vCPUs fault on the same page while the log is taken.
#[test]
fn fault_vs_take() {
    check(2, || {
        let world = World::new(LogMethod::WriteProtection, Level::Size4K, 2);
        let vcpu = |cpu: usize| {
            let world = world.clone();
            thread::spawn(move || world.write(cpu, 0, 1 + cpu as u64))
        };
        let vcpus = [vcpu(0), vcpu(1)];
        world.take(first_pages());
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.finish();
    });
}

/// A page that is already logged and writable is written again while the log is taken.
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
        world.take(first_pages());
        world.take(first_pages());
        vcpu.join().unwrap();
        world.finish();
    });
}

/// Two vCPUs write to one superpage, which is split, while the log is taken.
#[test]
fn split_vs_write() {
    check(2, || {
        let world = World::new(LogMethod::WriteProtection, Level::Size2M, 2);
        let vcpu = |cpu: usize| {
            let world = world.clone();
            thread::spawn(move || world.write(cpu, cpu as u64, 5))
        };
        let vcpus = [vcpu(0), vcpu(1)];
        world.take(first_pages());
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.finish();
    });
}

/// The hypervisor splits a superpage while a vCPU writes through it: the dirty flag is not lost.
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

/// A vCPU fills its page-modification log and drains it at an exit, while a take makes it drain the
/// log, too.
#[test]
fn pml_drain_vs_take() {
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
        world.take(first_pages());
        vcpu.join().unwrap();
        world.finish();
    });
}

/// Two vCPUs fill their page-modification logs, with one page in common, while the log is taken.
#[test]
fn pml_drain_of_two_vcpus_vs_take() {
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
        world.take(first_pages());
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.finish();
    });
}

/// A page is mapped in two views, and a vCPU in each of them writes to it while the log is taken.
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
            let mapping = Mapping::ram(page, HostFrame::new(HOST));
            world.guest.map(view, &mapping).unwrap();
            assert!(world.machine.enter_view(1, view));
            world.guest.start_log(method, page, &world.machine).unwrap();
            world.write(1, 0, 1);
            let vcpu = |cpu: usize| {
                let world = world.clone();
                thread::spawn(move || world.write(cpu, 0, 2 + cpu as u64))
            };
            let vcpus = [vcpu(0), vcpu(1)];
            world.take(first_pages());
            for vcpu in vcpus {
                vcpu.join().unwrap();
            }
            world.finish();
        });
    }
}
