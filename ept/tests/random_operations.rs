//! Property tests: random operations on a guest, compared with a simple reference model.
#![cfg(not(loom))]
// Helpers outside the test functions: an unwrap that fails is a test failure too.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use hikkoshi_ept::testing::{Access, AccessError, Machine, TestMemory};
use hikkoshi_ept::{
    AgeError, Capabilities, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, MapError, Mapping,
    Permissions, TlbFlush, View, ViolationOutcome,
};
use proptest::prelude::*;

/// Two superpages and some more pages.
const PAGES: u64 = 1100;
/// First host frame of the guest's memory.
const HOST: u64 = 1 << 18;
/// Address of guest frame 0 in the nested view.
const SHIFT: u64 = 1 << 20;
/// Two vCPUs in the main view, one in a second view, one in a nested view.
const CPUS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, u64),
    Read(usize, u64),
    Map(u64, u64, bool),
    Unmap(u64, u64),
    UnmapAllViews(u64, u64),
    Protect(u64, u64, bool),
    Split(u64),
    Merge(u64),
    Age(bool),
    Start(u64, u64),
    Stop(u64, u64),
    Take(u64, u64),
    Count(u64, u64),
    Mark(u64),
    Reclaim,
}

fn page() -> impl Strategy<Value = u64> {
    // Few distinct pages, so that operations overlap.
    prop_oneof![0..8u64, 508..520u64, 1020..1030u64, 0..PAGES]
}

fn span() -> impl Strategy<Value = (u64, u64)> {
    let edge = || prop_oneof![Just(0), Just(512), Just(1024), Just(PAGES), page()];
    (edge(), edge()).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..CPUS, page()).prop_map(|(cpu, page)| Step::Write(cpu, page)),
        3 => (0..CPUS, page()).prop_map(|(cpu, page)| Step::Read(cpu, page)),
        3 => (span(), any::<bool>()).prop_map(|((a, b), large)| Step::Map(a, b, large)),
        2 => span().prop_map(|(a, b)| Step::Unmap(a, b)),
        1 => span().prop_map(|(a, b)| Step::UnmapAllViews(a, b)),
        1 => (span(), any::<bool>()).prop_map(|((a, b), on)| Step::Protect(a, b, on)),
        1 => page().prop_map(Step::Split),
        1 => (0..2u64).prop_map(|large| Step::Merge(large * 512)),
        1 => any::<bool>().prop_map(Step::Age),
        2 => span().prop_map(|(a, b)| Step::Start(a, b)),
        1 => span().prop_map(|(a, b)| Step::Stop(a, b)),
        4 => span().prop_map(|(a, b)| Step::Take(a, b)),
        1 => span().prop_map(|(a, b)| Step::Count(a, b)),
        1 => page().prop_map(Step::Mark),
        1 => Just(Step::Reclaim),
    ]
}

/// The expected state.
#[derive(Default)]
struct Reference {
    tracked: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
    /// For what the main view maps: guest frame to write permission.
    mapped: BTreeMap<u64, bool>,
    nested: BTreeSet<u64>,
    /// What the second (non-nested) view maps, with all permissions.
    second: BTreeSet<u64>,
    /// The delayed flush, if flushes are delayed.
    late: Option<TlbFlush>,
}

impl Reference {
    /// Does a flush, or delays it.
    fn flush_or_delay(
        &mut self,
        guest: &Guest<&TestMemory>,
        machine: &Machine<'_, &TestMemory>,
        flush: TlbFlush,
    ) {
        match &mut self.late {
            Some(late) => guest.batch(late, flush),
            None => guest.flush(flush, machine),
        }
    }

    fn written(&mut self, page: u64) {
        if self.tracked.contains(&page) {
            self.dirty.insert(page);
        }
    }
}

fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

/// The views other than the main view.
#[derive(Clone, Copy)]
struct Views {
    second: View,
    nested: View,
}

/// Runs the steps on a guest and on the reference. The last vCPU runs in the nested view, the one
/// before it in the second view.
fn run(method: LogMethod, steps: &[Step], capabilities: Capabilities, lazy: bool) {
    let ram = TestMemory::new(if lazy { 2000 } else { 90 });
    let free = ram.free_frames();
    {
        let guest = Guest::new(&ram, PAGES, CPUS, capabilities).unwrap();
        let machine = Machine::new(&guest, CPUS).unwrap();
        let views = Views {
            second: guest.add_view().unwrap(),
            nested: guest.add_nested_view().unwrap(),
        };
        assert!(machine.enter_view(CPUS - 2, views.second));
        assert!(machine.enter_view(CPUS - 1, views.nested));
        let mut want = Reference {
            late: lazy.then(TlbFlush::none),
            ..Reference::default()
        };
        for step in steps {
            apply(&guest, &machine, views, method, step, &mut want);
        }
        let mut flush = guest.remove_view(views.nested);
        guest.batch(&mut flush, guest.remove_view(views.second));
        guest.batch(&mut flush, want.late.unwrap_or_default());
        guest.flush(flush, &machine);
    }
    assert_eq!(ram.free_frames(), free, "frames leaked");
}

fn apply(
    guest: &Guest<&TestMemory>,
    machine: &Machine<'_, &TestMemory>,
    Views { second, nested }: Views,
    method: LogMethod,
    step: &Step,
    want: &mut Reference,
) {
    let main = View::MAIN;
    match *step {
        Step::Write(cpu, page) | Step::Read(cpu, page) => {
            let write = matches!(step, Step::Write(..));
            let access = if write { Access::Write } else { Access::Read };
            let inner = cpu == CPUS - 1;
            let at = if inner { page + SHIFT } else { page };
            let got = machine.access(cpu, at << 12 | 0x123, access, |host| host);
            let allowed = match cpu {
                _ if inner => want.nested.contains(&page).then_some(true),
                _ if cpu == CPUS - 2 => want.second.contains(&page).then_some(true),
                _ => want.mapped.get(&page).copied(),
            };
            let at = Gfn::new(at);
            if want.late.is_some() {
                // A processor may use cached translations: only its successful writes count.
                if let Ok(host) = got {
                    assert_eq!(host, ((HOST + page) << 12) | 0x123);
                    if write {
                        want.written(page);
                    }
                }
                return;
            }
            match allowed {
                None => assert_eq!(
                    got,
                    Err(AccessError::Violation(ViolationOutcome::Absent(at)))
                ),
                Some(false) if write => {
                    assert_eq!(
                        got,
                        Err(AccessError::Violation(ViolationOutcome::Denied(at)))
                    );
                }
                Some(_) => {
                    assert_eq!(got, Ok((HOST + page) << 12 | 0x123));
                    if write {
                        want.written(page);
                    }
                }
            }
        }
        Step::Map(start, end, large) => {
            let max_level = if large { Level::Size1G } else { Level::Size4K };
            let mapping = Mapping {
                max_level,
                ..Mapping::ram(range(start, end), HostFrame::new(HOST + start))
            };
            match guest.map(main, &mapping) {
                Ok(()) => want.mapped.extend((start..end).map(|page| (page, true))),
                // A read-only mapping exists at this address; everything before it was mapped.
                Err(MapError::Occupied(at)) => {
                    assert_eq!(want.mapped.get(&at.index()), Some(&false));
                    want.mapped
                        .extend((start..at.index()).map(|page| (page, true)));
                }
                Err(error) => panic!("{error}"),
            }
            guest
                .map_nested(nested, Gfn::new(start + SHIFT), &mapping)
                .unwrap();
            want.nested.extend(start..end);
            guest.map(second, &mapping).unwrap();
            want.second.extend(start..end);
        }
        Step::Unmap(start, end) => {
            let flush = guest.unmap(main, range(start, end));
            want.flush_or_delay(guest, machine, flush);
            want.mapped.retain(|page, _| !(start..end).contains(page));
        }
        Step::UnmapAllViews(start, end) => {
            let flush = guest.unmap_all_views(range(start, end));
            want.flush_or_delay(guest, machine, flush);
            want.mapped.retain(|page, _| !(start..end).contains(page));
            want.second.retain(|page| !(start..end).contains(page));
            // A nested superpage is unmapped as a whole: look up which pages remain.
            want.nested.retain(|page| {
                let there = guest.lookup(nested, Gfn::new(page + SHIFT)).unwrap().gfn;
                assert!(!(start..end).contains(page) || there.is_none());
                there.is_some()
            });
        }
        Step::Protect(start, end, write) => {
            let permissions = if write {
                Permissions::All
            } else {
                Permissions::ReadExecute
            };
            let (flush, done) = guest.protect(main, range(start, end), permissions);
            done.unwrap();
            want.flush_or_delay(guest, machine, flush);
            want.mapped
                .range_mut(start..end)
                .for_each(|(_, allowed)| *allowed = write);
        }
        Step::Split(page) => {
            let flush = guest.split(main, Gfn::new(page), Level::Size4K).unwrap();
            want.flush_or_delay(guest, machine, flush);
        }
        Step::Merge(page) => {
            if let Ok(flush) = guest.merge(main, Gfn::new(page), Level::Size2M) {
                want.flush_or_delay(guest, machine, flush);
                assert_eq!(
                    guest.lookup(main, Gfn::new(page)).unwrap().level,
                    Level::Size2M
                );
            }
        }
        Step::Age(everywhere) => {
            let aged = if everywhere {
                guest.age_all_views(guest.all(), &mut |_| ())
            } else {
                guest.age(main, guest.all(), &mut |_| ())
            };
            match aged {
                Ok(flush) => want.flush_or_delay(guest, machine, flush),
                Err(error) => {
                    assert_eq!(error, AgeError::Unsupported);
                    assert!(!guest.capabilities().accessed_dirty);
                }
            }
        }
        Step::Start(start, end) => {
            guest.start_log(method, range(start, end), machine).unwrap();
            want.tracked.extend(start..end);
        }
        Step::Stop(start, end) => {
            guest.stop_log(range(start, end), machine).unwrap();
            want.tracked.retain(|page| !(start..end).contains(page));
            want.dirty.retain(|page| !(start..end).contains(page));
        }
        Step::Take(start, end) => {
            let mut got = Vec::new();
            if guest
                .take_log(range(start, end), machine, &mut |run| {
                    got.extend(run.iter())
                })
                .is_ok()
            {
                let got: Vec<_> = got.into_iter().map(Gfn::index).collect();
                let expected: Vec<_> = want.dirty.range(start..end).copied().collect();
                assert_eq!(got, expected);
                want.dirty.retain(|page| !(start..end).contains(page));
            }
        }
        Step::Count(start, end) => {
            if let Ok(count) = guest.count_dirty(range(start, end), machine) {
                assert_eq!(count, want.dirty.range(start..end).count() as u64);
            }
        }
        Step::Mark(page) => {
            guest.mark_dirty(GfnRange::from_len(Gfn::new(page), 1));
            want.written(page);
        }
        Step::Reclaim => {
            let flush = guest.unmap(nested, range(SHIFT, SHIFT + PAGES));
            want.flush_or_delay(guest, machine, flush);
            want.nested.clear();
            if let Some(late) = &mut want.late {
                guest.flush(std::mem::take(late), machine);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn write_protection(
        steps in prop::collection::vec(step(), 1..120),
        flags in any::<bool>(),
        lazy in any::<bool>(),
    ) {
        let capabilities = Capabilities { accessed_dirty: flags, ..Capabilities::ALL };
        run(LogMethod::WriteProtection, &steps, capabilities, lazy);
    }

    #[test]
    fn dirty_flags(steps in prop::collection::vec(step(), 1..120), lazy in any::<bool>()) {
        run(LogMethod::DirtyFlags, &steps, Capabilities::ALL, lazy);
    }

    #[test]
    fn pml(steps in prop::collection::vec(step(), 1..120), lazy in any::<bool>()) {
        run(LogMethod::Pml, &steps, Capabilities::ALL, lazy);
    }
}
