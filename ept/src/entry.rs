//! A table entry: Intel's bits, and the software bits of this crate.
//!
//! See SDM vol. 3C, chapter "VMX Support for Address Translation", "EPT Translation Mechanism"
//! (formats of EPT PML4Es, PDPTEs, PDEs and PTEs). The processor ignores bits 56:52 of a present
//! entry. If bits 2:0 are clear, the entry is not present and the processor ignores all other bits.

use core::fmt;

use crate::address::{HostFrame, Level};
use crate::attributes::{EXECUTE, MemoryType, PRESENT, PageType, Permissions, READ, WRITE};

const MEMORY_TYPE_SHIFT: u32 = 3;
const IGNORE_PAT: u64 = 1 << 6;
/// "Maps a page" in PDPTEs and PDEs.
const LEAF: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Software bit of a present leaf: the page is log-dirty RAM.
const LOG: u64 = 1 << 52;
/// Software bit of a present leaf: the mapping permits writes, even if bit 1 is clear for the dirty
/// log.
const MAY_WRITE: u64 = 1 << 53;
/// Software bits of entries that are not present.
const MMIO: u64 = 1 << 54;
const DETACHED: u64 = 1 << 55;
const FROZEN: u64 = 1 << 56;

/// The value of a table entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Entry(pub u64);

impl Entry {
    /// Nothing is mapped.
    pub const ABSENT: Self = Self(0);
    /// An emulated device.
    pub const MMIO: Self = Self(MMIO);
    /// A thread is changing this entry (KVM calls this a frozen SPTE). Other threads wait, or the
    /// guest retries the access.
    pub(crate) const FROZEN: Self = Self(FROZEN);
    /// The table was detached from its view: restart the walk at the root.
    pub(crate) const DETACHED: Self = Self(DETACHED);

    /// Creates a leaf at `level`. With `ignore_pat` (bit 6) the guest's PAT does not affect the
    /// memory type `memory`.
    pub const fn leaf(
        frame: HostFrame,
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

    /// Creates a reference to the next table. It permits everything; the leaves restrict access.
    pub(crate) const fn table(frame: HostFrame) -> Self {
        Self((frame.address() & ADDRESS) | PRESENT)
    }

    /// Creates a detached entry that links to the next detached table of a list.
    pub(crate) const fn detached_link(next: Option<HostFrame>) -> Self {
        match next {
            Some(frame) => Self(DETACHED | (frame.address() & ADDRESS)),
            None => Self::DETACHED,
        }
    }

    /// Returns the table that [`Entry::detached_link`] stored.
    pub(crate) const fn next_detached(self) -> Option<HostFrame> {
        match self.0 & ADDRESS {
            0 => None,
            address => Some(HostFrame::containing(address)),
        }
    }

    /// Whether the entry is present: the processor uses it.
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether the entry, read at `level`, maps a page.
    pub const fn is_leaf(self, level: Level) -> bool {
        self.is_present() && (matches!(level, Level::Size4K) || self.0 & LEAF != 0)
    }

    /// Whether the entry, read at `level`, refers to another table.
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

    /// Returns the frame that the entry refers to: the first frame of a page, or a table.
    pub const fn frame(self) -> HostFrame {
        HostFrame::containing(self.0 & ADDRESS)
    }

    /// Returns the permissions that the processor applies now.
    pub const fn permissions(self) -> Option<Permissions> {
        Permissions::from_bits(self.0)
    }

    /// Returns the permissions of the mapping, including write permission that the dirty log has
    /// removed temporarily.
    pub const fn granted(self) -> Option<Permissions> {
        if self.may_write() {
            Permissions::from_bits(self.0 | WRITE)
        } else {
            self.permissions()
        }
    }

    /// Returns the memory type of a leaf, or `None` for a reserved value.
    pub const fn memory_type(self) -> Option<MemoryType> {
        MemoryType::from_bits(self.0 >> MEMORY_TYPE_SHIFT)
    }

    /// Whether the processor permits reads (bit 0).
    pub const fn is_readable(self) -> bool {
        self.0 & READ != 0
    }

    /// Whether the processor permits writes (bit 1).
    pub const fn is_writable(self) -> bool {
        self.0 & WRITE != 0
    }

    /// Whether the processor permits instruction fetches (bit 2).
    pub const fn is_executable(self) -> bool {
        self.0 & EXECUTE != 0
    }

    /// Whether the mapping permits writes, even if the dirty log has removed the permission
    /// temporarily.
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

    /// The dirty flag (bit 9); only leaves have one.
    pub const fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Whether this is a dirty leaf, or an entry that a thread is changing, which may be one. Also
    /// true for several entries, combined by *or*, if it is true for one of them: no other kind of
    /// entry has one of these bits.
    pub(crate) const fn may_be_dirty(self) -> bool {
        self.0 & (DIRTY | FROZEN) != 0
    }

    /// Returns what the page is to the hypervisor.
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

    /// Returns the entry with the accessed flag set or clear.
    pub const fn with_accessed(self, on: bool) -> Self {
        self.with(ACCESSED, on)
    }

    /// Returns the entry with the dirty flag set or clear.
    pub const fn with_dirty(self, on: bool) -> Self {
        self.with(DIRTY, on)
    }

    /// Returns the leaf with other permissions and without the log-dirty bit.
    pub(crate) const fn with_permissions(self, permissions: Permissions) -> Self {
        let bits = self.0 & !(PRESENT | MAY_WRITE | LOG) | permissions.bits();
        Self(bits).with(MAY_WRITE, permissions.is_writable())
    }

    /// Returns child leaf number `index` at `level` when this leaf is split.
    pub(crate) const fn child_leaf(self, level: Level, index: u64) -> Self {
        let frame = self.frame().plus(index * level.pages());
        let bits = self.0 & !(ADDRESS | LEAF) | (frame.address() & ADDRESS);
        Self(bits).with(LEAF, !matches!(level, Level::Size4K))
    }

    /// Returns the leaf one level up; the inverse of [`Entry::child_leaf`] with index 0.
    pub(crate) const fn parent_leaf(self) -> Self {
        self.with(LEAF, true)
    }

    /// Returns the bits that are the same in all child leaves of a leaf: all except the address,
    /// the accessed flag and the dirty flag.
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
    fn a_leaf_has_the_format_of_the_sdm() {
        let frame = HostFrame::new(0x1_2345);
        let page = Entry::leaf(
            frame,
            Level::Size4K,
            Permissions::All,
            MemoryType::WriteBack,
            false,
        );
        assert_eq!(page.0 & 0x000f_ffff_ffff_ffff, 0x1234_5037);
        let large = Entry::leaf(
            HostFrame::new(0x1_2200),
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
    fn non_present_entries_have_no_permission_bits() {
        for entry in [
            Entry::ABSENT,
            Entry::MMIO,
            Entry::FROZEN,
            Entry::detached_link(Some(HostFrame::new(7))),
        ] {
            assert_eq!(entry.0 & 7, 0);
            assert!(!entry.is_present());
        }
        assert_eq!(
            Entry::detached_link(Some(HostFrame::new(7))).next_detached(),
            Some(HostFrame::new(7))
        );
        assert_eq!(Entry::DETACHED.next_detached(), None);
    }

    #[test]
    fn child_leaves_merge_into_their_parent() {
        let huge = Entry::leaf(
            HostFrame::new(1 << 18),
            Level::Size1G,
            Permissions::All,
            MemoryType::WriteBack,
            false,
        );
        let large = huge.child_leaf(Level::Size2M, 3);
        assert_eq!(large.frame(), HostFrame::new((1 << 18) + 3 * 512));
        let page = large.child_leaf(Level::Size4K, 5);
        assert_eq!(page.frame(), HostFrame::new((1 << 18) + 3 * 512 + 5));
        assert!(page.is_leaf(Level::Size4K));
        assert_eq!(large.child_leaf(Level::Size4K, 0).parent_leaf(), large);
    }

    #[test]
    fn write_permission_removed_by_the_log_is_still_granted() {
        let entry = Entry::leaf(
            HostFrame::new(1),
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
