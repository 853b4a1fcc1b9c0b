//! What holds the memory of one RAM block.

use std::io;
use std::ops::Range;

use crate::error::MemoryLost;
use crate::private_memory::PrivateMemory;
use crate::process_memory::ProcessMemory;
use crate::ram_file::RamFile;

/// What holds the memory of one RAM block.
#[derive(Debug)]
pub enum Backing {
    /// A file that the guest's process has mapped shared: tmpfs, hugetlbfs, memfd, or on
    /// a disk.
    File(RamFile),
    /// Private memory of the guest's process.
    Private(PrivateMemory),
    /// Private memory of a process that has ended. Every access fails by [`MemoryLost`].
    Lost,
}

impl Backing {
    /// The file that holds the memory. `None` for private memory, also that of a private mapping of
    /// a file.
    pub fn file(&self) -> Option<&RamFile> {
        match self {
            Self::File(file) => Some(file),
            Self::Private(_) | Self::Lost => None,
        }
    }

    /// The private memory.
    pub fn private(&self) -> Option<&PrivateMemory> {
        match self {
            Self::File(_) | Self::Lost => None,
            Self::Private(memory) => Some(memory),
        }
    }

    /// Whether the memory was private to a process that has ended.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Private(memory) => memory.is_lost(),
            Self::Lost => true,
        }
    }

    /// Where the guest's process maps the memory, if absent pages are filled there.
    pub(crate) fn mapping(&self) -> Option<&ProcessMemory> {
        match self {
            Self::File(file) => file.mapping(),
            Self::Private(memory) => Some(memory.place()),
            Self::Lost => None,
        }
    }

    /// Where absent pages can be installed by userfaultfd: in private anonymous memory, and in
    /// files without huge pages.
    pub(crate) fn installable(&self) -> Option<&ProcessMemory> {
        match self {
            Self::File(file) => file.installable(),
            Self::Private(memory) => memory.file().is_none().then(|| memory.place()),
            Self::Lost => None,
        }
    }

    /// Writes whole pages. Absent pages of a file are charged to this process.
    pub(crate) fn write(&self, at: u64, content: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write(at, content),
            Self::Private(memory) => memory.write(at, content),
            Self::Lost => Err(MemoryLost.into()),
        }
    }

    pub(crate) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.read(at, buffer),
            Self::Private(memory) => memory.read(at, buffer),
            Self::Lost => Err(MemoryLost.into()),
        }
    }

    /// Whether any page in `within` is not a hole.
    pub(crate) fn has_data(&self, within: &Range<u64>) -> io::Result<bool> {
        match self {
            Self::File(file) => Ok(file.first_data(within)?.is_some()),
            Self::Private(memory) => Ok(memory.first_run(within)?.is_some()),
            Self::Lost => Err(MemoryLost.into()),
        }
    }

    /// The first run in `within` that is not a hole; it may end after `within`, and after the
    /// block.
    pub(crate) fn data_run(&self, within: &Range<u64>) -> io::Result<Option<Range<u64>>> {
        match self {
            Self::File(file) => file.data_run(within),
            Self::Private(memory) => memory.first_run(within),
            Self::Lost => Err(MemoryLost.into()),
        }
    }

    /// Calls `each` with all runs in `within` that are not holes, in ascending order.
    pub(crate) fn data_runs(
        &self,
        within: &Range<u64>,
        each: &mut dyn FnMut(Range<u64>),
    ) -> io::Result<()> {
        match self {
            Self::File(file) => {
                let mut rest = within.clone();
                while let Some(run) = file.data_run(&rest)? {
                    rest.start = run.end.min(rest.end);
                    each(run.start..rest.start);
                }
                Ok(())
            }
            Self::Private(memory) => memory.runs(within, each),
            Self::Lost => Err(MemoryLost.into()),
        }
    }
}

impl From<RamFile> for Backing {
    fn from(file: RamFile) -> Self {
        Self::File(file)
    }
}

impl From<PrivateMemory> for Backing {
    fn from(memory: PrivateMemory) -> Self {
        Self::Private(memory)
    }
}
