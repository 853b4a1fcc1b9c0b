//! A range of a process's addresses, written through `/proc/PID/mem`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hikkoshi_linux::{Errno, HostAddr, HostRange, Process};
use hikkoshi_pages::PAGE_BYTES;

use crate::error::MemoryLost;

/// The addresses of a RAM block in the guest's process. Offsets are bytes from the beginning of the
/// block.
#[derive(Debug)]
pub struct ProcessMemory {
    process: Arc<Process>,
    memory: File,
    range: HostRange,
}

impl ProcessMemory {
    /// Opens `bytes` bytes at `address` of `process`, for reading, or `writable`.
    ///
    /// # Errors
    ///
    /// As `open(2)`: it requires the right to trace the process. `ESRCH` when the process has
    /// exited, `EINVAL` when the range is not aligned to pages or exceeds the address space.
    pub fn open(
        process: Arc<Process>,
        address: u64,
        bytes: u64,
        writable: bool,
    ) -> io::Result<Self> {
        let aligned = address.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES);
        if !aligned || address.checked_add(bytes).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            memory: process.open_memory(writable)?,
            range: HostRange::new(HostAddr(address), bytes),
            process,
        })
    }

    /// The process.
    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Where the block is in the process.
    pub(crate) fn host_range(&self) -> HostRange {
        self.range
    }

    /// The address of a part of the block.
    pub(crate) fn host(&self, part: &Range<u64>) -> HostRange {
        let start = self.range.addr.0.saturating_add(part.start);
        HostRange::new(HostAddr(start), part.end.saturating_sub(part.start))
    }

    /// Reads whole pages, and populates what is absent.
    pub(crate) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.memory
            .read_exact_at(buffer, self.range.addr.0.saturating_add(at))
    }

    /// Writes whole pages.
    pub(crate) fn write(&self, at: u64, content: &[u8]) -> io::Result<()> {
        self.memory
            .write_all_at(content, self.range.addr.0.saturating_add(at))
            .map_err(Self::explain)
    }

    /// What an error of the kernel means: writing to the memory of a process that has ended writes
    /// nothing, or fails with `ESRCH`.
    pub(crate) fn explain(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::WriteZero => MemoryLost.into(),
            _ if Errno::from_io_error(&error) == Some(Errno::SRCH) => MemoryLost.into(),
            _ => error,
        }
    }
}
