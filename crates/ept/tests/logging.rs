//! The dirty log in its three forms, on the software processor.
#![cfg(not(loom))]
// Helpers outside the test functions: their failure is the message too.
#![allow(clippy::unwrap_used)]

use hikkoshi_ept::model::{Access, Machine, Ram, Stop};
use hikkoshi_ept::{
    Capabilities, Form, Frame, Gfn, GfnRange, Guest, Level, Mapping, PageType, View, Violation,
};

const FORMS: [Form; 3] = [Form::WriteProtection, Form::DirtyFlags, Form::Pml];
const PAGES: u64 = 4096;

fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

fn guest(largest: Level) -> Guest<Ram> {
    let guest = Guest::new(Ram::new(200), PAGES, 4, Capabilities::ALL).unwrap();
    let mapping = Mapping {
        largest,
        ..Mapping::ram(guest.all(), Frame::new(1 << 18))
    };
    guest.map(View::MAIN, &mapping).unwrap();
    guest
}

fn write(machine: &Machine<'_, Ram>, cpu: usize, page: u64) {
    let host = machine
        .access(cpu, page << 12 | 8, Access::Write, |host| host)
        .unwrap();
    assert_eq!(host, ((1 << 18) + page) << 12 | 8);
}

fn take(guest: &Guest<Ram>, machine: &Machine<'_, Ram>, range: GfnRange) -> Vec<u64> {
    let mut pages = Vec::new();
    let count = guest
        .take(range, machine, &mut |run| {
            pages.extend(run.iter().map(Gfn::index))
        })
        .unwrap();
    assert_eq!(count, pages.len() as u64);
    pages
}

#[test]
fn what_is_written_is_taken_once() {
    for form in FORMS {
        for largest in [Level::Page, Level::Huge] {
            let guest = guest(largest);
            let machine = Machine::new(&guest, 2).unwrap();
            write(&machine, 0, 7);
            guest.start_log(form, guest.all(), &machine).unwrap();
            assert_eq!(take(&guest, &machine, guest.all()), []);
            for round in 0..3 {
                for page in [3, 4, 600, 4095] {
                    write(&machine, round % 2, page);
                    write(&machine, (round + 1) % 2, page);
                }
                machine.access(0, 9 << 12, Access::Read, |_| ()).unwrap();
                assert_eq!(guest.count(guest.all(), &machine), Ok(4), "{form:?}");
                assert_eq!(take(&guest, &machine, range(0, 4)), [3]);
                assert_eq!(take(&guest, &machine, range(0, PAGES)), [4, 600, 4095]);
                assert_eq!(take(&guest, &machine, guest.all()), []);
            }
            guest.stop_log(guest.all(), &machine).unwrap();
            let before = machine.counts();
            write(&machine, 0, 3);
            assert_eq!(machine.counts().violations, before.violations);
            assert_eq!(guest.logging(), None);
        }
    }
}

#[test]
fn only_the_tracked_range_is_logged() {
    for form in FORMS {
        let guest = guest(Level::Huge);
        let machine = Machine::new(&guest, 1).unwrap();
        guest.start_log(form, range(700, 800), &machine).unwrap();
        for page in [0, 699, 700, 799, 800, 4000] {
            write(&machine, 0, page);
        }
        assert_eq!(take(&guest, &machine, guest.all()), [700, 799], "{form:?}");
        let main = |page| guest.lookup(View::MAIN, Gfn::new(page)).unwrap();
        assert_eq!(main(750).page_type, PageType::LogDirtyRam);
        assert_eq!(main(800).page_type, PageType::Ram);
        assert_eq!(main(4000).level, Level::Large, "untouched superpages stay");
        guest.start_log(form, range(4000, 4001), &machine).unwrap();
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
fn one_exit_a_page_or_one_in_512() {
    for (form, violations, full) in [
        (Form::WriteProtection, 2048, 0),
        (Form::DirtyFlags, 0, 0),
        (Form::Pml, 0, 3),
    ] {
        let guest = guest(Level::Page);
        let machine = Machine::new(&guest, 1).unwrap();
        for page in 0..2048 {
            write(&machine, 0, page);
        }
        guest.start_log(form, guest.all(), &machine).unwrap();
        for page in 0..2048 {
            write(&machine, 0, page);
        }
        let counts = machine.counts();
        assert_eq!(
            (counts.violations, counts.pml_full),
            (violations, full),
            "{form:?}"
        );
        assert_eq!(take(&guest, &machine, guest.all()).len(), 2048);
    }
}

#[test]
fn unmapping_keeps_what_was_written_in_the_log() {
    for form in FORMS {
        let guest = guest(Level::Page);
        let machine = Machine::new(&guest, 1).unwrap();
        guest.start_log(form, guest.all(), &machine).unwrap();
        write(&machine, 0, 1000);
        let flush = guest.unmap(View::MAIN, range(512, 1536));
        guest.discharge(flush, &machine);
        assert_eq!(take(&guest, &machine, guest.all()), [1000], "{form:?}");
        let stop = machine.access(0, 1000 << 12, Access::Read, |_| ());
        assert_eq!(
            stop,
            Err(Stop::Violation(Violation::Absent(Gfn::new(1000))))
        );
    }
}

#[test]
fn obligations_put_off_hide_no_write() {
    for form in FORMS {
        let guest = guest(Level::Page);
        let machine = Machine::new(&guest, 1).unwrap();
        let again = Mapping {
            largest: Level::Page,
            ..Mapping::ram(range(5, 6), Frame::new((1 << 18) + 5))
        };
        // The processor remembers the page as written; then it is unmapped and mapped anew.
        write(&machine, 0, 5);
        let mut late = guest.unmap(View::MAIN, range(5, 6));
        guest.map(View::MAIN, &again).unwrap();
        guest.start_log(form, guest.all(), &machine).unwrap();
        write(&machine, 0, 5);
        // Once more, while the log is on.
        guest.batch(&mut late, guest.unmap(View::MAIN, range(5, 6)));
        guest.map(View::MAIN, &again).unwrap();
        for _ in 0..3 {
            write(&machine, 0, 5);
            assert_eq!(take(&guest, &machine, guest.all()), [5], "{form:?}");
        }
        assert_eq!(take(&guest, &machine, guest.all()), [], "{form:?}");
        guest.discharge(late, &machine);
    }
}

#[test]
fn nothing_leaks() {
    let ram = Ram::new(200);
    let free = ram.free_frames();
    {
        let guest = Guest::new(&ram, PAGES, 2, Capabilities::ALL).unwrap();
        let mapping = Mapping::ram(guest.all(), Frame::new(1 << 18));
        guest.map(View::MAIN, &mapping).unwrap();
        let machine = Machine::new(&guest, 2).unwrap();
        guest.start_log(Form::Pml, guest.all(), &machine).unwrap();
        for page in (0..PAGES).step_by(100) {
            machine
                .access(0, page << 12, Access::Write, |_| ())
                .unwrap();
        }
        guest.stop_log(guest.all(), &machine).unwrap();
        let mut all = guest.unmap(View::MAIN, range(0, 700));
        guest.batch(&mut all, guest.unmap(View::MAIN, range(700, PAGES)));
        guest.discharge(all, &machine);
    }
    assert_eq!(ram.free_frames(), free);
}
