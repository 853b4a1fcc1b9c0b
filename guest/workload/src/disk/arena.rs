//! The memory that the disk is read into.

use crate::page::{self, Fault, PAGE_SIZE, PageKind};
use crate::random::Random;
use crate::region::{Region, RegionPart};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The content of a slot: a chunk of the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SlotContent {
    /// The number of its first page on the disk.
    pub(super) first: usize,
    pub(super) generation: u32,
}

/// Memory for one chunk.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) memory: RegionPart,
    held: Option<SlotContent>,
    /// The slot's previous content: a stale page still has it.
    before: Option<SlotContent>,
}

impl Slot {
    /// Sets the content; `None`: none that can be checked.
    pub(super) fn set_content(&mut self, held: Option<SlotContent>) {
        self.before = self.held.or(self.before);
        self.held = held;
    }

    /// Fills the memory with a chunk.
    pub(super) fn fill(&mut self, held: SlotContent) {
        for index in 0..self.memory.len() {
            let page = self.memory.page(index);
            page::write(page, held.first + index, held.generation, PageKind::Filled);
        }
        self.set_content(Some(held));
    }

    /// Checks every byte, reports each bad page and corrects it. `when` is the preceding operation.
    pub(super) fn check(&mut self, when: &str, findings: &mut Vec<String>) {
        let Some(held) = self.held else {
            return;
        };
        for index in 0..self.memory.len() {
            let number = held.first + index;
            let page = self.memory.page(index);
            if let Err(bad) = page::check(page, number, held.generation, PageKind::Filled) {
                page::write(page, number, held.generation, PageKind::Filled);
                let fault = self.fault(index, bad.fault);
                let address = self.memory.address(index) as usize;
                let physical = crate::guest_physical::address_of(address)
                    .map_or_else(|| "unknown".to_owned(), |address| format!("{address:#x}"));
                findings.push(format!(
                    "disk page={number} {when} address={address:#x} physical={physical} fault={fault} word={} held={:#x} wanted={:#x} wanted_generation={}",
                    bad.word, bad.held, bad.wanted, held.generation
                ));
            }
        }
    }

    /// A complete page of the slot's previous content is reported as stale.
    fn fault(&self, index: usize, fault: Fault) -> String {
        match (fault, self.before) {
            (Fault::Swapped { page }, Some(before)) if page == (before.first + index) as u64 => {
                format!("stale held_page={page}")
            }
            (Fault::Swapped { page }, _) => format!("swapped held_page={page}"),
            (Fault::Stale { generation }, _) => format!("stale held_generation={generation}"),
            _ => fault.to_string(),
        }
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Arena {
    slots: Vec<Mutex<Slot>>,
}

impl Arena {
    /// `mib` MiB for chunks of this many pages.
    pub(super) fn new(mib: usize, chunk_pages: usize) -> io::Result<Self> {
        let slots = (mib << 20) / PAGE_SIZE / chunk_pages;
        let region = Region::resident(slots * chunk_pages)?;
        let slots = region.split(slots).map(|memory| {
            Mutex::new(Slot {
                memory,
                held: None,
                before: None,
            })
        });
        Ok(Self {
            slots: slots.collect(),
        })
    }

    /// Checks that there are enough slots: each thread and the checker keep one for a while.
    pub(super) fn check_room_for(&self, threads: usize) -> io::Result<()> {
        match self.slots.len() > threads {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "hk.disk_mib: {} chunks are too few for {threads} threads",
                self.slots.len()
            ))),
        }
    }

    /// The number of slots.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A random slot that is not in use.
    pub(super) fn free_slot(&self, random: &mut Random) -> MutexGuard<'_, Slot> {
        loop {
            if let Ok(slot) = self.slots[random.below(self.slots.len())].try_lock() {
                return slot;
            }
        }
    }

    /// That slot; waits until it is not in use.
    pub(super) fn slot(&self, number: usize) -> MutexGuard<'_, Slot> {
        self.slots[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(slot: &mut Slot) -> Vec<String> {
        let mut findings = Vec::new();
        slot.check("later", &mut findings);
        findings
    }

    #[test]
    fn a_page_of_the_previous_content_is_stale() {
        let arena = Arena::new(1, 4).unwrap();
        assert_eq!(arena.len(), 64);
        let mut slot = arena.slot(3);
        assert!(check(&mut slot).is_empty(), "no content yet");
        let [old, new] = [8, 40].map(|first| SlotContent {
            first,
            generation: 0,
        });
        slot.fill(old);
        let stale = *slot.memory.page(2);
        slot.fill(new);
        assert!(check(&mut slot).is_empty());
        *slot.memory.page(2) = stale;
        let findings = check(&mut slot);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings[0].contains("disk page=42 ")
                && findings[0].contains("fault=stale held_page=10"),
            "{findings:?}"
        );
        assert!(check(&mut slot).is_empty(), "reported once");
    }

    #[test]
    fn torn_stale_and_zero_pages_are_distinguished() {
        let arena = Arena::new(1, 4).unwrap();
        let mut slot = arena.slot(0);
        let held = |generation| SlotContent {
            first: 4,
            generation,
        };
        slot.fill(held(1));
        let old = *slot.memory.page(0);
        slot.fill(held(2));
        *slot.memory.page(0) = old;
        assert!(check(&mut slot)[0].contains("fault=stale held_generation=1"));
        slot.memory.page(0)[256..].copy_from_slice(&old[256..]);
        assert!(check(&mut slot)[0].contains("fault=corrupt"));
        slot.memory.page(3).fill(0);
        assert!(check(&mut slot)[0].contains("fault=zero"));
    }

    #[test]
    fn a_slot_in_use_is_not_free() {
        let arena = Arena::new(1, 128).unwrap();
        let _used = arena.slot(0);
        let mut random = Random::new(1);
        for _ in 0..50 {
            arena.free_slot(&mut random).set_content(None);
        }
        assert!(arena.check_room_for(2).is_err());
    }
}
