//! Mapping, unmapping, permissions, superpages, views, and what is refused.
#![cfg(not(loom))]
// Helpers outside the test functions: their failure is the message too.
#![allow(clippy::unwrap_used)]

use hikkoshi_ept::testing::{Access, AccessError, Cpu, Exit, Machine, TestMemory};
use hikkoshi_ept::{
    AgeError, Capabilities, CreateError, Entry, ExitQualification, Frame, FrameAccess,
    FrameAllocator, Gfn, GfnRange, Guest, Level, LogMethod, MAX_PAGES, MapError, Mapping,
    MemoryType, MergeError, PageType, Permissions, SplitError, StartError, TakeError, TlbFlush,
    VcpuError, View, ViolationOutcome,
};

const HOST: u64 = 1 << 18;
/// 2 GiB.
const PAGES: u64 = 2 << 18;

fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

fn guest() -> Guest<TestMemory> {
    Guest::new(TestMemory::new(3000), PAGES, 2, Capabilities::ALL).unwrap()
}

fn ram(start: u64, end: u64) -> Mapping {
    Mapping::ram(range(start, end), Frame::new(HOST + start))
}

#[test]
fn leaves_are_as_large_as_they_can_be() {
    let guest = guest();
    guest.map(View::MAIN, &ram(100, PAGES - 1)).unwrap();
    let level = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap().level;
    assert_eq!(level(100), Level::Size4K);
    assert_eq!(level(512), Level::Size2M);
    assert_eq!(level(1 << 18), Level::Size2M, "the second GiB lacks a page");
    assert_eq!(level(PAGES - 2), Level::Size4K);
    let found = guest.lookup(View::MAIN, Gfn::new(777)).unwrap();
    assert_eq!(found.host, Some(Frame::new(HOST + 777)));
    assert_eq!(found.gfn, Some(Gfn::new(777)));
    assert_eq!(found.permissions, Some(Permissions::All));
    assert_eq!(found.memory_type, Some(MemoryType::WriteBack));
    let hole = guest.lookup(View::MAIN, Gfn::new(99)).unwrap();
    assert_eq!((hole.page_type, hole.host), (PageType::Absent, None));

    let whole = self::guest();
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
fn what_cannot_be_mapped_is_refused_by_name() {
    let guest = guest();
    guest.map(View::MAIN, &ram(0, 600)).unwrap();
    guest.map(View::MAIN, &ram(500, 700)).unwrap();
    let elsewhere = Mapping {
        host: Frame::new(1),
        ..ram(600, 601)
    };
    let occupied = Err(MapError::Occupied(Gfn::new(600)));
    assert_eq!(guest.map(View::MAIN, &elsewhere), occupied);
    let past = range(PAGES - 1, PAGES + 1);
    let mapping = Mapping::ram(past, Frame::new(HOST));
    assert_eq!(
        guest.map(View::MAIN, &mapping),
        Err(MapError::OutOfRange(past))
    );
    let far = Mapping::ram(range(1000, 1001), Frame::new(1 << 36));
    assert_eq!(
        guest.map(View::MAIN, &far),
        Err(MapError::HostAddress(far.host))
    );
    assert_eq!(
        MapError::HostAddress(far.host).to_string(),
        "mapping to host frame 0x1000000000: the processor's physical addresses are shorter"
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
        "4 frames: no place for the reverse map"
    );
    assert_eq!(
        guest.lookup(View::MAIN, Gfn::new(0)).unwrap().page_type,
        PageType::Absent
    );
    let none = Guest::new(TestMemory::new(4), 0, 1, plain).unwrap_err();
    assert_eq!(none, CreateError::Size(0));
}

#[test]
fn devices_exit_and_can_be_cut() {
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

/// The tables translate 48 bits; the rest of an address must not be dropped on the way.
#[test]
fn addresses_beyond_48_bits_are_other_addresses() {
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
        "page 5 is logged"
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
fn permissions_hold_and_superpages_are_cut() {
    let guest = guest();
    let machine = Machine::new(&guest, 1).unwrap();
    guest.map(View::MAIN, &ram(0, 1024)).unwrap();
    machine.access(0, 0x5000, Access::Write, |_| ()).unwrap();
    let (flush, done) = guest.protect(View::MAIN, range(5, 6), Permissions::Read);
    done.unwrap();
    // Until the obligation is met, the processor goes on as before: the model is a mean one.
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
fn split_and_merge_are_opposites() {
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
fn a_guest_in_several_views() {
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
    assert_eq!(dirty, [range(3, 5)], "by guest frame, whatever the view");
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

/// Until the obligation of a removal is met, nothing of the view is used for another one: neither the number,
/// by which the obligation names it, nor the root's frame, by which processors tag what they remember.
#[test]
fn a_removed_view_is_not_another_one_before_it_is_forgotten() {
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
        assert!(guest.eptps(&flush).eq([pointer]), "what INVEPT needs");
        assert!(!machine.enter_view(1, old));
        // Removing it again removes nothing.
        assert!(guest.remove_view(old).is_empty());

        let new = add().unwrap();
        map(new);
        assert!(!flush.applies_to(new));
        guest.flush(flush, &machine);
        // The processor comes to a root in the frame of the old one, and remembers nothing of it.
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
    // Numbers and frames come back.
    for _ in 0..100 {
        let view = guest.add_view().unwrap();
        let flush = guest.remove_view(view);
        guest.flush(flush, &machine);
    }
}

/// A page is written through a view that is being removed: a take has the processor forget that, too.
#[test]
fn a_take_reaches_processors_that_are_still_in_a_removed_view() {
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

#[test]
fn an_obligation_is_met_where_it_is_owed() {
    let (guest, other) = (guest(), self::guest());
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
    // What is empty, and what was gathered, is anybody's and the guest's.
    other.flush(TlbFlush::none(), &());
    let mut all = TlbFlush::none();
    guest.batch(&mut all, flush());
    guest.batch(&mut all, flush());
    guest.flush(all, &());
}

#[test]
fn ageing_tells_what_was_used() {
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
fn ageing_goes_through_all_views() {
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
fn ageing_is_refused_where_it_would_say_nothing() {
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
    let guest = self::guest();
    let gone = guest.add_view().unwrap();
    let flush = guest.remove_view(gone);
    guest.flush(flush, &());
    let age = guest.age(gone, guest.all(), &mut |_| ());
    assert_eq!(age.map(|_| ()), Err(AgeError::NoView(gone)));
}

#[test]
fn a_log_is_refused_where_it_cannot_be() {
    let old = Capabilities {
        accessed_dirty: false,
        pml: false,
        ..Capabilities::ALL
    };
    let guest = Guest::new(TestMemory::new(100), 1024, 2, old).unwrap();
    let start = |method, range| guest.start_log(method, range, &());
    for method in [LogMethod::DirtyFlags, LogMethod::Pml] {
        assert_eq!(
            start(method, guest.all()),
            Err(StartError::Unsupported(method))
        );
    }
    let past = range(0, 1025);
    assert_eq!(
        start(LogMethod::WriteProtection, past),
        Err(StartError::OutOfRange(past))
    );
    assert_eq!(
        guest.take_log(guest.all(), &(), &mut |_| ()),
        Err(TakeError::Off)
    );

    // Memory for one of two page-modification logs.
    let guest = Guest::new(TestMemory::new(2), 1024, 2, Capabilities::ALL).unwrap();
    let first = guest.add_vcpu().unwrap();
    guest.add_vcpu().unwrap();
    assert_eq!(guest.add_vcpu(), Err(VcpuError::TooMany(2)));
    let all = guest.all();
    assert_eq!(
        guest.start_log(LogMethod::Pml, all, &()),
        Err(StartError::NoMemory)
    );
    assert_eq!((guest.log_method(), guest.pml_address(first)), (None, None));
    assert_eq!(guest.memory().free_frames(), 1, "nothing is kept");
    let second = guest.add_vcpu();
    assert_eq!(second, Err(VcpuError::TooMany(2)));

    // A processor that comes later has its log, or does not come.
    let guest = Guest::new(TestMemory::new(3), 1024, 3, Capabilities::ALL).unwrap();
    guest.add_vcpu().unwrap();
    guest.start_log(LogMethod::Pml, guest.all(), &()).unwrap();
    let other = StartError::OtherMethod {
        wanted: LogMethod::DirtyFlags,
        on: LogMethod::Pml,
    };
    assert_eq!(
        guest.start_log(LogMethod::DirtyFlags, guest.all(), &()),
        Err(other)
    );
    let later = guest.add_vcpu().unwrap();
    assert!(guest.pml_address(later).is_some());
    assert_eq!(guest.add_vcpu(), Err(VcpuError::NoMemory));
    guest.remove_vcpu(later, 511);
    guest.add_vcpu().unwrap();
}

#[test]
fn splitting_without_memory_leaves_all_as_it_was() {
    // Root, two tables, a frame of the reverse map's; none for pieces.
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
fn unmapping_without_memory_takes_whole_superpages_and_leaves_devices() {
    // Root, two tables, a frame of the reverse map's; none for pieces.
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
    // Where it need not be split it goes.
    let flush = guest.unmap(View::MAIN, range(512, 1024));
    guest.flush(flush, &());
    assert_eq!(kind(1000), PageType::Absent);
}

#[test]
fn splitting_that_fails_half_way_keeps_nothing() {
    // One frame is left: for the table, but not for the reverse map of its pieces.
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
fn the_model_refuses_what_the_sdm_calls_a_misconfiguration() {
    let ram = TestMemory::new(10);
    let tables: Vec<_> = (0..4).map(|_| ram.allocate().unwrap()).collect();
    let set = |level: usize, bits: u64| {
        ram.table(tables[level])[0].store(bits, std::sync::atomic::Ordering::Relaxed)
    };
    for level in 0..3 {
        set(level, tables[level + 1].address() | 7);
    }
    let eptp = hikkoshi_ept::Eptp::new(tables[0], true);
    let access = |access| Cpu::new(View::MAIN, eptp, Capabilities::ALL).access(&ram, 0, access);
    for (level, bits) in [
        (3, 0x1032),           // write-only
        (3, 0x1036),           // write and execute
        (3, 0x103f & !7 | 7),  // memory type 7
        (3, 1 << 50 | 0x1037), // beyond the address width
        (2, 0x20_1000 | 0xb7), // a large page, not aligned
        (0, 0x1087),           // a leaf in the root
        (1, 0x1047),           // reserved bit of a reference
    ] {
        let good = ram.table(tables[level])[0].load(std::sync::atomic::Ordering::Relaxed);
        set(level, bits);
        let refused = Exit::Misconfiguration {
            address: 0,
            entry: Entry(bits),
        };
        assert_eq!(access(Access::Read), Err(refused));
        set(level, good);
    }
    set(3, 0x1031);
    assert_eq!(access(Access::Read), Ok(0x1000));
    let denied = access(Access::Write);
    let Err(Exit::Violation { qualification, .. }) = denied else {
        panic!("{denied:?}")
    };
    // A data write; readable only; a linear address, and its translation.
    assert_eq!(qualification.0, 0x2 | 0x8 | 0x180);
}
