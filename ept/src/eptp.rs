//! The EPT pointer (EPTP): the VMCS field that selects the tables of a view.

use crate::address::HostFrame;

/// An extended-page-table pointer, in the format of the VM-execution control field (SDM vol. 3C,
/// "Extended-Page-Table Pointer (EPTP)").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eptp(pub u64);

impl Eptp {
    /// Creates a pointer to tables in write-back memory with a four-level walk, with or without
    /// accessed and dirty flags.
    pub const fn new(root: HostFrame, accessed_dirty: bool) -> Self {
        const WRITE_BACK: u64 = 6;
        const WALK_LENGTH_MINUS_1: u64 = 3 << 3;
        const ACCESSED_DIRTY: u64 = 1 << 6;
        let flags = if accessed_dirty { ACCESSED_DIRTY } else { 0 };
        Self(root.address() | flags | WALK_LENGTH_MINUS_1 | WRITE_BACK)
    }

    /// Returns the frame of the root table.
    pub const fn root(self) -> HostFrame {
        HostFrame::containing(self.0 & 0x000f_ffff_ffff_f000)
    }

    /// Whether accessed and dirty flags are enabled.
    pub const fn accessed_dirty(self) -> bool {
        self.0 & (1 << 6) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_ept_pointer_has_the_format_of_the_sdm() {
        assert_eq!(Eptp::new(HostFrame::new(5), true).0, 0x505e);
        assert_eq!(Eptp::new(HostFrame::new(5), false).0, 0x501e);
        assert_eq!(Eptp(0x505e).root(), HostFrame::new(5));
    }
}
