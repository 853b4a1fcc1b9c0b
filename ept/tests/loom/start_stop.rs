//! Models of starting and stopping a log while tables change and vCPUs are added.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hikkoshi_ept::testing::Access;
use hikkoshi_ept::{
    AtomicU64, Gfn, GfnRange, HostFrame, Level, LogMethod, Mapping, MergeError, View,
};
use loom::thread;

use crate::world::{HOST, World, check};

/// A page is mapped while logging starts: writes after the start are logged.
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
                let mapping = Mapping::ram(page, HostFrame::new(HOST));
                world.guest.map(View::MAIN, &mapping).unwrap();
            });
        });
    }
}

/// Runs `work` and an access to page 0 on another thread while logging starts. Writes after the
/// start must be logged.
fn during_start(world: Arc<World>, method: LogMethod, work: impl FnOnce(&World) + Send + 'static) {
    let started = Arc::new(AtomicU64::new(0));
    let vcpu = {
        let (world, started) = (world.clone(), started.clone());
        thread::spawn(move || {
            work(&world);
            // Make the processor cache the page as writable and dirty.
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

/// A superpage is split, or leaves are merged, while logging starts.
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

/// A vCPU is added while a log starts: once both have finished, the vCPU logs.
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

/// A vCPU is added while a log stops: it does not log into a buffer that was released.
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
