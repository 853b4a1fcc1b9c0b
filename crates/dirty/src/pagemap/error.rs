//! Why memory cannot be tracked.

use std::io;

use hikkoshi_userfault::RangeError;
use thiserror::Error;

use crate::unsupported_kernel::UnsupportedKernel;

/// Why tracking could not be started. Everything that was registered is unregistered.
#[derive(Debug, Error)]
pub enum StartError {
    /// Addresses and blocks do not match.
    #[error(
        "tracking writes: {given} host addresses for {blocks} RAM blocks, or one that is out of range"
    )]
    Addresses {
        /// Number of blocks in the layout.
        blocks: usize,
        /// Number of addresses.
        given: usize,
    },
    /// This kernel cannot track this kind of memory.
    #[error("tracking writes to RAM block {block}")]
    Unsupported {
        /// The name of the block.
        block: String,
        /// The cause.
        source: UnsupportedKernel,
    },
    /// The pagemap could not be opened.
    #[error(
        "tracking writes: opening /proc/{pid}/pagemap (this requires the process's user or \
         CAP_SYS_PTRACE)"
    )]
    Pagemap {
        /// The process ID.
        pid: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// A block could not be registered or protected.
    #[error("tracking writes to RAM block {block}")]
    Block {
        /// The name of the block.
        block: String,
        /// The cause.
        source: RangeError,
    },
}

/// Part of a block could not be protected.
#[derive(Debug, Error)]
#[error("tracking writes to RAM block {block}")]
pub struct ProtectError {
    /// The name of the block.
    pub(super) block: String,
    /// The cause.
    pub(super) source: RangeError,
}
