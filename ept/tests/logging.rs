//! The dirty log with its three methods, on the software processor.
#![cfg(not(loom))]
// Helpers outside the test functions: an unwrap that fails is a test failure too.
#![allow(clippy::unwrap_used)]

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    Capabilities, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping, PageType, StartError,
    TakeError, VcpuError, View, ViolationOutcome,
};

const LOG_METHODS: [LogMethod; 3] = [
    LogMethod::WriteProtection,
    LogMethod::DirtyFlags,
    LogMethod::Pml,
];
/// Two summary words of the dirty bitmap.
const PAGES: u64 = 8192;

fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

fn guest(max_level: Level) -> Guest<TestMemory> {
    let guest = Guest::new(TestMemory::new(200), PAGES, 4, Capabilities::ALL).unwrap();
    let mapping = Mapping {
        max_level,
        ..Mapping::ram(guest.all(), HostFrame::new(1 << 18))
    };
    guest.map(View::MAIN, &mapping).unwrap();
    guest
}

fn write(machine: &Machine<'_, TestMemory>, cpu: usize, page: u64) {
    let host = machine
        .access(cpu, page << 12 | 8, Access::Write, |host| host)
        .unwrap();
    assert_eq!(host, ((1 << 18) + page) << 12 | 8);
}

fn take(guest: &Guest<TestMemory>, machine: &Machine<'_, TestMemory>, range: GfnRange) -> Vec<u64> {
    let mut pages = Vec::new();
    let count = guest
        .take_log(range, machine, &mut |run| {
            pages.extend(run.iter().map(Gfn::index))
        })
        .unwrap();
    assert_eq!(count, pages.len() as u64);
    pages
}

#[test]
fn written_pages_are_taken_once() {
    for method in LOG_METHODS {
        for max_level in [Level::Size4K, Level::Size1G] {
            let guest = guest(max_level);
            let machine = Machine::new(&guest, 2).unwrap();
            write(&machine, 0, 7);
            guest.start_log(method, guest.all(), &machine).unwrap();
            assert_eq!(take(&guest, &machine, guest.all()), []);
            for round in 0..3 {
                for page in [3, 4, 600, 4095] {
                    write(&machine, round % 2, page);
                    write(&machine, (round + 1) % 2, page);
                }
                machine.access(0, 9 << 12, Access::Read, |_| ()).unwrap();
                assert_eq!(
                    guest.count_dirty(guest.all(), &machine),
                    Ok(4),
                    "{method:?}"
                );
                assert_eq!(take(&guest, &machine, range(0, 4)), [3]);
                assert_eq!(take(&guest, &machine, range(0, PAGES)), [4, 600, 4095]);
                assert_eq!(take(&guest, &machine, guest.all()), []);
            }
            guest.stop_log(guest.all(), &machine).unwrap();
            let before = machine.counts();
            write(&machine, 0, 3);
            assert_eq!(machine.counts().violations, before.violations);
            assert_eq!(guest.log_method(), None);
        }
    }
}

#[test]
fn only_the_tracked_range_is_logged() {
    for method in LOG_METHODS {
        let guest = guest(Level::Size1G);
        let machine = Machine::new(&guest, 1).unwrap();
        guest.start_log(method, range(700, 800), &machine).unwrap();
        for page in [0, 699, 700, 799, 800, 4000] {
            write(&machine, 0, page);
        }
        assert_eq!(
            take(&guest, &machine, guest.all()),
            [700, 799],
            "{method:?}"
        );
        let main = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap();
        assert_eq!(main(750).page_type, PageType::LogDirtyRam);
        assert_eq!(main(800).page_type, PageType::Ram);
        assert_eq!(
            main(4000).level,
            Level::Size2M,
            "superpages outside the range are not split"
        );
        guest
            .start_log(method, range(4000, 4001), &machine)
            .unwrap();
        write(&machine, 0, 4000);
        write(&machine, 0, 4001);
        assert_eq!(take(&guest, &machine, guest.all()), [4000]);
        guest.stop_log(range(700, 800), &machine).unwrap();
        write(&machine, 0, 700);
        write(&machine, 0, 4000);
        assert_eq!(take(&guest, &machine, guest.all()), [4000]);
    }
}

#[test]
fn one_exit_for_each_page_or_for_each_512() {
    for (method, violations, full) in [
        (LogMethod::WriteProtection, 2048, 0),
        (LogMethod::DirtyFlags, 0, 0),
        (LogMethod::Pml, 0, 3),
    ] {
        let guest = guest(Level::Size4K);
        let machine = Machine::new(&guest, 1).unwrap();
        for page in 0..2048 {
            write(&machine, 0, page);
        }
        guest.start_log(method, guest.all(), &machine).unwrap();
        for page in 0..2048 {
            write(&machine, 0, page);
        }
        let counts = machine.counts();
        assert_eq!(
            (counts.violations, counts.pml_full),
            (violations, full),
            "{method:?}"
        );
        assert_eq!(take(&guest, &machine, guest.all()).len(), 2048);
    }
}

#[test]
fn unmapped_pages_stay_in_the_log() {
    for method in LOG_METHODS {
        let guest = guest(Level::Size4K);
        let machine = Machine::new(&guest, 1).unwrap();
        guest.start_log(method, guest.all(), &machine).unwrap();
        write(&machine, 0, 1000);
        let flush = guest.unmap(View::MAIN, range(512, 1536));
        guest.flush(flush, &machine);
        assert_eq!(take(&guest, &machine, guest.all()), [1000], "{method:?}");
        let stop = machine.access(0, 1000 << 12, Access::Read, |_| ());
        assert_eq!(
            stop,
            Err(AccessError::Violation(ViolationOutcome::Absent(Gfn::new(
                1000
            ))))
        );
    }
}

#[test]
fn delayed_flushes_hide_no_write() {
    for method in LOG_METHODS {
        let guest = guest(Level::Size4K);
        let machine = Machine::new(&guest, 1).unwrap();
        let again = Mapping {
            max_level: Level::Size4K,
            ..Mapping::ram(range(5, 6), HostFrame::new((1 << 18) + 5))
        };
        // The processor caches the page as dirty; then the page is unmapped and mapped again.
        write(&machine, 0, 5);
        let mut late = guest.unmap(View::MAIN, range(5, 6));
        guest.map(View::MAIN, &again).unwrap();
        guest.start_log(method, guest.all(), &machine).unwrap();
        write(&machine, 0, 5);
        // The same again while the log is active.
        guest.batch(&mut late, guest.unmap(View::MAIN, range(5, 6)));
        guest.map(View::MAIN, &again).unwrap();
        for _ in 0..3 {
            write(&machine, 0, 5);
            assert_eq!(take(&guest, &machine, guest.all()), [5], "{method:?}");
        }
        assert_eq!(take(&guest, &machine, guest.all()), [], "{method:?}");
        guest.flush(late, &machine);
    }
}

#[test]
fn all_frames_are_released() {
    let ram = TestMemory::new(200);
    let free = ram.free_frames();
    {
        let guest = Guest::new(&ram, PAGES, 2, Capabilities::ALL).unwrap();
        let mapping = Mapping::ram(guest.all(), HostFrame::new(1 << 18));
        guest.map(View::MAIN, &mapping).unwrap();
        let machine = Machine::new(&guest, 2).unwrap();
        guest
            .start_log(LogMethod::Pml, guest.all(), &machine)
            .unwrap();
        for page in (0..PAGES).step_by(100) {
            machine
                .access(0, page << 12, Access::Write, |_| ())
                .unwrap();
        }
        guest.stop_log(guest.all(), &machine).unwrap();
        let mut all = guest.unmap(View::MAIN, range(0, 700));
        guest.batch(&mut all, guest.unmap(View::MAIN, range(700, PAGES)));
        guest.flush(all, &machine);
    }
    assert_eq!(ram.free_frames(), free);
}

/// Writes enough pages for several batches and takes them; calls `meanwhile` once, between two
/// batches. Returns the pages that were taken.
fn take_and_meanwhile(
    guest: &Guest<TestMemory>,
    machine: &Machine<'_, TestMemory>,
    meanwhile: impl FnOnce(),
) -> Vec<u64> {
    for page in (0..PAGES / 2).step_by(64) {
        write(machine, 0, page);
    }
    let mut pages = Vec::new();
    let mut meanwhile = Some(meanwhile);
    guest
        .take_log(guest.all(), machine, &mut |run| {
            pages.extend(run.iter().map(Gfn::index));
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
        })
        .unwrap();
    pages
}

/// The method changes during a take: the remaining pages are rearmed for the new method.
#[test]
fn a_take_continues_with_a_changed_method() {
    for (old, new) in LOG_METHODS
        .iter()
        .flat_map(|old| LOG_METHODS.map(|new| (*old, new)))
    {
        let guest = guest(Level::Size4K);
        let machine = Machine::new(&guest, 2).unwrap();
        guest.start_log(old, guest.all(), &machine).unwrap();
        let late = PAGES - 10;
        let first = take_and_meanwhile(&guest, &machine, || {
            guest.stop_log(guest.all(), &machine).unwrap();
            guest.start_log(new, guest.all(), &machine).unwrap();
            write(&machine, 0, late);
        });
        let mut want: Vec<u64> = (0..PAGES / 2).step_by(64).collect();
        want.retain(|page| first.contains(page));
        assert!(first.starts_with(&want), "ascending, {old:?} to {new:?}");
        if !first.contains(&late) {
            assert_eq!(take(&guest, &machine, guest.all()), [late]);
        }
        write(&machine, 0, late);
        let second = take(&guest, &machine, guest.all());
        assert_eq!(second, [late], "{old:?} to {new:?}");
        // A page of the first take is logged again.
        write(&machine, 0, 64);
        assert_eq!(take(&guest, &machine, guest.all()), [64]);
    }
}

/// A view is added during a take and maps a page that the take has not reached yet.
#[test]
fn a_take_flushes_a_view_that_was_added_meanwhile() {
    for method in LOG_METHODS {
        let guest = guest(Level::Size4K);
        let machine = Machine::new(&guest, 2).unwrap();
        guest.start_log(method, guest.all(), &machine).unwrap();
        let late = PAGES - 10;
        let first = take_and_meanwhile(&guest, &machine, || {
            let view = guest.add_view().unwrap();
            let page = GfnRange::from_len(Gfn::new(late), 1);
            let mapping = Mapping::ram(page, HostFrame::new((1 << 18) + late));
            guest.map(view, &mapping).unwrap();
            assert!(machine.enter_view(1, view));
            write(&machine, 1, late);
            // Drain the page-modification logs. The other methods have logged the page already.
            guest.count_dirty(range(0, 1), &machine).unwrap();
        });
        if method != LogMethod::DirtyFlags {
            assert!(first.contains(&late), "{method:?}");
        }
        write(&machine, 1, late);
        assert_eq!(take(&guest, &machine, guest.all()), [late], "{method:?}");
    }
}

/// Ageing with accessed flags flushes a view that was added meanwhile.
#[test]
fn ageing_flushes_a_view_that_was_added_meanwhile() {
    let guest = Guest::new(TestMemory::new(200), 1 << 16, 2, Capabilities::ALL).unwrap();
    let machine = Machine::new(&guest, 2).unwrap();
    let (early, late) = (5, (1 << 16) - 10);
    let page = |page| GfnRange::from_len(Gfn::new(page), 1);
    let mapping = |at| Mapping::ram(page(at), HostFrame::new((1 << 18) + at));
    guest.map(View::MAIN, &mapping(early)).unwrap();
    write(&machine, 0, early);
    let mut used = Vec::new();
    let mut come = true;
    let flush = guest.age_all_views(guest.all(), &mut |span| {
        used.push(span);
        if core::mem::take(&mut come) {
            let view = guest.add_view().unwrap();
            guest.map(view, &mapping(late)).unwrap();
            assert!(machine.enter_view(1, view));
            write(&machine, 1, late);
        }
    });
    guest.flush(flush.unwrap(), &machine);
    assert_eq!(used, [page(early), page(late)]);
    write(&machine, 1, late);
    let mut again = Vec::new();
    let flush = guest.age_all_views(guest.all(), &mut |span| again.push(span));
    guest.flush(flush.unwrap(), &machine);
    assert_eq!(again, [page(late)]);
}

#[test]
fn start_and_vcpu_errors() {
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
    assert_eq!(guest.memory().free_frames(), 1, "no buffer is kept");
    let second = guest.add_vcpu();
    assert_eq!(second, Err(VcpuError::TooMany(2)));

    // A vCPU that is added later gets a log, or is not added.
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
