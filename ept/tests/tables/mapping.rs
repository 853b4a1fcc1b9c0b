//! Mapping, unmapping, permissions, emulated devices, and the ownership of TLB flushes.

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, CreateError, ExitQualification, Gfn, GfnRange, Guest, HostFrame, Level,
    LogMethod, MAX_PAGES, MapError, Mapping, MemoryType, MergeError, PageType, Permissions,
    SplitError, TlbFlush, View, ViolationOutcome,
};

use crate::common::{self, HOST, PAGES, guest, ram, range};

#[test]
fn map_uses_the_largest_possible_leaves() {
    let guest = guest();
    guest.map(View::MAIN, &ram(100, PAGES - 1)).unwrap();
    let level = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap().level;
    assert_eq!(level(100), Level::Size4K);
    assert_eq!(level(512), Level::Size2M);
    assert_eq!(
        level(1 << 18),
        Level::Size2M,
        "the second GiB is not complete"
    );
    assert_eq!(level(PAGES - 2), Level::Size4K);
    let found = guest.lookup(View::MAIN, Gfn::new(777)).unwrap();
    assert_eq!(found.host, Some(HostFrame::new(HOST + 777)));
    assert_eq!(found.gfn, Some(Gfn::new(777)));
    assert_eq!(found.permissions, Some(Permissions::All));
    assert_eq!(found.memory_type, Some(MemoryType::WriteBack));
    let hole = guest.lookup(View::MAIN, Gfn::new(99)).unwrap();
    assert_eq!((hole.page_type, hole.host), (PageType::Absent, None));

    let whole = common::guest();
    whole.map(View::MAIN, &ram(0, PAGES)).unwrap();
    assert_eq!(
        whole.lookup(View::MAIN, Gfn::new(5)).unwrap().level,
        Level::Size1G
    );
    let small = Capabilities {
        pages_1g: false,
        pages_2m: false,
        ..Capabilities::ALL
    };
    let small = Guest::new(TestMemory::new(100), 1024, 0, small).unwrap();
    small.map(View::MAIN, &ram(0, 1024)).unwrap();
    assert_eq!(
        small.lookup(View::MAIN, Gfn::new(5)).unwrap().level,
        Level::Size4K
    );
}

#[test]
fn map_errors() {
    let guest = guest();
    guest.map(View::MAIN, &ram(0, 600)).unwrap();
    guest.map(View::MAIN, &ram(500, 700)).unwrap();
    let elsewhere = Mapping {
        host: HostFrame::new(1),
        ..ram(600, 601)
    };
    let occupied = Err(MapError::Occupied(Gfn::new(600)));
    assert_eq!(guest.map(View::MAIN, &elsewhere), occupied);
    let past = range(PAGES - 1, PAGES + 1);
    let mapping = Mapping::ram(past, HostFrame::new(HOST));
    assert_eq!(
        guest.map(View::MAIN, &mapping),
        Err(MapError::OutOfRange(past))
    );
    let far = Mapping::ram(range(1000, 1001), HostFrame::new(1 << 36));
    assert_eq!(
        guest.map(View::MAIN, &far),
        Err(MapError::HostAddress(far.host))
    );
    assert_eq!(
        MapError::HostAddress(far.host).to_string(),
        "cannot map to host frame 0x1000000000: its address is wider than the processor's physical addresses"
    );

    let plain = Capabilities {
        execute_only: false,
        ..Capabilities::ALL
    };
    let guest = Guest::new(TestMemory::new(4), 1024, 1, plain).unwrap();
    let execute = Mapping {
        permissions: Permissions::Execute,
        ..ram(0, 1)
    };
    assert_eq!(
        guest.map(View::MAIN, &execute),
        Err(MapError::ExecuteOnly(range(0, 1)))
    );
    let error = guest.map(View::MAIN, &ram(0, 1)).unwrap_err();
    assert_eq!(
        error,
        MapError::NoMemory(Gfn::new(0)),
        "4 frames: none for the reverse map"
    );
    assert_eq!(
        guest.lookup(View::MAIN, Gfn::new(0)).unwrap().page_type,
        PageType::Absent
    );
    let none = Guest::new(TestMemory::new(4), 0, 1, plain).unwrap_err();
    assert_eq!(none, CreateError::Size(0));
}

#[test]
fn device_marks_exit_and_can_be_unmapped_in_part() {
    let guest = guest();
    let machine = Machine::new(&guest, 1).unwrap();
    guest.map_mmio(View::MAIN, range(0, 1024)).unwrap();
    let stop = machine.access(0, 0x12_3456, Access::Read, |_| ());
    assert_eq!(
        stop,
        Err(AccessError::Violation(ViolationOutcome::Mmio {
            address: 0x12_3456
        }))
    );
    let flush = guest.unmap(View::MAIN, range(3, 5));
    guest.flush(flush, &machine);
    let kind = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap().page_type;
    assert_eq!(
        [2, 3, 4, 5].map(kind),
        [
            PageType::Mmio,
            PageType::Absent,
            PageType::Absent,
            PageType::Mmio
        ]
    );
    assert_eq!(
        guest.map(View::MAIN, &ram(5, 6)),
        Err(MapError::Occupied(Gfn::new(5)))
    );
}

/// The tables translate 48 bits; the upper bits of an address must not be ignored.
#[test]
fn addresses_above_48_bits_are_out_of_range() {
    let guest = guest();
    let machine = Machine::new(&guest, 1).unwrap();
    let small = Mapping {
        max_level: Level::Size4K,
        ..ram(0, 1024)
    };
    guest.map(View::MAIN, &small).unwrap();
    let method = LogMethod::WriteProtection;
    guest.start_log(method, range(0, 512), &machine).unwrap();
    let beyond = Gfn::new(MAX_PAGES + 5);
    let absent = ViolationOutcome::Absent(beyond);
    let write = ExitQualification(2);
    assert_eq!(
        guest.handle_ept_violation(View::MAIN, beyond.address(), write),
        absent
    );
    assert_eq!(
        machine.access(0, beyond.address(), Access::Write, |_| ()),
        Err(AccessError::Violation(absent))
    );
    machine.access(0, 5 << 12, Access::Write, |_| ()).unwrap();
    assert_eq!(
        guest.count_dirty(guest.all(), &machine),
        Ok(1),
        "only page 5 is logged"
    );

    let (page, aligned) = (GfnRange::from_len(beyond, 1), Gfn::new(MAX_PAGES + 512));
    assert_eq!(guest.lookup(View::MAIN, beyond), None);
    let split = guest.split(View::MAIN, beyond, Level::Size4K).map(|_| ());
    assert_eq!(split, Err(SplitError::OutOfRange(beyond)));
    let merged = guest.merge(View::MAIN, aligned, Level::Size2M).map(|_| ());
    assert_eq!(merged, Err(MergeError::Level(aligned, Level::Size2M)));
    let (flush, done) = guest.protect(View::MAIN, page, Permissions::Read);
    assert!(flush.is_empty());
    assert_eq!(done, Err(SplitError::OutOfRange(page.end())));
    assert!(guest.unmap(View::MAIN, page).is_empty());
    assert_eq!(
        guest.map_mmio(View::MAIN, page),
        Err(MapError::OutOfRange(page))
    );
    let nested = guest.add_nested_view().unwrap();
    for at in [Gfn::new(MAX_PAGES - 1), Gfn::new(u64::MAX)] {
        assert_eq!(
            guest.map_nested(nested, at, &ram(5, 7)),
            Err(MapError::OutOfRange(range(5, 7)))
        );
    }
    let there = guest.lookup(View::MAIN, Gfn::new(5)).unwrap();
    assert_eq!(there.permissions, Some(Permissions::All));
}

#[test]
fn protect_changes_permissions_and_splits_superpages() {
    let guest = guest();
    let machine = Machine::new(&guest, 1).unwrap();
    guest.map(View::MAIN, &ram(0, 1024)).unwrap();
    machine.access(0, 0x5000, Access::Write, |_| ()).unwrap();
    let (flush, done) = guest.protect(View::MAIN, range(5, 6), Permissions::Read);
    done.unwrap();
    // Until the flush is done, the software processor uses the cached translation.
    machine.access(0, 0x5000, Access::Write, |_| ()).unwrap();
    guest.flush(flush, &machine);
    let denied = Err(AccessError::Violation(ViolationOutcome::Denied(Gfn::new(
        5,
    ))));
    assert_eq!(machine.access(0, 0x5000, Access::Write, |_| ()), denied);
    assert_eq!(machine.access(0, 0x5000, Access::Fetch, |_| ()), denied);
    machine.access(0, 0x5000, Access::Read, |_| ()).unwrap();
    machine.access(0, 0x6000, Access::Fetch, |_| ()).unwrap();
    assert_eq!(
        guest.lookup(View::MAIN, Gfn::new(600)).unwrap().level,
        Level::Size2M
    );
}

#[test]
fn a_flush_is_accepted_only_by_the_guest_it_belongs_to() {
    let (guest, other) = (guest(), common::guest());
    guest.map(View::MAIN, &ram(0, 9)).unwrap();
    let flush = || guest.unmap(View::MAIN, range(0, 1));
    for wrong in [&|flush: TlbFlush| other.flush(flush, &()), &|flush| {
        other.batch(&mut TlbFlush::none(), flush)
    }] as [&dyn Fn(TlbFlush); 2]
    {
        let attempt = std::panic::AssertUnwindSafe(|| wrong(flush()));
        assert!(std::panic::catch_unwind(attempt).is_err());
        guest.map(View::MAIN, &ram(0, 1)).unwrap();
    }
    // An empty flush is accepted by any guest; combined flushes by the guest they belong to.
    other.flush(TlbFlush::none(), &());
    let mut all = TlbFlush::none();
    guest.batch(&mut all, flush());
    guest.batch(&mut all, flush());
    guest.flush(all, &());
}
