//! Ageing by accessed flags, in one view and in all views.

use hikkoshi_ept::testing::{Access, Machine, TestMemory};
use hikkoshi_ept::{AgeError, Capabilities, Gfn, Guest, View};

use crate::common::{self, guest, ram, range};

#[test]
fn ageing_reports_used_leaves() {
    let guest = guest();
    let machine = Machine::new(&guest, 1).unwrap();
    guest.map(View::MAIN, &ram(0, 1100)).unwrap();
    let age = || {
        let mut used = Vec::new();
        let flush = guest
            .age(View::MAIN, guest.all(), &mut |span| used.push(span))
            .unwrap();
        guest.flush(flush, &machine);
        used
    };
    assert_eq!(age(), []);
    machine.access(0, 600 << 12, Access::Read, |_| ()).unwrap();
    machine
        .access(0, 1099 << 12, Access::Write, |_| ())
        .unwrap();
    assert_eq!(age(), [range(512, 1024), range(1099, 1100)]);
    assert_eq!(age(), []);
    machine.access(0, 600 << 12, Access::Read, |_| ()).unwrap();
    assert_eq!(age(), [range(512, 1024)]);
}

#[test]
fn ageing_covers_all_views() {
    let guest = guest();
    let machine = Machine::new(&guest, 2).unwrap();
    let second = guest.add_view().unwrap();
    let nested = guest.add_nested_view().unwrap();
    guest.map(View::MAIN, &ram(0, 1024)).unwrap();
    guest.map(second, &ram(3, 5)).unwrap();
    guest.map_nested(nested, Gfn::new(70), &ram(7, 9)).unwrap();
    let age = || {
        let mut used = Vec::new();
        let flush = guest
            .age_all_views(range(0, 1000), &mut |span| used.push(span))
            .unwrap();
        guest.flush(flush, &machine);
        used
    };
    let read = |cpu: usize, page: u64| machine.access(cpu, page << 12, Access::Read, |_| ());
    assert_eq!(age(), []);
    read(0, 600).unwrap();
    assert!(machine.enter_view(1, second));
    read(1, 4).unwrap();
    assert!(machine.enter_view(1, nested));
    read(1, 71).unwrap();
    assert_eq!(age(), [range(512, 1024), range(4, 5), range(8, 9)]);
    assert_eq!(age(), []);
    read(1, 71).unwrap();
    assert_eq!(age(), [range(8, 9)]);
}

#[test]
fn ageing_errors() {
    let old = Capabilities {
        accessed_dirty: false,
        pml: false,
        ..Capabilities::ALL
    };
    let guest = Guest::new(TestMemory::new(100), 1024, 1, old).unwrap();
    let age = guest.age(View::MAIN, guest.all(), &mut |_| ());
    assert_eq!(age.map(|_| ()), Err(AgeError::Unsupported));
    let age = guest.age_all_views(guest.all(), &mut |_| ());
    assert_eq!(age.map(|_| ()), Err(AgeError::Unsupported));
    let guest = common::guest();
    let gone = guest.add_view().unwrap();
    let flush = guest.remove_view(gone);
    guest.flush(flush, &());
    let age = guest.age(gone, guest.all(), &mut |_| ());
    assert_eq!(age.map(|_| ()), Err(AgeError::NoView(gone)));
}
