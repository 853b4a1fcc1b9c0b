//! One entry of the tables: Intel's bits, and the few that the processor leaves to us.
//!
//! SDM vol. 3C, ch. "VMX Support for Address Translation", "EPT Translation Mechanism" (tables of the
//! formats of EPT PML4Es, PDPTEs, PDEs and PTEs). Bitmap 56:52 of a present entry are ignored by the
//! processor; of an entry whose bits 2:0 are clear it ignores all others.

use core::fmt;

use crate::address::{Frame, Level};
use crate::attributes::{EXECUTE, MemoryType, PRESENT, PageType, Permissions, READ, WRITE};

const MEMORY_TYPE_SHIFT: u32 = 3;
const IGNORE_PAT: u64 = 1 << 6;
/// "Maps a page" in PDPTEs and PDEs.
const LEAF: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Ours, present leaves: log-dirty RAM.
const LOG: u64 = 1 << 52;
/// Ours, present leaves: the mapping allows writing, even if the log holds bit 1 back.
const MAY_WRITE: u64 = 1 << 53;
/// Ours, entries that are not present.
const MMIO: u64 = 1 << 54;
const DETACHED: u64 = 1 << 55;
const FROZEN: u64 = 1 << 56;

/// A value of one entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Entry(pub u64);

impl Entry {
    /// Nothing is mapped.
    pub const ABSENT: Self = Self(0);
    /// An emulated device.
    pub const MMIO: Self = Self(MMIO);
    /// One thread is replacing this entry; the others wait or let the guest try again.
    pub(crate) const FROZEN: Self = Self(FROZEN);
    /// The table has been taken out of the tree: start again at the root.
    pub(crate) const DETACHED: Self = Self(DETACHED);

    /// A leaf at `level`. `ignore_pat` keeps the guest's PAT from weakening `memory` (bit 6).
    pub const fn leaf(
        frame: Frame,
        level: Level,
        permissions: Permissions,
        memory: MemoryType,
        ignore_pat: bool,
    ) -> Self {
        let mut bits = frame.address() & ADDRESS;
        bits |= permissions.bits() | (memory as u64) << MEMORY_TYPE_SHIFT;
        if permissions.is_writable() {
            bits |= MAY_WRITE;
        }
        if ignore_pat {
            bits |= IGNORE_PAT;
        }
        if !matches!(level, Level::Size4K) {
            bits |= LEAF;
        }
        Self(bits)
    }

    /// A reference to the next table; everything is allowed, the leaves decide.
    pub(crate) const fn table(frame: Frame) -> Self {
        Self((frame.address() & ADDRESS) | PRESENT)
    }

    /// A dead entry that remembers the next table of a chain of dead tables.
    pub(crate) const fn detached_link(next: Option<Frame>) -> Self {
        match next {
            Some(frame) => Self(DETACHED | (frame.address() & ADDRESS)),
            None => Self::DETACHED,
        }
    }

    /// The table that [`Entry::detached_link`] remembers.
    pub(crate) const fn next_detached(self) -> Option<Frame> {
        match self.0 & ADDRESS {
            0 => None,
            address => Some(Frame::containing(address)),
        }
    }

    /// Whether the processor uses the entry.
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether the entry, found at `level`, maps a page.
    pub const fn is_leaf(self, level: Level) -> bool {
        self.is_present() && (matches!(level, Level::Size4K) || self.0 & LEAF != 0)
    }

    /// Whether the entry, found at `level`, leads to another table.
    pub const fn is_table(self, level: Level) -> bool {
        self.is_present() && !self.is_leaf(level)
    }

    pub(crate) const fn is_frozen(self) -> bool {
        !self.is_present() && self.0 & FROZEN != 0
    }

    pub(crate) const fn is_detached(self) -> bool {
        !self.is_present() && self.0 & DETACHED != 0
    }

    pub(crate) const fn is_mmio(self) -> bool {
        !self.is_present() && self.0 & MMIO != 0
    }

    /// The frame that the entry refers to: a page's first, or a table's.
    pub const fn frame(self) -> Frame {
        Frame::containing(self.0 & ADDRESS)
    }

    /// What the processor allows now.
    pub const fn permissions(self) -> Option<Permissions> {
        Permissions::from_bits(self.0)
    }

    /// What the mapping allows: also what the dirty log holds back for a while.
    pub const fn granted(self) -> Option<Permissions> {
        if self.may_write() {
            Permissions::from_bits(self.0 | WRITE)
        } else {
            self.permissions()
        }
    }

    /// The caching of a leaf, if its bits are not reserved ones.
    pub const fn memory_type(self) -> Option<MemoryType> {
        MemoryType::from_bits(self.0 >> MEMORY_TYPE_SHIFT)
    }

    /// Whether the processor allows reading (bit 0).
    pub const fn is_readable(self) -> bool {
        self.0 & READ != 0
    }

    /// Whether the processor allows writing (bit 1).
    pub const fn is_writable(self) -> bool {
        self.0 & WRITE != 0
    }

    /// Whether the processor allows fetching instructions (bit 2).
    pub const fn is_executable(self) -> bool {
        self.0 & EXECUTE != 0
    }

    /// Whether the mapping allows writing, be it held back or not.
    pub const fn may_write(self) -> bool {
        self.is_present() && self.0 & MAY_WRITE != 0
    }

    /// Whether the page is log-dirty RAM.
    pub const fn is_logged(self) -> bool {
        self.is_present() && self.0 & LOG != 0
    }

    /// The accessed flag (bit 8).
    pub const fn accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// The dirty flag (bit 9); of leaves only.
    pub const fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// What the page is to the hypervisor.
    pub const fn page_type(self) -> PageType {
        if self.is_logged() {
            PageType::LogDirtyRam
        } else if self.is_present() {
            PageType::Ram
        } else if self.is_mmio() {
            PageType::Mmio
        } else {
            PageType::Absent
        }
    }

    const fn with(self, bit: u64, on: bool) -> Self {
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }

    pub(crate) const fn with_write(self, on: bool) -> Self {
        self.with(WRITE, on)
    }

    pub(crate) const fn with_log(self, on: bool) -> Self {
        self.with(LOG, on)
    }

    /// The same with the accessed flag set or clear.
    pub const fn with_accessed(self, on: bool) -> Self {
        self.with(ACCESSED, on)
    }

    /// The same with the dirty flag set or clear.
    pub const fn with_dirty(self, on: bool) -> Self {
        self.with(DIRTY, on)
    }

    /// The same leaf with other permissions, outside any log.
    pub(crate) const fn with_permissions(self, permissions: Permissions) -> Self {
        let bits = self.0 & !(PRESENT | MAY_WRITE | LOG) | permissions.bits();
        Self(bits).with(MAY_WRITE, permissions.is_writable())
    }

    /// One of the smaller leaves, at `level`, that a leaf above breaks into: number `index`.
    pub(crate) const fn child_leaf(self, level: Level, index: u64) -> Self {
        let frame = self.frame().plus(index * level.pages());
        let bits = self.0 & !(ADDRESS | LEAF) | (frame.address() & ADDRESS);
        Self(bits).with(LEAF, !matches!(level, Level::Size4K))
    }

    /// The same leaf one level up; the opposite of [`Entry::child_leaf`] 0.
    pub(crate) const fn parent_leaf(self) -> Self {
        self.with(LEAF, true)
    }

    /// The bits in which the pieces of a leaf agree: all but the address and the two flags.
    pub(crate) const fn attributes(self) -> u64 {
        self.0 & !(ADDRESS | ACCESSED | DIRTY)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = |on: bool, letter: char| if on { letter } else { '-' };
        write!(
            f,
            "{:#018x} [{}{}{} {}{}{}]",
            self.0,
            flag(self.is_readable(), 'r'),
            flag(self.is_writable(), 'w'),
            flag(self.is_executable(), 'x'),
            flag(self.accessed(), 'A'),
            flag(self.dirty(), 'D'),
            flag(self.is_logged(), 'L'),
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_has_the_bits_of_the_sdm() {
        let frame = Frame::new(0x1_2345);
        let page = Entry::leaf(
            frame,
            Level::Size4K,
            Permissions::All,
            MemoryType::WriteBack,
            false,
        );
        assert_eq!(page.0 & 0x000f_ffff_ffff_ffff, 0x1234_5037);
        let large = Entry::leaf(
            Frame::new(0x1_2200),
            Level::Size2M,
            Permissions::Read,
            MemoryType::Uncacheable,
            true,
        );
        assert_eq!(large.0, 0x1220_00c1);
        assert!(large.is_leaf(Level::Size2M) && !large.is_table(Level::Size2M));
        assert_eq!(Entry::table(frame).0, 0x1234_5007);
        assert!(Entry::table(frame).is_table(Level::Size1G));
    }

    #[test]
    fn what_is_not_present_has_no_permission_bit() {
        for entry in [
            Entry::ABSENT,
            Entry::MMIO,
            Entry::FROZEN,
            Entry::detached_link(Some(Frame::new(7))),
        ] {
            assert_eq!(entry.0 & 7, 0);
            assert!(!entry.is_present());
        }
        assert_eq!(
            Entry::detached_link(Some(Frame::new(7))).next_detached(),
            Some(Frame::new(7))
        );
        assert_eq!(Entry::DETACHED.next_detached(), None);
    }

    #[test]
    fn pieces_grow_back() {
        let huge = Entry::leaf(
            Frame::new(1 << 18),
            Level::Size1G,
            Permissions::All,
            MemoryType::WriteBack,
            false,
        );
        let large = huge.child_leaf(Level::Size2M, 3);
        assert_eq!(large.frame(), Frame::new((1 << 18) + 3 * 512));
        let page = large.child_leaf(Level::Size4K, 5);
        assert_eq!(page.frame(), Frame::new((1 << 18) + 3 * 512 + 5));
        assert!(page.is_leaf(Level::Size4K));
        assert_eq!(large.child_leaf(Level::Size4K, 0).parent_leaf(), large);
    }

    #[test]
    fn held_back_writing_is_still_granted() {
        let entry = Entry::leaf(
            Frame::new(1),
            Level::Size4K,
            Permissions::All,
            MemoryType::WriteBack,
            false,
        )
        .with_log(true)
        .with_write(false);
        assert_eq!(entry.permissions(), Some(Permissions::ReadExecute));
        assert_eq!(entry.granted(), Some(Permissions::All));
        assert_eq!(entry.page_type(), PageType::LogDirtyRam);
    }
}
