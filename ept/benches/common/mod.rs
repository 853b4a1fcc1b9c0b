//! Tables in this process's memory, and the effects that vCPUs would have on them.
#![allow(dead_code)]
// Each bench uses only a part of this module.

// The benches access entries like a processor. Unsafe: the implementation of `FrameAccess`.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // measuring only

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_ept::{
    Capabilities, ENTRIES, Entry, ExitQualification, FrameAccess, FrameAllocator, Gfn, GfnRange,
    Guest, HostFrame, Level, LogMethod, Mapping, PML_HEAD_INDEX, Table, Vcpu, View,
};

pub(crate) const GIB: u64 = 1 << 18;
pub(crate) const PAGES_16_GIB: u64 = 16 * GIB;

/// Frames at their own addresses, as with a hypervisor's direct map.
#[derive(Debug, Default)]
pub(crate) struct Host {
    free: Mutex<Vec<HostFrame>>,
}

impl Host {
    const CHUNK: usize = 1024;
}

#[repr(align(4096))]
struct Aligned(Table);

impl FrameAllocator for Host {
    fn allocate(&self) -> Option<HostFrame> {
        let mut free = self.free.lock().ok()?;
        if free.is_empty() {
            let zero = || Aligned([const { AtomicU64::new(0) }; ENTRIES]);
            let chunk: &'static [Aligned] =
                (0..Self::CHUNK).map(|_| zero()).collect::<Vec<_>>().leak();
            let frame = |table: &Aligned| {
                HostFrame::containing(std::ptr::from_ref(&table.0).expose_provenance() as u64)
            };
            free.extend(chunk.iter().rev().map(frame));
        }
        let frame = free.pop()?;
        for word in self.table(frame) {
            word.store(0, Ordering::Relaxed);
        }
        Some(frame)
    }

    fn release(&self, frame: HostFrame) {
        self.free
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(frame);
    }
}

// SAFETY: frames are separate page-aligned parts of leaked memory. Unlike in a hypervisor, there is
// no check that a frame is one of them: only the crate calls this here, and the check would be
// measured.
unsafe impl FrameAccess for Host {
    fn table(&self, frame: HostFrame) -> &Table {
        let address = usize::try_from(frame.address()).unwrap_or_default();
        // SAFETY: `allocate` exposed the address of a whole `Table` that is never freed.
        unsafe { &*std::ptr::with_exposed_provenance::<Table>(address) }
    }
}

/// Times `work` in `rounds` rounds, each after `prepare`, which is not timed. Returns `rounds`
/// times the median, so that rounds in which the machine was busy with other work do not count.
pub(crate) fn timed(rounds: u64, mut prepare: impl FnMut(), mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            prepare();
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] * u32::try_from(rounds).unwrap()
}

/// Creates a guest of `pages`, all mapped by leaves up to `max_level`.
pub(crate) fn guest(pages: u64, max_level: Level) -> Guest<Host> {
    let guest = Guest::new(Host::default(), pages, 1, Capabilities::ALL).unwrap();
    let mapping = Mapping {
        max_level,
        ..Mapping::ram(guest.all(), HostFrame::new(1 << 30))
    };
    guest.map(View::MAIN, &mapping).unwrap();
    guest
}

/// Returns the 4 KiB entry for `gfn`.
fn slot(guest: &Guest<Host>, gfn: Gfn) -> &AtomicU64 {
    let mut table = guest.main_eptp().root();
    for shift in [27, 18, 9] {
        let index = (gfn.index() >> shift) as usize % ENTRIES;
        table = Entry(guest.memory().table(table)[index].load(Ordering::Relaxed)).frame();
    }
    &guest.memory().table(table)[gfn.index() as usize % ENTRIES]
}

fn set_dirty_flag(guest: &Guest<Host>, gfn: Gfn) {
    slot(guest, gfn).fetch_or(Entry(0).with_dirty(true).0, Ordering::Relaxed);
}

/// Marks `count` pages, spread evenly over the whole guest, as written.
pub(crate) fn dirty(guest: &Guest<Host>, vcpu: Vcpu, count: u64) {
    dirty_in(guest, vcpu, count, guest.all().len());
}

/// Marks `count` pages, spread evenly over the guest's first `pages`, as written.
pub(crate) fn dirty_in(guest: &Guest<Host>, vcpu: Vcpu, count: u64, pages: u64) {
    let distance = pages / count;
    let pages = (0..count).map(|number| Gfn::new(number * distance));
    match guest.log_method() {
        Some(LogMethod::WriteProtection) => {
            for page in pages {
                guest.handle_ept_violation(View::MAIN, page.address(), ExitQualification(2));
            }
        }
        Some(LogMethod::Pml) => {
            let log = guest.memory().table(guest.pml_address(vcpu).unwrap());
            let mut index = PML_HEAD_INDEX;
            for page in pages {
                set_dirty_flag(guest, page);
                log[usize::from(index)].store(page.address(), Ordering::Relaxed);
                index = index.wrapping_sub(1);
                if index == u16::MAX {
                    index = guest.drain_pml(vcpu, index);
                }
            }
            guest.drain_pml(vcpu, index);
        }
        _ => pages.for_each(|page| set_dirty_flag(guest, page)),
    }
}

/// Marks every leaf that maps pages of `range` as used.
pub(crate) fn use_pages(guest: &Guest<Host>, range: GfnRange) {
    let mut at = range.start();
    while at < range.end() {
        let mut table = guest.main_eptp().root();
        for level in [Level::Root, Level::Size1G, Level::Size2M, Level::Size4K] {
            let index = (at.index() / level.pages()) as usize % ENTRIES;
            let slot = &guest.memory().table(table)[index];
            let entry = Entry(slot.load(Ordering::Relaxed));
            if entry.is_leaf(level) {
                slot.store(entry.with_accessed(true).0, Ordering::Relaxed);
                at = at.align_down(level).plus(level.pages());
                break;
            }
            table = entry.frame();
        }
    }
}

/// The baseline: reads every entry of every table, clears the dirty flags and counts them.
pub(crate) fn take_by_walking(guest: &Guest<Host>) -> u64 {
    fn walk(guest: &Guest<Host>, table: HostFrame, level: Level) -> u64 {
        let mut found = 0;
        for slot in guest.memory().table(table) {
            let entry = Entry(slot.load(Ordering::Acquire));
            if entry.is_leaf(level) {
                if entry.dirty() {
                    let clean = entry.with_dirty(false);
                    let _ = slot.compare_exchange(
                        entry.0,
                        clean.0,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    found += 1;
                }
            } else if let Some(below) = level.below().filter(|_| entry.is_present()) {
                found += walk(guest, entry.frame(), below);
            }
        }
        found
    }
    walk(guest, guest.main_eptp().root(), Level::Root)
}

/// The baseline: writes every entry of every table that maps memory, to make it writable or not.
pub(crate) fn protect_by_walking(guest: &Guest<Host>, writable: bool) {
    fn walk(guest: &Guest<Host>, table: HostFrame, level: Level, writable: bool) {
        for slot in guest.memory().table(table) {
            let entry = Entry(slot.load(Ordering::Acquire));
            if entry.is_leaf(level) {
                // Bit 1: write access (SDM vol. 3C, "EPT Translation Mechanism").
                let changed = match writable {
                    true => Entry(entry.0 | 2),
                    false => Entry(entry.0 & !2),
                };
                let _ =
                    slot.compare_exchange(entry.0, changed.0, Ordering::AcqRel, Ordering::Relaxed);
            } else if let Some(below) = level.below().filter(|_| entry.is_present()) {
                walk(guest, entry.frame(), below, writable);
            }
        }
    }
    walk(guest, guest.main_eptp().root(), Level::Root, writable);
}
