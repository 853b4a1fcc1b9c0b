//! Why guest memory could not be written or dropped.

use std::io;

use hikkoshi_pages::PageRange;
use thiserror::Error;

/// Private memory cannot be read or written: its process has ended, and the memory with it.
///
/// An [`io::Error`] of this crate that contains it says that the pages are lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the process that holds the memory has ended")]
pub struct MemoryLost;

impl MemoryLost {
    /// Whether `error` contains it.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<MemoryLost> for io::Error {
    fn from(lost: MemoryLost) -> Self {
        Self::new(io::ErrorKind::UnexpectedEof, lost)
    }
}

/// Guest memory could not be written or dropped.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// Guest memory could not be written.
    #[error(
        "writing {range} of the guest's memory (is the RAM file's file system, or the huge-page \
         pool, full?)"
    )]
    Write {
        /// Which pages.
        range: PageRange,
        /// What went wrong.
        #[source]
        cause: io::Error,
    },
    /// Stale pages could not be dropped.
    #[error(
        "dropping {range} of the guest's memory{0} (post-copy needs a RAM file whose pages can be \
         dropped one by one: tmpfs without huge pages, mount option huge=never, or hugetlbfs; or \
         private memory)",
        if cause.is_none() { ": they are still there" } else { "" }
    )]
    Drop {
        /// Which pages.
        range: PageRange,
        /// What went wrong; `None` if the system call succeeded and the pages are still present.
        #[source]
        cause: Option<io::Error>,
    },
    /// A dropped page would be the file's again. Nothing was dropped.
    #[error(
        "dropping {range} of the guest's memory: it is a private mapping of a file that has content \
         there, and without its pages the guest would read the file (post-copy needs a file that \
         is empty there, or other memory at the destination; --mode precopy --when-stalled continue \
         works)"
    )]
    FileContent {
        /// Which pages.
        range: PageRange,
    },
}
