//! What a mapping allows, how it is cached, and what a page is.

/// Bitmap 2:0 of a present entry.
pub(crate) const READ: u64 = 1 << 0;
pub(crate) const WRITE: u64 = 1 << 1;
pub(crate) const EXECUTE: u64 = 1 << 2;
pub(crate) const PRESENT: u64 = READ | WRITE | EXECUTE;

/// What a mapping lets the guest do.
///
/// Writing without reading is no combination that the processor takes (SDM, "EPT Misconfigurations"),
/// and it cannot be said here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permissions {
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
    /// Reading and fetching instructions.
    ReadExecute,
    /// Everything.
    All,
    /// Fetching instructions only; the processor must support it
    /// ([`Capabilities::execute_only`](crate::Capabilities)).
    Execute,
}

impl Permissions {
    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::Read => READ,
            Self::ReadWrite => READ | WRITE,
            Self::ReadExecute => READ | EXECUTE,
            Self::All => READ | WRITE | EXECUTE,
            Self::Execute => EXECUTE,
        }
    }

    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match bits & PRESENT {
            READ => Some(Self::Read),
            0b011 => Some(Self::ReadWrite),
            0b101 => Some(Self::ReadExecute),
            PRESENT => Some(Self::All),
            EXECUTE => Some(Self::Execute),
            _ => None,
        }
    }

    /// Whether writing is allowed.
    pub const fn is_writable(self) -> bool {
        self.bits() & WRITE != 0
    }
}

/// How the processor caches a page (SDM vol. 3C, "EPT and Memory Typing").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryType {
    /// Not at all (devices).
    Uncacheable = 0,
    /// Writes are gathered.
    WriteCombining = 1,
    /// Writes go through.
    WriteThrough = 4,
    /// Reads are cached, writes are not.
    WriteProtected = 5,
    /// Ordinary memory.
    WriteBack = 6,
}

impl MemoryType {
    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match bits & 7 {
            0 => Some(Self::Uncacheable),
            1 => Some(Self::WriteCombining),
            4 => Some(Self::WriteThrough),
            5 => Some(Self::WriteProtected),
            6 => Some(Self::WriteBack),
            _ => None,
        }
    }
}

/// What a page is to the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageType {
    /// Nothing is mapped: an access is the hypervisor's to fill or refuse.
    Absent,
    /// Memory whose writes nobody asks about.
    Ram,
    /// Memory whose writes go into the dirty log.
    LogDirtyRam,
    /// A device that the hypervisor emulates: every access exits.
    Mmio,
}
