//! Models of `Guest::unmap_all_views` on nested views, whose leaves are found by guest frame only.

use std::sync::Arc;

use hikkoshi_ept::testing::{Access, AccessError};
use hikkoshi_ept::{
    Gfn, GfnRange, HostFrame, Level, LogMethod, Mapping, PageType, Permissions, View,
    ViolationOutcome,
};
use loom::thread;

use crate::world::{HOST, World, check, first_pages};

/// Creates a guest whose only vCPU runs in a nested view. The view maps the first pages at the same
/// addresses.
fn nested_world() -> (Arc<World>, View) {
    let world = World::unlogged(Level::Size4K, 1);
    let nested = world.guest.add_nested_view().unwrap();
    let mapping = Mapping {
        max_level: Level::Size4K,
        ..Mapping::ram(first_pages(), HostFrame::new(HOST))
    };
    world
        .guest
        .map_nested(nested, Gfn::new(0), &mapping)
        .unwrap();
    assert!(world.machine.enter_view(0, nested));
    (world, nested)
}

/// Unmaps page 1 by guest frame while `work` runs on another thread. Afterwards the nested view
/// must not map it.
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

/// Pages of a nested view are unmapped by guest frame during a merge that succeeds or fails.
#[test]
fn unmap_all_views_vs_merge() {
    for mergeable in [true, false] {
        check(3, move || {
            let (world, nested) = nested_world();
            if !mergeable {
                let other = GfnRange::from_len(Gfn::new(1), 1);
                let (flush, done) = world.guest.protect(nested, other, Permissions::Read);
                done.unwrap();
                world.guest.flush(flush, &world.machine);
            }
            let merge = move |world: &World, nested| {
                if let Ok(flush) = world.guest.merge(nested, Gfn::new(0), Level::Size2M) {
                    assert!(mergeable);
                    world.guest.flush(flush, &world.machine);
                }
            };
            during_unmap_all_views((world, nested), merge).close();
        });
    }
}

/// Pages of a nested view are unmapped by guest frame during the split of a superpage.
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

/// A page of a nested view is unmapped by guest frame while a vCPU writes to it or the log is
/// taken. Each of these freezes the entry for a short time.
#[test]
fn unmap_all_views_vs_write_and_take() {
    for take in [false, true] {
        check(3, move || {
            let (world, nested) = nested_world();
            let method = LogMethod::WriteProtection;
            let guest = world.guest;
            guest
                .start_log(method, first_pages(), &world.machine)
                .unwrap();
            if take {
                world.write(0, 1, 1);
            }
            let work = move |world: &World, _| {
                if take {
                    world.take(first_pages());
                } else {
                    world.write(0, 1, 1);
                }
            };
            during_unmap_all_views((world, nested), work).finish();
        });
    }
}
