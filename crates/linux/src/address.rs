//! Addresses in another process.

use std::fmt;

/// A virtual address in another process (QEMU). It is neither an address in this process nor a
/// guest-physical address, so nothing here can be dereferenced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostAddr(pub u64);

impl HostAddr {
    /// Adds `bytes` to the address. `None` on overflow.
    #[must_use]
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl fmt::Display for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostAddr({:#x})", self.0)
    }
}

/// `len` bytes of that process's memory, starting at `addr`. The kernel requires both to be
/// multiples of the page size of the mapping and returns `EINVAL` otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostRange {
    /// First byte.
    pub addr: HostAddr,
    /// Length in bytes.
    pub len: u64,
}

impl HostRange {
    /// Creates a range of `len` bytes at `addr`.
    #[must_use]
    pub const fn new(addr: HostAddr, len: u64) -> Self {
        Self { addr, len }
    }
}

impl fmt::Display for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.len, self.addr)
    }
}
