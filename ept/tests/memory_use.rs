//! The host memory that the crate uses: how much it is, and what happens when it runs out.
#![cfg(not(loom))]
// Helpers outside the test functions: an unwrap that fails is a test failure too.
#![allow(clippy::unwrap_used)]

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, CreateError, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, MapError,
    Mapping, MergeError, ReverseMapBytes, SplitError, StartError, VcpuError, View,
    ViolationOutcome,
};

const HOST: u64 = 1 << 18;
/// 2 GiB.
const PAGES: u64 = 2 << 18;

fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

fn ram(range: GfnRange, max_level: Level) -> Mapping {
    Mapping {
        max_level,
        ..Mapping::ram(range, HostFrame::new(HOST + range.start().index()))
    }
}

/// Returns the size of the reverse map for a guest of 2 GiB that is completely mapped in its main
/// view, and as `other` maps it in other views.
fn reverse_map(max_level: Level, other: impl FnOnce(&Guest<TestMemory>)) -> ReverseMapBytes {
    let guest = Guest::new(TestMemory::new(7000), PAGES, 0, Capabilities::ALL).unwrap();
    guest.map(View::MAIN, &ram(guest.all(), max_level)).unwrap();
    other(&guest);
    guest.reverse_map_bytes()
}

fn share(bytes: u64) -> f64 {
    bytes as f64 / (PAGES * 4096) as f64
}

/// What 0.2 % of guest memory is enough for, and what takes more.
#[test]
fn size_of_the_reverse_map() {
    let second = |range: GfnRange, max_level: Level| {
        move |guest: &Guest<TestMemory>| {
            let view = guest.add_view().unwrap();
            guest.map(view, &ram(range, max_level)).unwrap();
        }
    };
    let all = range(0, PAGES);

    // Mapped once: one word for each page.
    let once = reverse_map(Level::Size4K, |_| ());
    assert_eq!(once.chains, 0);
    assert!(share(once.total()) <= 0.002, "{once:?}");

    // Superpages: 8 bytes each.
    let large = reverse_map(Level::Size2M, |_| ());
    assert!(share(large.total()) <= 0.000_01, "{large:?}");

    // One page in a hundred mapped twice: the total is still within 0.2 %.
    let sparse = reverse_map(Level::Size4K, second(range(0, PAGES / 100), Level::Size4K));
    assert!(sparse.chains > 0);
    assert!(share(sparse.total()) <= 0.002, "{sparse:?}");

    // A second view with superpages: 16 bytes each, and the words for them.
    let twice = reverse_map(Level::Size2M, second(all, Level::Size2M));
    assert!(share(twice.total()) <= 0.000_02, "{twice:?}");

    // A second view with 4 KiB leaves: 16 bytes more for each page, and 1/510 of that for the frame
    // list.
    let twice = reverse_map(Level::Size4K, second(all, Level::Size4K));
    assert_eq!(twice.first, once.first);
    assert_eq!(
        twice.chains,
        PAGES * 16 + PAGES * 16 / 4096_u64.pow(2) * 4096 + 5 * 4096
    );

    // A nested view maps the same frames at other addresses: the same size.
    let nested = reverse_map(Level::Size4K, |guest| {
        let view = guest.add_nested_view().unwrap();
        let at = Gfn::new(1 << 30);
        guest
            .map_nested(view, at, &ram(all, Level::Size4K))
            .unwrap();
    });
    assert_eq!(nested, twice);
}

/// Returns the result of an operation, or `None` if it ran out of memory. Any other error fails the
/// test.
fn worked<T, E: std::fmt::Debug>(done: Result<T, E>, no_memory: fn(&E) -> bool) -> Option<T> {
    match done {
        Ok(value) => Some(value),
        Err(error) if no_memory(&error) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Maps in three views, logs, writes, splits, merges and unmaps as far as the frames suffice.
/// Returns whether everything succeeded.
fn live(ram: &TestMemory, method: LogMethod) -> bool {
    const PAGES: u64 = 1100;
    let mut whole = true;
    let Some(guest) = worked(Guest::new(ram, PAGES, 2, Capabilities::ALL), |error| {
        matches!(error, CreateError::NoMemory)
    }) else {
        return false;
    };
    let machine = Machine::new(&guest, 1).unwrap();
    let no_frame = |error: &MapError| matches!(error, MapError::NoMemory(_));
    let create = |error: &CreateError| matches!(error, CreateError::NoMemory);
    let mut map = |view: View, max_level: Level| {
        let mapping = self::ram(guest.all(), max_level);
        let done = if view == View::MAIN {
            guest.map(view, &mapping)
        } else {
            guest.map_nested(view, Gfn::new(5 << 9), &mapping)
        };
        whole &= worked(done, no_frame).is_some();
    };
    map(View::MAIN, Level::Size1G);
    if let Some(nested) = worked(guest.add_nested_view(), create) {
        map(nested, Level::Size4K);
    }
    if let Some(second) = worked(guest.add_view(), create) {
        let mapping = self::ram(guest.all(), Level::Size4K);
        whole &= worked(guest.map(second, &mapping), no_frame).is_some();
        let split = guest.split(second, Gfn::new(0), Level::Size4K);
        let split = worked(split, |error| matches!(error, SplitError::NoMemory(_)));
        guest.flush(split.unwrap_or_default(), &machine);
    }
    let started = guest.start_log(method, guest.all(), &machine);
    let logging = worked(started, |error| matches!(error, StartError::NoMemory)).is_some();
    let added = machine.add_cpu();
    whole &= worked(added, |error| matches!(error, VcpuError::NoMemory)).is_some();
    let mut written = Vec::new();
    for page in (0..PAGES).step_by(100) {
        match machine.access(0, page << 12, Access::Write, |_| ()) {
            Ok(()) => written.push(page),
            Err(AccessError::Violation(
                ViolationOutcome::NoMemory(_) | ViolationOutcome::Absent(_),
            )) => whole = false,
            Err(other) => panic!("{other:?}"),
        }
    }
    if logging {
        let mut taken = Vec::new();
        let mut note = |run: GfnRange| taken.extend(run.iter().map(Gfn::index));
        guest.take_log(guest.all(), &machine, &mut note).unwrap();
        assert_eq!(taken, written, "the log is correct even without memory");
        guest.stop_log(guest.all(), &machine).unwrap();
    }
    for large in [0, 512] {
        match guest.merge(View::MAIN, Gfn::new(large), Level::Size2M) {
            Ok(flush) => guest.flush(flush, &machine),
            Err(MergeError::NoMemory(_) | MergeError::Unlike(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Splits the superpages at the edges of the range, or unmaps them if there is no frame for
    // that.
    let flush = guest.unmap(View::MAIN, range(3, 1000));
    guest.flush(flush, &machine);
    for page in [3, 500, 999] {
        assert_eq!(guest.lookup(View::MAIN, Gfn::new(page)).unwrap().host, None);
    }
    whole && logging
}

#[test]
fn running_out_of_frames_at_any_point_corrupts_and_leaks_nothing() {
    for method in [
        LogMethod::WriteProtection,
        LogMethod::DirtyFlags,
        LogMethod::Pml,
    ] {
        let mut frames = 0;
        loop {
            let ram = TestMemory::new(frames);
            let whole = live(&ram, method);
            assert_eq!(ram.free_frames(), frames, "{method:?}, {frames} frames");
            if whole {
                break;
            }
            frames += 1;
            assert!(frames < 200, "fewer frames should be enough");
        }
        assert!(frames > 20, "{frames} frames: no run was short of memory");
    }
}
