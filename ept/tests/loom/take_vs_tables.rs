//! Models of a take while the tables or the log change: unmap, protect, remap, restart, removed
//! views.

use std::sync::atomic::Ordering;

use hikkoshi_ept::testing::Access;
use hikkoshi_ept::{
    Gfn, GfnRange, HostFrame, Level, LogMethod, Mapping, PageType, Permissions, TakeError, View,
};
use loom::thread;

use crate::world::{HOST, World, check, first_pages};

/// A page whose write only the dirty flag records is unmapped while the log is taken.
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
        world.take(first_pages());
        // Written before the call, so it must be in this log, whatever the other thread does.
        assert_eq!(world.copy[0].load(Ordering::Relaxed), 1);
        remover.join().unwrap();
        world.finish();
    });
}

/// Permissions are changed, which rewrites the entry, while the log is taken.
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
        world.take(first_pages());
        protector.join().unwrap();
        world.finish();
    });
}

/// One of two views unmaps the page while the log is taken: the take still finds the leaf of the
/// other.
#[test]
fn unmap_of_one_view_vs_take() {
    for method in [LogMethod::WriteProtection, LogMethod::DirtyFlags] {
        check(2, move || {
            let world = World::unlogged(Level::Size4K, 1);
            let view = world.guest.add_view().unwrap();
            let page = GfnRange::from_len(Gfn::new(0), 1);
            let mapping = Mapping::ram(page, HostFrame::new(HOST));
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
            world.take(first_pages());
            world.write(0, 0, 2);
            world.take(first_pages());
            assert_eq!(world.copy[0].load(Ordering::Relaxed), 2);
            remover.join().unwrap();
            world.finish();
        });
    }
}

/// An address of a nested view is mapped to another guest frame while the log is taken and a page
/// is unmapped by guest frame.
#[test]
fn remap_of_nested_view_vs_take() {
    check(2, || {
        let world = World::unlogged(Level::Size4K, 1);
        let nested = world.guest.add_nested_view().unwrap();
        let at = GfnRange::from_len(Gfn::new(2), 1);
        let map = move |world: &World, page: u64| {
            let page = GfnRange::from_len(Gfn::new(page), 1);
            let mapping = Mapping::ram(page, HostFrame::new(HOST + page.start().index()));
            world
                .guest
                .map_nested(nested, at.start(), &mapping)
                .unwrap();
        };
        map(&world, 0);
        assert!(world.machine.enter_view(0, nested));
        world
            .guest
            .start_log(LogMethod::WriteProtection, first_pages(), &world.machine)
            .unwrap();
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                let flush = world.guest.unmap(nested, at);
                world.guest.flush(flush, &world.machine);
                map(&world, 1);
                // Page 2 of the view is page 1 of the guest by now.
                let wrote = world.machine.access(0, 2 << 12, Access::Write, |host| {
                    assert_eq!(host >> 12, HOST + 1);
                    world.data[1].store(5, Ordering::Relaxed);
                });
                wrote.unwrap();
            })
        };
        world.take(first_pages());
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

/// The log is stopped and restarted with another method while it is taken: writes after the restart
/// are logged.
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
                    // The log has the page while the other thread takes it.
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

/// A view is removed while the log is taken and the vCPU is still in that view. What it writes
/// through cached translations, before they are invalidated, is not lost.
#[test]
fn remove_view_vs_take() {
    check(3, || {
        let world = World::unlogged(Level::Size4K, 1);
        let view = world.guest.add_view().unwrap();
        let page = GfnRange::from_len(Gfn::new(0), 1);
        let mapping = Mapping::ram(page, HostFrame::new(HOST));
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
                assert!(
                    world.guest.add_view().is_ok(),
                    "the number can be used again"
                );
            })
        };
        world.take(first_pages());
        // This succeeds only through a cached translation.
        world.write(0, 0, 2);
        remover.join().unwrap();
        world.finish();
    });
}
