//! Several views of one guest, and the removal of views.

use hikkoshi_ept::testing::{Access, AccessError, Machine};
use hikkoshi_ept::{
    Gfn, Level, LogMethod, MapError, Mapping, PageType, Permissions, View, ViolationOutcome,
};

use crate::common::{guest, ram, range};

#[test]
fn several_views_of_one_guest() {
    let guest = guest();
    let machine = Machine::new(&guest, 2).unwrap();
    let second = guest.add_view().unwrap();
    let nested = guest.add_nested_view().unwrap();
    let page = Mapping {
        max_level: Level::Size4K,
        ..ram(0, 512)
    };
    guest.map(View::MAIN, &page).unwrap();
    guest
        .map(
            second,
            &Mapping {
                permissions: Permissions::Read,
                ..page
            },
        )
        .unwrap();
    guest.map_nested(nested, Gfn::new(1 << 20), &page).unwrap();
    assert_eq!(guest.map(nested, &page), Err(MapError::NoView(nested)));
    assert!(machine.enter_view(1, nested));
    guest
        .start_log(LogMethod::Pml, guest.all(), &machine)
        .unwrap();
    for (cpu, page) in [(0, 3), (1, (1 << 20) + 4), (1, (1 << 20) + 3)] {
        machine
            .access(cpu, page << 12, Access::Write, |_| ())
            .unwrap();
    }
    let mut dirty = Vec::new();
    guest
        .take_log(guest.all(), &machine, &mut |run| dirty.push(run))
        .unwrap();
    assert_eq!(
        dirty,
        [range(3, 5)],
        "the log is by guest frame, for all views"
    );
    machine
        .access(1, ((1 << 20) + 3) << 12, Access::Write, |_| ())
        .unwrap();
    assert_eq!(guest.count_dirty(guest.all(), &machine), Ok(1));
    let flush = guest.unmap_all_views(range(3, 4));
    guest.flush(flush, &machine);
    for (view, at) in [(View::MAIN, 3), (second, 3), (nested, (1 << 20) + 3)] {
        let found = guest.lookup(view, Gfn::new(at)).unwrap();
        assert_eq!(found.page_type, PageType::Absent);
        assert_ne!(
            guest.lookup(view, Gfn::new(at + 1)).unwrap().page_type,
            PageType::Absent
        );
    }
    let flush = guest.remove_view(second);
    guest.flush(flush, &machine);
    assert_eq!(guest.eptp(second), None);
    assert_eq!(guest.lookup(second, Gfn::new(0)), None);
}

/// Until the flush of a removal is done, neither the view's number, which the flush uses, nor the
/// frame of its root, which tags cached translations, is reused.
#[test]
fn a_removed_view_is_not_reused_before_its_flush() {
    let guest = guest();
    let machine = Machine::new(&guest, 2).unwrap();
    guest.map(View::MAIN, &ram(0, 512)).unwrap();
    let read = || machine.access(1, 5 << 12, Access::Read, |_| ());
    for nested in [false, true] {
        let add = || {
            if nested {
                guest.add_nested_view()
            } else {
                guest.add_view()
            }
        };
        let map = |view| {
            if nested {
                guest.map_nested(view, Gfn::new(0), &ram(0, 9)).unwrap();
            } else {
                guest.map(view, &ram(0, 9)).unwrap();
            }
        };
        let old = add().unwrap();
        let pointer = guest.eptp(old).unwrap();
        map(old);
        assert!(machine.enter_view(1, old));
        read().unwrap();
        let flush = guest.remove_view(old);
        assert_eq!(guest.eptp(old), None);
        assert!(flush.applies_to(old));
        assert!(guest.eptps(&flush).eq([pointer]), "the operands of INVEPT");
        assert!(!machine.enter_view(1, old));
        // Removing it again has no effect.
        assert!(guest.remove_view(old).is_empty());

        let new = add().unwrap();
        map(new);
        assert!(!flush.applies_to(new));
        guest.flush(flush, &machine);
        // The vCPU enters a view whose root is in the old root's frame, and has no cached
        // translations of it.
        let mut views = vec![new];
        while guest.eptp(*views.last().unwrap()) != Some(pointer) {
            views.push(add().unwrap());
        }
        let last = *views.last().unwrap();
        assert!(machine.enter_view(1, last));
        let absent = Err(AccessError::Violation(ViolationOutcome::Absent(Gfn::new(
            5,
        ))));
        assert_eq!(read(), absent);
        assert!(machine.enter_view(1, View::MAIN));
        for view in views {
            let flush = guest.remove_view(view);
            guest.flush(flush, &machine);
        }
    }
    // Numbers and frames are reused.
    for _ in 0..100 {
        let view = guest.add_view().unwrap();
        let flush = guest.remove_view(view);
        guest.flush(flush, &machine);
    }
}

/// A page is written through a view that is being removed: a take invalidates its translations,
/// too.
#[test]
fn a_take_flushes_vcpus_that_are_still_in_a_removed_view() {
    let guest = guest();
    let machine = Machine::new(&guest, 2).unwrap();
    guest.map(View::MAIN, &ram(0, 512)).unwrap();
    let view = guest.add_view().unwrap();
    guest.map(view, &ram(0, 9)).unwrap();
    assert!(machine.enter_view(1, view));
    guest
        .start_log(LogMethod::WriteProtection, guest.all(), &machine)
        .unwrap();
    machine.access(1, 5 << 12, Access::Write, |_| ()).unwrap();
    let flush = guest.remove_view(view);
    assert_eq!(guest.take_log(guest.all(), &machine, &mut |_| ()), Ok(1));
    let gone = Err(AccessError::Violation(ViolationOutcome::NoView));
    assert_eq!(machine.access(1, 5 << 12, Access::Write, |_| ()), gone);
    guest.flush(flush, &machine);
}
