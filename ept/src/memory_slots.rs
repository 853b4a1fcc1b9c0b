//! Memory slots: where the guest's frames are in the hypervisor's address space.
//!
//! A host takes memory back by the hypervisor's virtual addresses (Linux: an MMU notifier), which
//! may touch several slots, or none. So the slots are sorted by host address, and those that a
//! range touches are found by a binary search, however many there are.

use alloc::vec::Vec;
use core::ops::Range;

use thiserror::Error;

use crate::address::{FRAME_BYTES, Gfn, GfnRange};
use crate::age::AgeError;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;

/// A part of the guest's memory that is contiguous in the hypervisor's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySlot {
    /// The hypervisor's virtual address of the first frame: a multiple of 4096.
    pub host: u64,
    /// The guest frames.
    pub guest: GfnRange,
}

/// Why slots are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlotError {
    /// The host address is not that of a page, or the slot ends after the last address.
    #[error("the memory slot of {1:?} cannot be at host address {0:#x}: use whole pages")]
    HostAddress(u64, GfnRange),
    /// Two slots have the same guest frame.
    #[error("two memory slots have {0}: remove one of them")]
    Overlap(Gfn),
    /// There is not enough memory.
    #[error("no memory for an index of the memory slots")]
    NoMemory,
}

/// All memory slots of a guest, indexed by host address.
///
/// Several slots may have the same host addresses: memory that the guest has at several places. The
/// slots do not change. A hypervisor makes new ones when it adds or removes one, and publishes them
/// by a pointer that its own RCU protects.
#[derive(Debug, Default)]
pub struct MemorySlots(Vec<Indexed>);

#[derive(Clone, Copy, Debug)]
struct Indexed {
    slot: MemorySlot,
    /// The highest end, as a host address, of this slot and of those with lower host addresses: if
    /// that is before a range, none of them touches it.
    reach: u64,
}

impl MemorySlot {
    /// The host address after the slot. `None`: it is not valid.
    fn end(&self) -> Option<u64> {
        let bytes = self.guest.len().checked_mul(FRAME_BYTES)?;
        self.host
            .checked_add(bytes)
            .filter(|_| self.host.is_multiple_of(FRAME_BYTES))
    }

    /// The guest frames of which `host` has a byte.
    fn frames_at(&self, host: &Range<u64>) -> GfnRange {
        if host.is_empty() {
            return GfnRange::EMPTY;
        }
        let first = host.start.saturating_sub(self.host) / FRAME_BYTES;
        let end = host.end.saturating_sub(self.host).div_ceil(FRAME_BYTES);
        let start = self.guest.start();
        GfnRange::new(start.plus(first), start.plus(end)).intersect(self.guest)
    }
}

impl MemorySlots {
    /// Creates the index of these slots.
    ///
    /// # Errors
    ///
    /// See [`SlotError`].
    pub fn new(slots: &[MemorySlot]) -> Result<Self, SlotError> {
        let mut all = Vec::new();
        all.try_reserve_exact(slots.len())
            .map_err(|_| SlotError::NoMemory)?;
        for slot in slots.iter().filter(|slot| !slot.guest.is_empty()) {
            let error = SlotError::HostAddress(slot.host, slot.guest);
            let reach = slot.end().ok_or(error)?;
            all.push(Indexed { slot: *slot, reach });
        }
        all.sort_unstable_by_key(|indexed| indexed.slot.guest.start());
        for pair in all.windows(2) {
            if let [one, next] = pair
                && one.slot.guest.end() > next.slot.guest.start()
            {
                return Err(SlotError::Overlap(next.slot.guest.start()));
            }
        }
        all.sort_unstable_by_key(|indexed| indexed.slot.host);
        let mut reach = 0;
        for indexed in &mut all {
            reach = indexed.reach.max(reach);
            indexed.reach = reach;
        }
        Ok(Self(all))
    }

    /// The guest frames of which the host addresses `host` have a byte: one range for each slot, in
    /// descending order of host addresses.
    ///
    /// Reads the slots that are touched, those between them and the ones that overlap with both,
    /// and a logarithmic number of others.
    pub fn frames_at(&self, host: Range<u64>) -> impl Iterator<Item = GfnRange> {
        let after = self
            .0
            .partition_point(|indexed| indexed.slot.host < host.end);
        let before = self.0[..after].iter().rev();
        let start = host.start;
        before
            .take_while(move |indexed| indexed.reach > start)
            .map(move |indexed| indexed.slot.frames_at(&host))
            .filter(|frames| !frames.is_empty())
    }
}

impl<M: HostMemory> Guest<M> {
    /// Unmaps the guest frames at these addresses of the hypervisor from all views, because the
    /// host takes their memory back. See [`Guest::unmap_all_views`].
    pub fn unmap_host(&self, slots: &MemorySlots, host: Range<u64>) -> TlbFlush {
        let mut flush = self.empty_flush();
        for frames in slots.frames_at(host) {
            self.batch(&mut flush, self.unmap_all_views(frames));
        }
        flush
    }

    /// Ages the guest frames at these addresses of the hypervisor in all views. See
    /// [`Guest::age_all_views`].
    ///
    /// # Errors
    ///
    /// See [`AgeError`].
    pub fn age_host(
        &self,
        slots: &MemorySlots,
        host: Range<u64>,
        used: &mut dyn FnMut(GfnRange),
    ) -> Result<TlbFlush, AgeError> {
        let mut flush = self.empty_flush();
        for frames in slots.frames_at(host) {
            self.batch(&mut flush, self.age_all_views(frames, used)?);
        }
        Ok(flush)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::HostFrame;
    use crate::capabilities::Capabilities;
    use crate::map::Mapping;
    use crate::testing::TestMemory;
    use crate::view::View;
    use proptest::prelude::*;

    const BASE: u64 = 0x7f00_0000_0000;

    fn slot(host_page: u64, first: u64, pages: u64) -> MemorySlot {
        MemorySlot {
            host: BASE + host_page * FRAME_BYTES,
            guest: GfnRange::from_len(Gfn::new(first), pages),
        }
    }

    #[test]
    fn invalid_slots_are_refused() {
        let error = |slots: &[MemorySlot]| MemorySlots::new(slots).unwrap_err();
        let mut odd = slot(0, 0, 4);
        odd.host += 1;
        assert_eq!(error(&[odd]), SlotError::HostAddress(odd.host, odd.guest));
        odd.host = u64::MAX - FRAME_BYTES + 1;
        assert_eq!(error(&[odd]), SlotError::HostAddress(odd.host, odd.guest));
        let overlap = SlotError::Overlap(Gfn::new(3));
        assert_eq!(error(&[slot(100, 3, 4), slot(0, 0, 4)]), overlap);
    }

    #[test]
    fn a_byte_of_a_page_is_the_page() {
        let slots = MemorySlots::new(&[slot(0, 0, 4), slot(4, 100, 4)]).unwrap();
        let found = |from: u64, to: u64| {
            let found = slots.frames_at(BASE + from..BASE + to);
            found.collect::<Vec<_>>()
        };
        let frames = |first, count| GfnRange::from_len(Gfn::new(first), count);
        assert_eq!(found(0x3fff, 0x4001), [frames(100, 1), frames(3, 1)]);
        assert_eq!(found(0x1fff, 0x2000), [frames(1, 1)]);
        assert_eq!(found(0x1fff, 0x1fff), []);
        assert_eq!(found(0x8000, 0x9000), []);
        assert_eq!(slots.frames_at(0..u64::MAX).count(), 2);
    }

    /// The memory is at two places of the guest, and both are unmapped and aged.
    #[test]
    fn all_places_of_a_page_are_unmapped() {
        let guest = Guest::new(TestMemory::new(40), 2048, 0, Capabilities::ALL).unwrap();
        for first in [0, 1024] {
            let range = GfnRange::from_len(Gfn::new(first), 512);
            let mapping = Mapping::ram(range, HostFrame::new(0x10_0000));
            guest.map(View::MAIN, &mapping).unwrap();
        }
        let slots = MemorySlots::new(&[slot(0, 0, 512), slot(0, 1024, 512)]).unwrap();
        let flush = guest.age_host(&slots, BASE..BASE + 1, &mut |_| {}).unwrap();
        guest.flush(flush, &());
        let flush = guest.unmap_host(&slots, BASE + 0x1000..BASE + 0x3000);
        guest.flush(flush, &());
        for (gfn, there) in [(0, true), (1, false), (2, false), (3, true)] {
            for first in [0, 1024] {
                let found = guest.lookup(View::MAIN, Gfn::new(first + gfn)).unwrap();
                assert_eq!(found.host.is_some(), there, "{first} + {gfn}");
            }
        }
    }

    proptest! {
        /// The index finds what looking at each slot finds, with overlapping host addresses, too.
        #[test]
        fn the_index_finds_what_a_scan_finds(
            places in prop::collection::vec((0u64..200, 1u64..40), 0..40),
            from in 0u64..1_000_000,
            bytes in 0u64..500_000,
        ) {
            let mut first = 0;
            let mut all = Vec::new();
            for (host_page, pages) in places {
                all.push(slot(host_page, first, pages));
                first += pages;
            }
            let host = BASE + from..BASE + from + bytes;
            let mut scanned: Vec<_> = all.iter().map(|slot| slot.frames_at(&host)).collect();
            scanned.retain(|frames| !frames.is_empty());
            let mut found: Vec<_> = MemorySlots::new(&all).unwrap().frames_at(host).collect();
            for ranges in [&mut scanned, &mut found] {
                ranges.sort_by_key(|frames| frames.start());
            }
            prop_assert_eq!(scanned, found);
        }
    }
}
