//! Splitting and merging superpages, and splitting without enough memory.

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, Gfn, Guest, Level, LogMethod, MergeError, PageType, SplitError, View,
    ViolationOutcome,
};

use crate::common::{guest, ram, range};

#[test]
fn merge_reverses_split() {
    let guest = guest();
    guest.map(View::MAIN, &ram(0, 1 << 18)).unwrap();
    let machine = Machine::new(&guest, 1).unwrap();
    let before = guest.lookup(View::MAIN, Gfn::new(0)).unwrap().entry;
    let flush = guest
        .split(View::MAIN, Gfn::new(1000), Level::Size4K)
        .unwrap();
    guest.flush(flush, &machine);
    let level = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap().level;
    assert_eq!(
        [1000, 512, 511, 1024].map(level),
        [Level::Size4K, Level::Size4K, Level::Size2M, Level::Size2M]
    );
    let merge = |at, level| guest.merge(View::MAIN, Gfn::new(at), level);
    assert_eq!(
        merge(0, Level::Size1G).unwrap_err(),
        MergeError::Unlike(Gfn::new(0))
    );
    machine
        .access(0, 1000 << 12, Access::Write, |_| ())
        .unwrap();
    let flush = merge(512, Level::Size2M).unwrap();
    assert!(
        guest
            .lookup(View::MAIN, Gfn::new(512))
            .unwrap()
            .entry
            .dirty()
    );
    guest.flush(flush, &machine);
    let flush = merge(0, Level::Size1G).unwrap();
    guest.flush(flush, &machine);
    let after = guest.lookup(View::MAIN, Gfn::new(0)).unwrap();
    assert_eq!(
        (
            after.level,
            after.entry.with_accessed(false).with_dirty(false)
        ),
        (Level::Size1G, before)
    );
    machine
        .access(0, 1000 << 12, Access::Write, |_| ())
        .unwrap();
    let wrong = MergeError::Level(Gfn::new(1), Level::Size2M);
    assert_eq!(merge(1, Level::Size2M).unwrap_err(), wrong);

    guest
        .start_log(LogMethod::WriteProtection, range(0, 10), &machine)
        .unwrap();
    machine.access(0, 0, Access::Write, |_| ()).unwrap();
    assert_eq!(
        merge(0, Level::Size2M).unwrap_err(),
        MergeError::Logged(Gfn::new(0))
    );
}

#[test]
fn a_split_without_memory_changes_nothing() {
    // Frames for the root, two tables and one frame of the reverse map; none for child leaves.
    let guest = Guest::new(TestMemory::new(4), 1024, 1, Capabilities::ALL).unwrap();
    guest.map(View::MAIN, &ram(0, 512)).unwrap();
    assert_eq!(guest.memory().free_frames(), 0);
    let machine = Machine::new(&guest, 1).unwrap();
    let split = guest
        .split(View::MAIN, Gfn::new(3), Level::Size4K)
        .map(|_| ());
    assert_eq!(split, Err(SplitError::NoMemory(Gfn::new(0))));
    guest
        .start_log(LogMethod::WriteProtection, guest.all(), &machine)
        .unwrap();
    let stop = machine.access(0, 3 << 12, Access::Write, |_| ());
    assert_eq!(
        stop,
        Err(AccessError::Violation(ViolationOutcome::NoMemory(
            Gfn::new(3)
        )))
    );
    machine.access(0, 3 << 12, Access::Read, |_| ()).unwrap();
}

#[test]
fn a_split_that_fails_halfway_leaks_nothing() {
    // One frame is left: enough for the table, but not for the reverse map of the child leaves.
    let guest = Guest::new(TestMemory::new(5), 1024, 1, Capabilities::ALL).unwrap();
    guest.map(View::MAIN, &ram(0, 512)).unwrap();
    for _ in 0..3 {
        let split = guest
            .split(View::MAIN, Gfn::new(3), Level::Size4K)
            .map(|_| ());
        assert_eq!(split, Err(SplitError::NoMemory(Gfn::new(0))));
        assert_eq!(guest.memory().free_frames(), 1);
    }
    let machine = Machine::new(&guest, 1).unwrap();
    machine.access(0, 3 << 12, Access::Write, |_| ()).unwrap();
}

#[test]
fn unmap_without_memory_removes_whole_superpages_but_not_device_marks() {
    // Frames for the root, two tables and one frame of the reverse map; none for child leaves.
    let guest = Guest::new(TestMemory::new(4), 1024, 1, Capabilities::ALL).unwrap();
    guest.map(View::MAIN, &ram(0, 512)).unwrap();
    guest.map_mmio(View::MAIN, range(512, 1024)).unwrap();
    assert_eq!(guest.memory().free_frames(), 0);
    let kind = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap().page_type;
    let flush = guest.unmap(View::MAIN, range(500, 600));
    assert!(flush.covers(View::MAIN, Gfn::new(3)));
    guest.flush(flush, &());
    assert_eq!([3, 505].map(kind), [PageType::Absent; 2]);
    assert_eq!([550, 1000].map(kind), [PageType::Mmio; 2]);
    // A range that covers the superpage needs no split and is unmapped.
    let flush = guest.unmap(View::MAIN, range(512, 1024));
    guest.flush(flush, &());
    assert_eq!(kind(1000), PageType::Absent);
}
