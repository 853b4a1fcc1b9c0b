//! Models of unmapping and merging while other threads walk the tables.

use hikkoshi_ept::testing::{Access, AccessError};
use hikkoshi_ept::{
    Gfn, GfnRange, HostFrame, Level, PageType, Permissions, View, ViolationOutcome,
};
use loom::thread;

use crate::world::{HOST, World, check, first_pages};

/// A table is detached and freed while another thread walks it and a processor has cached the path
/// to it. Freed frames are poisoned.
#[test]
fn free_vs_walk() {
    check(2, || {
        let world = World::unlogged(Level::Size4K, 1);
        world.write(0, 0, 1);
        let walker = {
            let world = world.clone();
            thread::spawn(move || {
                let found = world.guest.lookup(View::MAIN, Gfn::new(0)).unwrap();
                // Must not be the poison of a freed table.
                assert!(found.host.is_none_or(|host| host == HostFrame::new(HOST)));
                let _ = world.machine.access(0, 1 << 12, Access::Read, |_| ());
            })
        };
        let flush = world.guest.unmap(View::MAIN, first_pages());
        world.guest.flush(flush, &world.machine);
        walker.join().unwrap();
        world.close();
    });
}

/// Leaves are merged while a vCPU writes to them: the large leaf is dirty.
#[test]
fn merge_vs_write() {
    check(2, || {
        let world = World::unlogged(Level::Size4K, 1);
        world.write(0, 0, 1);
        let vcpu = {
            let world = world.clone();
            thread::spawn(move || {
                let done = world.machine.access(0, 1 << 12, Access::Write, |_| ());
                // The entry is frozen for a short time: the exit handler retries.
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

/// A page is unmapped during a merge, which succeeds or fails, of the page and its neighbour.
/// Afterwards it is unmapped, and no processor has a cached translation once the flush is done.
#[test]
fn unmap_vs_merge() {
    for (page, mergeable) in [(0, true), (1, true), (0, false)] {
        check(3, move || {
            let world = World::unlogged(Level::Size4K, 1);
            let page = GfnRange::from_len(Gfn::new(page), 1);
            if !mergeable {
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
                        assert!(mergeable);
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
