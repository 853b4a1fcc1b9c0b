//! The memory slots of a VM: which pages of the layout each of them holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use hikkoshi_pages::{PAGE_BYTES, Page, PageRange, RamLayout};
use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use thiserror::Error;

/// One memory slot, as the monitor has given it to KVM, and the pages that it holds.
#[derive(Clone, Copy, Debug)]
pub struct MemorySlot {
    /// What the monitor has passed to `KVM_SET_USER_MEMORY_REGION`. Of the flags, read-only and
    /// dirty logging are supported.
    pub region: kvm_userspace_memory_region,
    /// The page of the layout at the slot's first address. The others follow in order.
    pub first_page: Page,
}

impl MemorySlot {
    /// Returns its pages.
    #[must_use]
    pub fn pages(&self) -> PageRange {
        PageRange::from_len(self.first_page, self.region.memory_size / PAGE_BYTES)
    }

    /// Returns the address space and the guest-physical addresses.
    fn addresses(&self) -> (u32, u64, u64) {
        let start = self.region.guest_phys_addr;
        let end = start.saturating_add(self.region.memory_size);
        (self.region.slot >> 16, start, end)
    }
}

/// The memory slots of a VM that together hold each page of a layout exactly once.
///
/// KVM logs pages of 4 KiB in every slot, whatever the host page is.
#[derive(Clone, Debug)]
pub struct MemorySlots {
    vm: Arc<VmFd>,
    /// In the order of their pages.
    slots: Vec<MemorySlot>,
    /// The index of each slot, by its number.
    by_number: BTreeMap<u32, usize>,
}

/// Why slots and layout do not fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SlotError {
    /// A slot is empty, or its size or guest address is not a multiple of 4 KiB, or it ends after
    /// the highest address.
    #[error(
        "memory slot {slot}: {bytes} bytes at guest address {gpa:#x}: not a range of whole pages"
    )]
    Unaligned {
        /// The slot's number.
        slot: u32,
        /// Its guest-physical address.
        gpa: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A slot has a flag that is not supported (memory of a confidential guest, for instance).
    #[error("memory slot {slot}: flags {flags:#x} are not supported")]
    Flags {
        /// The slot's number.
        slot: u32,
        /// Its flags.
        flags: u32,
    },
    /// Two slots have the same number.
    #[error("memory slot {slot} is given twice")]
    Duplicate {
        /// The slot's number.
        slot: u32,
    },
    /// Two slots hold the same pages. Memory that is mapped twice cannot be logged yet.
    #[error("memory slots {slot} and {other} both hold {pages}")]
    SamePages {
        /// The number of one slot.
        slot: u32,
        /// The number of the other slot.
        other: u32,
        /// The pages that both hold.
        pages: PageRange,
    },
    /// Two slots are at the same guest address.
    #[error("memory slots {slot} and {other} are both at guest address {gpa:#x}")]
    SameAddress {
        /// The number of one slot.
        slot: u32,
        /// The number of the other slot.
        other: u32,
        /// The first address that both have.
        gpa: u64,
    },
    /// Pages of the layout are in no slot, so writes to them would be missed.
    #[error("{pages} of the guest's RAM are in no memory slot")]
    Hole {
        /// The pages.
        pages: PageRange,
    },
    /// A slot holds pages that the layout does not have.
    #[error("memory slot {slot} holds {held}, but the guest's RAM has only {pages} pages")]
    BeyondLayout {
        /// The slot's number.
        slot: u32,
        /// Its pages.
        held: PageRange,
        /// The number of pages of the layout.
        pages: u64,
    },
}

impl MemorySlots {
    /// Checks that these slots of `vm` hold each page of `layout` exactly once.
    ///
    /// Slots of the VM that hold nothing of the layout (firmware, video memory) are left out.
    ///
    /// # Safety
    ///
    /// Every region must be in use by `vm`, exactly as it is described here, as long as a log uses
    /// these slots: a log changes their flags, and KVM would give the guest whatever memory
    /// a wrong description names.
    ///
    /// # Errors
    ///
    /// See [`SlotError`].
    pub unsafe fn new(
        vm: Arc<VmFd>,
        layout: &RamLayout,
        mut slots: Vec<MemorySlot>,
    ) -> Result<Self, SlotError> {
        for slot in &slots {
            check(slot, layout)?;
        }
        check_addresses(&slots)?;
        slots.sort_unstable_by_key(|slot| slot.first_page);
        check_pages(&slots, layout)?;
        let numbers = slots.iter().zip(0..);
        let by_number = numbers.map(|(slot, index)| (slot.region.slot, index));
        let by_number = by_number.collect();
        Ok(Self {
            vm,
            slots,
            by_number,
        })
    }

    pub(crate) fn vm(&self) -> &VmFd {
        &self.vm
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &MemorySlot> {
        self.slots.iter()
    }

    /// Returns the number of pages in all slots.
    pub(crate) fn pages(&self) -> u64 {
        self.slots
            .last()
            .map_or(0, |last| last.pages().end().index())
    }

    /// Returns the pages of a slot; `None` if it is not one of these.
    pub(crate) fn pages_of(&self, number: u32) -> Option<PageRange> {
        let index = *self.by_number.get(&number)?;
        Some(self.slots.get(index)?.pages())
    }

    /// Returns the slots that hold pages of `range`, each with these pages, in ascending order.
    pub(crate) fn parts(&self, range: PageRange) -> impl Iterator<Item = (&MemorySlot, PageRange)> {
        let first = self
            .slots
            .partition_point(|slot| slot.pages().end() <= range.start());
        let slots = self.slots.get(first..).unwrap_or(&[]).iter();
        slots
            .map(move |slot| (slot, slot.pages().intersect(range)))
            .take_while(|(_, part)| !part.is_empty())
    }
}

fn check(slot: &MemorySlot, layout: &RamLayout) -> Result<(), SlotError> {
    let kvm_userspace_memory_region {
        slot: number,
        flags,
        guest_phys_addr: gpa,
        memory_size: bytes,
        ..
    } = slot.region;
    let whole = |value: u64| value.is_multiple_of(PAGE_BYTES);
    if bytes == 0 || !whole(bytes) || !whole(gpa) || gpa.checked_add(bytes).is_none() {
        return Err(SlotError::Unaligned {
            slot: number,
            gpa,
            bytes,
        });
    }
    if flags & !(KVM_MEM_READONLY | KVM_MEM_LOG_DIRTY_PAGES) != 0 {
        return Err(SlotError::Flags {
            slot: number,
            flags,
        });
    }
    if !layout.all().contains_range(slot.pages()) {
        return Err(SlotError::BeyondLayout {
            slot: number,
            held: slot.pages(),
            pages: layout.pages(),
        });
    }
    Ok(())
}

/// Checks that no two slots have the same number or address.
fn check_addresses(slots: &[MemorySlot]) -> Result<(), SlotError> {
    let mut sorted: Vec<&MemorySlot> = slots.iter().collect();
    sorted.sort_unstable_by_key(|slot| slot.region.slot);
    for (one, other) in neighbours(&sorted) {
        if one.region.slot == other.region.slot {
            let slot = one.region.slot;
            return Err(SlotError::Duplicate { slot });
        }
    }
    sorted.sort_unstable_by_key(|slot| slot.addresses());
    for (one, other) in neighbours(&sorted) {
        let ((space, _, end), (other_space, gpa, _)) = (one.addresses(), other.addresses());
        if space == other_space && end > gpa {
            return Err(SlotError::SameAddress {
                slot: one.region.slot,
                other: other.region.slot,
                gpa,
            });
        }
    }
    Ok(())
}

/// Checks that the slots, in the order of their pages, hold each page once.
fn check_pages(slots: &[MemorySlot], layout: &RamLayout) -> Result<(), SlotError> {
    let sorted: Vec<&MemorySlot> = slots.iter().collect();
    for (one, other) in neighbours(&sorted) {
        let pages = one.pages().intersect(other.pages());
        if !pages.is_empty() {
            return Err(SlotError::SamePages {
                slot: one.region.slot,
                other: other.region.slot,
                pages,
            });
        }
    }
    let end = PageRange::from_len(layout.all().end(), 0);
    let mut held = Page::new(0);
    for pages in slots.iter().map(MemorySlot::pages).chain([end]) {
        let pages_between = PageRange::new(held, pages.start());
        if !pages_between.is_empty() {
            return Err(SlotError::Hole {
                pages: pages_between,
            });
        }
        held = pages.end();
    }
    Ok(())
}

fn neighbours<'a>(
    slots: &'a [&'a MemorySlot],
) -> impl Iterator<Item = (&'a MemorySlot, &'a MemorySlot)> {
    slots.iter().copied().zip(slots.iter().copied().skip(1))
}
