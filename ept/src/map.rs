//! Mapping guest frames to host frames, and marking emulated devices.

use thiserror::Error;

use crate::address::{FRAME_SHIFT, Gfn, GfnRange, HostFrame, Level, MAX_PAGES};
use crate::atomic::{Ordering, cpu_relax};
use crate::attributes::{MemoryType, Permissions};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::view::View;
use crate::walk::{EntryRef, try_replace};

/// What to map, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The guest frames.
    pub guest: GfnRange,
    /// The host frame of the first guest frame; the others follow contiguously.
    pub host: HostFrame,
    /// What the guest may do.
    pub permissions: Permissions,
    /// How the processor caches the memory.
    pub memory_type: MemoryType,
    /// The largest leaf size to use.
    pub max_level: Level,
}

impl Mapping {
    /// Creates a mapping of ordinary memory: all permissions, write-back, leaves as large as
    /// possible.
    pub const fn ram(guest: GfnRange, host: HostFrame) -> Self {
        Self {
            guest,
            host,
            permissions: Permissions::All,
            memory_type: MemoryType::WriteBack,
            max_level: Level::Size1G,
        }
    }
}

/// Why a mapping was not made, or only in part. Leaves that were mapped before the error stay
/// mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// A different mapping exists at this address.
    #[error("cannot map {0}: a different mapping exists; unmap it first")]
    Occupied(Gfn),
    /// The range ends after the guest's memory or after the addresses that the tables translate.
    #[error("cannot map {0:?}: the range ends after the guest's memory or the view")]
    OutOfRange(GfnRange),
    /// The host address is wider than the processor's physical addresses.
    #[error("cannot map to {0}: its address is wider than the processor's physical addresses")]
    HostAddress(HostFrame),
    /// The view does not exist, or is not of the required kind (nested or not).
    #[error("cannot map pages: view {} does not exist or is not of the required kind", .0.number())]
    NoView(View),
    /// The processor does not support execute-only leaves.
    #[error("cannot map {0:?} execute-only: the processor does not support it")]
    ExecuteOnly(GfnRange),
    /// There is not enough memory for tables or the reverse map.
    #[error("cannot map {0}: no free frame for tables; free some and map the rest")]
    NoMemory(Gfn),
}

impl<M: HostMemory> Guest<M> {
    /// Maps guest frames in a view whose addresses are guest frame numbers.
    ///
    /// No TLB flush is necessary: processors do not cache entries that are not present (SDM vol.
    /// 3C, "Caching Translation Information"). It is not an error to repeat an existing mapping:
    /// several vCPUs may fault on the same page at the same time.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn map(&self, view: View, mapping: &Mapping) -> Result<(), MapError> {
        if self.is_nested(view) {
            return Err(MapError::NoView(view));
        }
        self.map_at(view, mapping.guest.start(), mapping)
    }

    /// Maps guest frames at the addresses from `at` on, in a view created by
    /// [`Guest::add_nested_view`].
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn map_nested(&self, view: View, at: Gfn, mapping: &Mapping) -> Result<(), MapError> {
        if !self.is_nested(view) {
            return Err(MapError::NoView(view));
        }
        self.map_at(view, at, mapping)
    }

    fn map_at(&self, view: View, at: Gfn, mapping: &Mapping) -> Result<(), MapError> {
        let guest = mapping.guest;
        let end = at.index().checked_add(guest.len());
        if !self.all().covers(guest) || end.is_none_or(|end| end > MAX_PAGES) {
            return Err(MapError::OutOfRange(guest));
        }
        let last = mapping.host.index().checked_add(guest.len());
        if last.is_none_or(|last| last > self.host_frames()) {
            return Err(MapError::HostAddress(mapping.host));
        }
        if mapping.permissions == Permissions::Execute && !self.capabilities.execute_only {
            return Err(MapError::ExecuteOnly(guest));
        }
        let mut done = 0;
        while done < guest.len() {
            let step = LeafMapping {
                view,
                at: at.plus(done),
                gfn: guest.start().plus(done),
                host: mapping.host.plus(done),
            };
            let level = self.level_for(&step, guest.len() - done, mapping.max_level);
            let _guard = self.rcu.read();
            done += self.map_leaf(&step, level, mapping)?;
        }
        Ok(())
    }

    /// Returns the number of host frames that the processor can address.
    fn host_frames(&self) -> u64 {
        1 << (self.capabilities.physical_bits.clamp(FRAME_SHIFT, 52) - FRAME_SHIFT)
    }

    /// Returns the largest leaf size that fits.
    fn level_for(&self, step: &LeafMapping, left: u64, max_level: Level) -> Level {
        let offered = |level: Level| match level {
            Level::Size1G => self.capabilities.pages_1g,
            Level::Size2M => self.capabilities.pages_2m,
            _ => true,
        };
        let fits = |level: &Level| {
            *level <= max_level
                && offered(*level)
                && level.pages() <= left
                && step.at.is_aligned(*level)
                && step.gfn.is_aligned(*level)
                && step.host.is_aligned(*level)
        };
        Level::LEAVES
            .into_iter()
            .find(fits)
            .unwrap_or(Level::Size4K)
    }

    /// Maps one leaf at `level`, or a smaller one if there is a table already. Returns the number
    /// of pages mapped.
    fn map_leaf(
        &self,
        step: &LeafMapping,
        mut level: Level,
        mapping: &Mapping,
    ) -> Result<u64, MapError> {
        loop {
            let found = self
                .walk(step.view, step.at, level)
                .ok_or(MapError::NoView(step.view))?;
            let entry = found.entry;
            if entry.is_frozen() {
                cpu_relax();
            } else if entry.is_table(found.level) {
                // Another thread has mapped smaller leaves here; they may be the same mapping.
                level = level.below().ok_or(MapError::Occupied(step.at))?;
            } else if entry != Entry::ABSENT {
                return Self::same(&found, step, mapping).ok_or(MapError::Occupied(step.at));
            } else if found.level > level {
                self.add_table(step, &found)?;
            } else if found.try_replace(Entry::FROZEN) {
                let made = Entry::leaf(
                    step.host,
                    level,
                    mapping.permissions,
                    mapping.memory_type,
                    false,
                );
                let span = GfnRange::from_len(step.gfn, level.pages());
                let leaf = self.arm_leaf(made, level, span, found.location.is_nested());
                found.set_gfn(step.gfn);
                let added = self.rmap.add(&self.memory, level, step.gfn, found.location);
                let entry = if added.is_ok() { leaf } else { Entry::ABSENT };
                // Release: a thread that sees the leaf also finds it in the reverse map.
                found.slot.store(entry.0, Ordering::Release);
                return match added {
                    Ok(()) => Ok(level.pages()),
                    Err(_) => Err(MapError::NoMemory(step.at)),
                };
            }
        }
    }

    /// If the existing leaf is the same mapping, returns the number of pages from here to its end.
    fn same(found: &EntryRef<'_>, step: &LeafMapping, mapping: &Mapping) -> Option<u64> {
        let entry = found.entry;
        let offset = step.at.index() - step.at.align_down(found.level).index();
        let same = entry.is_leaf(found.level)
            && entry.frame().plus(offset) == step.host
            && entry.granted() == Some(mapping.permissions)
            && entry.memory_type() == Some(mapping.memory_type);
        same.then(|| found.level.pages() - offset)
    }

    /// Adds a table at an absent entry.
    fn add_table(&self, step: &LeafMapping, found: &EntryRef<'_>) -> Result<(), MapError> {
        let nested = found.location.is_nested();
        let node = self
            .new_table(nested)
            .map_err(|_| MapError::NoMemory(step.at))?;
        let entry = Entry::table(node.table);
        if nested && found.try_replace(Entry::FROZEN) {
            found.set_gfn_table(node);
            found.slot.store(entry.0, Ordering::Release);
        } else if nested || !found.try_replace(entry) {
            self.free_node(node); // another thread was faster; no thread has seen ours
        }
        Ok(())
    }

    /// Marks addresses as an emulated device: accesses exit, and
    /// [`Guest::handle_ept_violation`](crate::Guest::handle_ept_violation) returns
    /// [`ViolationOutcome::Mmio`](crate::ViolationOutcome).
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn map_mmio(&self, view: View, range: GfnRange) -> Result<(), MapError> {
        if !GfnRange::TRANSLATED.covers(range) {
            return Err(MapError::OutOfRange(range));
        }
        let mut at = range.start();
        while at < range.end() {
            let left = range.end().index() - at.index();
            let fits = |level: &Level| at.is_aligned(*level) && level.pages() <= left;
            let level = Level::LEAVES
                .into_iter()
                .find(fits)
                .unwrap_or(Level::Size4K);
            let _guard = self.rcu.read();
            at = at.plus(self.mark_mmio(view, at, level)?);
        }
        Ok(())
    }

    fn mark_mmio(&self, view: View, at: Gfn, mut level: Level) -> Result<u64, MapError> {
        loop {
            let found = self.walk(view, at, level).ok_or(MapError::NoView(view))?;
            let entry = found.entry;
            let step = LeafMapping {
                view,
                at,
                gfn: at,
                host: HostFrame::default(),
            };
            if entry.is_frozen() {
                cpu_relax();
            } else if entry.is_table(found.level) {
                level = level.below().ok_or(MapError::Occupied(at))?;
            } else if entry.is_mmio() {
                let offset = at.index() - at.align_down(found.level).index();
                return Ok(found.level.pages() - offset);
            } else if entry != Entry::ABSENT {
                return Err(MapError::Occupied(at));
            } else if found.level > level {
                self.add_table(&step, &found)?;
            } else if try_replace(found.slot, Entry::ABSENT, Entry::MMIO) {
                return Ok(level.pages());
            }
        }
    }
}

/// One leaf to map.
#[derive(Debug)]
struct LeafMapping {
    view: View,
    at: Gfn,
    gfn: Gfn,
    host: HostFrame,
}
