//! The host memory that the crate takes: how much, and what happens when there is no more.
#![cfg(not(loom))]
// Helpers outside the test functions: their failure is the message too.
#![allow(clippy::unwrap_used)]

use hikkoshi_ept::testing::{Access, Machine, Ram, Stop};
use hikkoshi_ept::{
    Capabilities, CreateError, Form, Frame, Gfn, GfnRange, Guest, Level, MapError, Mapping,
    MergeError, ReverseMapBytes, SplitError, StartError, VcpuError, View, Violation,
};

const HOST: u64 = 1 << 18;
/// 2 GiB.
const PAGES: u64 = 2 << 18;

fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

fn ram(range: GfnRange, largest: Level) -> Mapping {
    Mapping {
        largest,
        ..Mapping::ram(range, Frame::new(HOST + range.start().index()))
    }
}

/// The reverse map of a guest of 2 GiB whose main view is mapped as a whole, and another view as said.
fn reverse_map(largest: Level, other: impl FnOnce(&Guest<Ram>)) -> ReverseMapBytes {
    let guest = Guest::new(Ram::new(7000), PAGES, 0, Capabilities::ALL).unwrap();
    guest.map(View::MAIN, &ram(guest.all(), largest)).unwrap();
    other(&guest);
    guest.reverse_map_bytes()
}

fn share(bytes: u64) -> f64 {
    bytes as f64 / (PAGES * 4096) as f64
}

/// What 0.2 % of guest memory covers, and what it does not.
#[test]
fn the_reverse_map_is_small() {
    let second = |range: GfnRange, largest: Level| {
        move |guest: &Guest<Ram>| {
            let view = guest.add_view().unwrap();
            guest.map(view, &ram(range, largest)).unwrap();
        }
    };
    let all = range(0, PAGES);

    // Mapped once: a word a page.
    let once = reverse_map(Level::Page, |_| ());
    assert_eq!(once.chains, 0);
    assert!(share(once.total()) <= 0.002, "{once:?}");

    // By superpages: 8 bytes each.
    let large = reverse_map(Level::Large, |_| ());
    assert!(share(large.total()) <= 0.000_01, "{large:?}");

    // One page in a hundred mapped twice: within the same budget, all in all.
    let sparse = reverse_map(Level::Page, second(range(0, PAGES / 100), Level::Page));
    assert!(sparse.chains > 0);
    assert!(share(sparse.total()) <= 0.002, "{sparse:?}");

    // A second view of superpages: 16 bytes each, and the words for these.
    let twice = reverse_map(Level::Large, second(all, Level::Large));
    assert!(share(twice.total()) <= 0.000_02, "{twice:?}");

    // A second view of 4 KiB leaves: 16 bytes a page more, and 1/510 of that for the book.
    let twice = reverse_map(Level::Page, second(all, Level::Page));
    assert_eq!(twice.first, once.first);
    assert_eq!(
        twice.chains,
        PAGES * 16 + PAGES * 16 / 4096_u64.pow(2) * 4096 + 5 * 4096
    );

    // A nested view maps the same frames elsewhere: no more than that.
    let nested = reverse_map(Level::Page, |guest| {
        let view = guest.add_nested_view().unwrap();
        let at = Gfn::new(1 << 30);
        guest.map_nested(view, at, &ram(all, Level::Page)).unwrap();
    });
    assert_eq!(nested, twice);
}

/// Whether an operation worked, or had no memory; nothing else may go wrong.
fn worked<T, E: std::fmt::Debug>(done: Result<T, E>, no_memory: fn(&E) -> bool) -> Option<T> {
    match done {
        Ok(value) => Some(value),
        Err(error) if no_memory(&error) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Maps in three views, logs, writes, splits, merges, unmaps: as far as the frames last. Whether all went
/// through.
fn live(ram: &Ram, form: Form) -> bool {
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
    let mut map = |view: View, largest: Level| {
        let mapping = self::ram(guest.all(), largest);
        let done = if view == View::MAIN {
            guest.map(view, &mapping)
        } else {
            guest.map_nested(view, Gfn::new(5 << 9), &mapping)
        };
        whole &= worked(done, no_frame).is_some();
    };
    map(View::MAIN, Level::Huge);
    if let Some(nested) = worked(guest.add_nested_view(), create) {
        map(nested, Level::Page);
    }
    if let Some(second) = worked(guest.add_view(), create) {
        let mapping = self::ram(guest.all(), Level::Page);
        whole &= worked(guest.map(second, &mapping), no_frame).is_some();
        let split = guest.split(second, Gfn::new(0), Level::Page);
        let split = worked(split, |error| matches!(error, SplitError::NoMemory(_)));
        guest.discharge(split.unwrap_or_default(), &machine);
    }
    let started = guest.start_log(form, guest.all(), &machine);
    let logging = worked(started, |error| matches!(error, StartError::NoMemory)).is_some();
    let added = machine.add_cpu();
    whole &= worked(added, |error| matches!(error, VcpuError::NoMemory)).is_some();
    let mut written = Vec::new();
    for page in (0..PAGES).step_by(100) {
        match machine.access(0, page << 12, Access::Write, |_| ()) {
            Ok(()) => written.push(page),
            Err(Stop::Violation(Violation::NoMemory(_) | Violation::Absent(_))) => whole = false,
            Err(other) => panic!("{other:?}"),
        }
    }
    if logging {
        let mut taken = Vec::new();
        let mut note = |run: GfnRange| taken.extend(run.iter().map(Gfn::index));
        guest.take(guest.all(), &machine, &mut note).unwrap();
        assert_eq!(taken, written, "out of memory, but the log is right");
        guest.stop_log(guest.all(), &machine).unwrap();
    }
    for large in [0, 512] {
        match guest.merge(View::MAIN, Gfn::new(large), Level::Large) {
            Ok(flush) => guest.discharge(flush, &machine),
            Err(MergeError::NoMemory(_) | MergeError::Unlike(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Splits the superpages at its ends, or takes them away if there is no frame for that.
    let flush = guest.unmap(View::MAIN, range(3, 1000));
    guest.discharge(flush, &machine);
    for page in [3, 500, 999] {
        assert_eq!(guest.lookup(View::MAIN, Gfn::new(page)).unwrap().host, None);
    }
    whole && logging
}

#[test]
fn running_out_of_frames_anywhere_breaks_and_leaks_nothing() {
    for form in [Form::WriteProtection, Form::DirtyFlags, Form::Pml] {
        let mut frames = 0;
        loop {
            let ram = Ram::new(frames);
            let whole = live(&ram, form);
            assert_eq!(ram.free_frames(), frames, "{form:?}, {frames} frames");
            if whole {
                break;
            }
            frames += 1;
            assert!(frames < 200, "it should do with fewer");
        }
        assert!(frames > 20, "{frames} frames: memory never was short");
    }
}
