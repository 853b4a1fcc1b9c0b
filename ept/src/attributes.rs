//! Attributes of a mapping and of a page: permissions, memory type, page type.

/// Bits 2:0 of a present entry.
pub(crate) const READ: u64 = 1 << 0;
pub(crate) const WRITE: u64 = 1 << 1;
pub(crate) const EXECUTE: u64 = 1 << 2;
pub(crate) const PRESENT: u64 = READ | WRITE | EXECUTE;

/// What a mapping permits the guest to do.
///
/// There is no value for write access without read access: the processor treats such an entry as a
/// misconfiguration (SDM, "EPT Misconfigurations").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permissions {
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and instruction fetch.
    ReadExecute,
    /// Read, write and instruction fetch.
    All,
    /// Instruction fetch only. The processor must support it
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

    /// Whether write access is permitted.
    pub const fn is_writable(self) -> bool {
        self.bits() & WRITE != 0
    }
}

/// EPT memory type: how the processor caches a page (SDM vol. 3C, "EPT and Memory Typing").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryType {
    /// UC: not cached (devices).
    Uncacheable = 0,
    /// WC: writes are combined.
    WriteCombining = 1,
    /// WT: writes go to memory at once.
    WriteThrough = 4,
    /// WP: reads are cached, writes are not.
    WriteProtected = 5,
    /// WB: ordinary memory.
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
    /// Nothing is mapped. On an access, the hypervisor maps the page or rejects the access.
    Absent,
    /// Memory whose writes are not logged.
    Ram,
    /// Memory whose writes are logged.
    LogDirtyRam,
    /// An emulated device: every access exits.
    Mmio,
}
