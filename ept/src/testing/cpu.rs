//! A software model of one logical processor in VMX non-root operation.
//!
//! References are to the SDM, vol. 3C, chapter "VMX Support for Address Translation" (29 in recent
//! editions, 28 before), section "The Extended Page Table Mechanism (EPT)": *EPT Translation
//! Mechanism*, *EPT-Induced VM Exits* (*Misconfigurations*, *Violations*, *Prioritization*),
//! *Accessed and Dirty Flags for EPT*, *Page-Modification Logging*; and section "Caching
//! Translation Information".

use alloc::collections::BTreeMap;

use crate::address::{FRAME_BYTES, FRAME_SHIFT, Gfn, HostFrame, Level};
use crate::atomic::Ordering;
use crate::capabilities::Capabilities;
use crate::dirty_log::{PML_ENTRIES, PML_HEAD_INDEX};
use crate::entry::Entry;
use crate::eptp::Eptp;
use crate::host_memory::FrameAccess;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::violation::ExitQualification;

/// The type of a guest access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write.
    Write,
    /// Instruction fetch.
    Fetch,
}

impl Access {
    const fn bits(self) -> u64 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Fetch => 4,
        }
    }
}

/// Why the processor exited. The access did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// EPT violation (basic exit reason 48).
    Violation {
        /// VMCS field "guest-physical address".
        address: u64,
        /// VMCS field "exit qualification".
        qualification: ExitQualification,
    },
    /// EPT misconfiguration (basic exit reason 49).
    Misconfiguration {
        /// VMCS field "guest-physical address".
        address: u64,
        /// The misconfigured entry.
        entry: Entry,
    },
    /// Page-modification log full (basic exit reason 62).
    PmlFull,
}

/// Event counts of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that completed.
    pub accesses: u64,
    /// Exits with an EPT violation.
    pub violations: u64,
    /// Exits with a full page-modification log.
    pub pml_full: u64,
    /// Walks of the tables (TLB misses).
    pub walks: u64,
}

/// A cached translation of a leaf ("guest-physical mapping").
#[derive(Clone, Copy, Debug)]
struct TlbEntry {
    frame: HostFrame,
    /// Bits 2:0 of all entries on the path, ANDed.
    allowed: u64,
    dirty: bool,
}

/// A logical processor, and the VMCS fields of its second stage.
#[derive(Debug)]
pub struct Cpu {
    /// "EPT pointer".
    pub eptp: Eptp,
    /// The view that the EPT pointer selects.
    pub view: View,
    /// "PML address", if the control "enable PML" is on.
    pub pml: Option<HostFrame>,
    /// "PML index".
    pub pml_index: u16,
    /// Event counts so far.
    pub counts: Counts,
    capabilities: Capabilities,
    /// Tagged, like everything that is cached, with the address of the root (the SDM's "EP4TA").
    tlb: BTreeMap<(HostFrame, Level, Gfn), TlbEntry>,
    /// Cached page tables (lowest level) and the permissions of the path to them, by the first
    /// address they translate.
    walk_cache: BTreeMap<(HostFrame, Gfn), (HostFrame, u64)>,
}

impl Cpu {
    /// Creates a processor in `view`, with nothing cached and an empty log.
    pub const fn new(view: View, eptp: Eptp, capabilities: Capabilities) -> Self {
        Self {
            eptp,
            view,
            pml: None,
            pml_index: PML_HEAD_INDEX,
            counts: Counts {
                accesses: 0,
                violations: 0,
                pml_full: 0,
                walks: 0,
            },
            capabilities,
            tlb: BTreeMap::new(),
            walk_cache: BTreeMap::new(),
        }
    }

    /// Accesses guest-physical `address`; returns the host-physical address.
    ///
    /// # Errors
    ///
    /// [`Exit`]: the access did not happen.
    pub fn access(
        &mut self,
        memory: &(impl FrameAccess + ?Sized),
        address: u64,
        access: Access,
    ) -> Result<u64, Exit> {
        let at = Gfn::containing(address);
        if !at.is_translated() {
            // A four-level walk translates 48 bits; the processor signals a violation if higher
            // bits are set.
            return Err(self.violation(address, access, 0));
        }
        let frame = match self.cached(at, access) {
            Some(Ok(frame)) => frame,
            Some(Err(allowed)) => return Err(self.violation(address, access, allowed)),
            None => self.walk(memory, address, access)?,
        };
        self.counts.accesses += 1;
        Ok(frame.address() + address % FRAME_BYTES)
    }

    /// Looks up the TLB. Returns the frame, or the permissions if they cause a violation, or `None`
    /// if the tables must be walked. A write through a translation that is not cached as dirty
    /// walks the tables.
    fn cached(&self, at: Gfn, access: Access) -> Option<Result<HostFrame, u64>> {
        for level in Level::LEAVES {
            let key = (self.eptp.root(), level, at.align_down(level));
            let Some(mapping) = self.tlb.get(&key) else {
                continue;
            };
            if mapping.allowed & access.bits() == 0 {
                return Some(Err(mapping.allowed));
            }
            if access == Access::Write && self.eptp.accessed_dirty() && !mapping.dirty {
                return None;
            }
            let offset = at.index() - at.align_down(level).index();
            return Some(Ok(mapping.frame.plus(offset)));
        }
        None
    }

    /// Walks the tables until no other processor changes them during the walk.
    fn walk(
        &mut self,
        memory: &(impl FrameAccess + ?Sized),
        address: u64,
        access: Access,
    ) -> Result<HostFrame, Exit> {
        self.counts.walks += 1;
        loop {
            if let Some(frame) = self.try_walk(memory, address, access)? {
                return Ok(frame);
            }
        }
    }

    fn try_walk(
        &mut self,
        memory: &(impl FrameAccess + ?Sized),
        address: u64,
        access: Access,
    ) -> Result<Option<HostFrame>, Exit> {
        let at = Gfn::containing(address);
        let path = (self.eptp.root(), at.align_down(Level::Size2M));
        let (mut table, mut level, mut allowed) = match self.walk_cache.get(&path) {
            Some((table, allowed)) => (*table, Level::Size4K, *allowed),
            None => (self.eptp.root(), Level::Root, 7),
        };
        let mut used = [None; 4];
        let (leaf, slot) = loop {
            let slot = &memory.table(table)[level.index_of(at)];
            let entry = Entry(slot.load(Ordering::Acquire));
            if !entry.is_present() {
                return Err(self.violation(address, access, 0));
            }
            if self.is_misconfigured(entry, level) {
                return Err(Exit::Misconfiguration { address, entry });
            }
            match level.below() {
                Some(below) if entry.is_table(level) => {
                    allowed &= entry.0;
                    used[level as usize - 1] = Some((slot, entry));
                    table = entry.frame();
                    level = below;
                }
                _ => break (entry, slot),
            }
        };
        let way = allowed;
        allowed &= leaf.0;
        if allowed & access.bits() == 0 {
            return Err(self.violation(address, access, allowed));
        }
        if self.eptp.accessed_dirty() {
            let set_dirty = access == Access::Write && !leaf.dirty();
            let stale = |(_, entry): &(_, Entry)| !entry.accessed();
            let set_accessed = !leaf.accessed() || used.iter().flatten().any(stale);
            // Page-Modification Logging: the index is checked before any flag is set.
            if (set_dirty || set_accessed) && self.pml.is_some() && self.pml_index >= PML_ENTRIES {
                self.counts.pml_full += 1;
                return Err(Exit::PmlFull);
            }
            for (slot, entry) in used.into_iter().flatten() {
                if !entry.accessed() {
                    slot.fetch_or(Entry(0).with_accessed(true).0, Ordering::AcqRel);
                }
            }
            let new = leaf
                .with_accessed(true)
                .with_dirty(leaf.dirty() || set_dirty);
            if new != leaf {
                // A locked update, and only if the entry still has the value that was checked.
                let swapped =
                    slot.compare_exchange(leaf.0, new.0, Ordering::AcqRel, Ordering::Acquire);
                if swapped.is_err() {
                    return Ok(None);
                }
            }
            if set_dirty && let Some(buffer) = self.pml {
                let entry = &memory.table(buffer)[usize::from(self.pml_index)];
                entry.store(at.address(), Ordering::Release);
                self.pml_index = self.pml_index.wrapping_sub(1);
            }
        }
        let dirty = leaf.dirty() || access == Access::Write;
        let mapping = TlbEntry {
            frame: leaf.frame(),
            allowed: allowed & 7,
            dirty,
        };
        self.tlb
            .insert((self.eptp.root(), level, at.align_down(level)), mapping);
        if level == Level::Size4K && used[1].is_some() {
            self.walk_cache.insert(path, (table, way));
        }
        let offset = at.index() - at.align_down(level).index();
        Ok(Some(leaf.frame().plus(offset)))
    }

    /// Checks for EPT misconfigurations.
    fn is_misconfigured(&self, entry: Entry, level: Level) -> bool {
        let bits = entry.0;
        let permissions = bits & 7;
        let width = self.capabilities.physical_bits.clamp(FRAME_SHIFT, 52);
        let beyond = (bits & 0x000f_ffff_ffff_f000) >> width != 0;
        let refused = matches!(permissions, 0b010 | 0b110)
            || (permissions == 0b100 && !self.capabilities.execute_only)
            || beyond;
        let reserved = match level {
            Level::Root => bits & 0xf8 != 0,
            _ if entry.is_table(level) => bits & 0x78 != 0,
            Level::Size4K => entry.memory_type().is_none(),
            Level::Size2M | Level::Size1G => {
                let offered = if level == Level::Size1G {
                    self.capabilities.pages_1g
                } else {
                    self.capabilities.pages_2m
                };
                !offered || entry.memory_type().is_none() || !entry.frame().is_aligned(level)
            }
        };
        refused || reserved
    }

    /// Signals an EPT violation, which also invalidates what the processor has cached for the
    /// address.
    fn violation(&mut self, address: u64, access: Access, allowed: u64) -> Exit {
        self.counts.violations += 1;
        let at = Gfn::containing(address);
        let here = self.eptp.root();
        self.evict(|root, level, start| root == here && at.align_down(level) == start);
        const LINEAR_ADDRESS_VALID: u64 = 1 << 7;
        const TRANSLATION_OF_LINEAR: u64 = 1 << 8;
        let qualification = ExitQualification(
            access.bits() | (allowed & 7) << 3 | LINEAR_ADDRESS_VALID | TRANSLATION_OF_LINEAR,
        );
        Exit::Violation {
            address,
            qualification,
        }
    }

    fn evict(&mut self, which: impl Fn(HostFrame, Level, Gfn) -> bool) {
        self.tlb
            .retain(|(root, level, start), _| !which(*root, *level, *start));
        self.walk_cache
            .retain(|(root, start), _| !which(*root, Level::Size2M, *start));
    }

    /// Invalidates the translations that a flush covers in the tables under `eptp`. Call it for
    /// each of [`Guest::eptps`](crate::Guest::eptps), as software would execute `INVEPT`.
    /// Translations that the flush does not cover stay cached.
    pub fn invalidate(&mut self, eptp: Eptp, flush: &TlbFlush) {
        self.evict(|root, level, start| {
            let pages = level.pages();
            root == eptp.root()
                && flush.ranges().is_none_or(|ranges| {
                    ranges
                        .iter()
                        .any(|range| range.start() < start.plus(pages) && start < range.end())
                })
        });
    }
}
