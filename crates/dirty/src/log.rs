//! The trait.

use std::fmt::Debug;
use std::io;

use hikkoshi_linux::HostRange;
use hikkoshi_pages::PageRange;
use thiserror::Error;

/// A record of which pages were written. What every implementation promises is written down as
/// tests in [`contract`](crate::contract_tests).
///
/// # What a log cannot see
///
/// A device that writes to memory by itself (DMA) does so through pages that the kernel has pinned
/// for it, and touches no page table. A direct disk read (`O_DIRECT`, `cache=none`) pins its pages
/// when it is submitted. The log reports them as written *then*, and need not report anything when
/// the data lands. So a page may still change after it was taken, without being dirty again.
///
/// Where a guest has such devices, **take, then drain, then copy**: wait between the two until every
/// device write that was under way has landed. What was pinned before the take has landed after the
/// drain; what is pinned after the take is reported anew. Pages pinned before the log was started
/// are covered as well, if every page is copied once after such a drain.
///
/// # Example
///
/// The memory here belongs to this process; usually it belongs to another one.
///
/// ```
/// use std::sync::Arc;
///
/// use hikkoshi_dirty::{DirtyLog, PagemapLog};
/// use hikkoshi_linux::HostAddr;
/// use hikkoshi_pages::{Page, PageRange, RamBlock, RamLayout};
/// use hikkoshi_userfault::{Features, Userfault};
/// use vm_memory::{Bytes, MmapRegion, VolatileMemory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let block = RamBlock { id: "ram".into(), bytes: 16 << 12, host_page: 4096, guest: vec![] };
/// let layout = RamLayout::new(vec![block])?;
/// let memory = MmapRegion::<()>::new(16 << 12)?;
///
/// let userfault = Arc::new(Userfault::create_for_self(Features::FOR_DIRTY_LOG)?);
/// let log = PagemapLog::start(userfault, &layout, &[HostAddr(memory.as_ptr() as u64)])?;
/// for page in [3, 4, 9] {
///     memory.as_volatile_slice().write_obj(1_u8, page << 12)?;
/// }
///
/// // Take a range right before it is copied.
/// let mut dirty = Vec::new();
/// log.take(layout.all(), &mut |run| dirty.push(run))?;
/// let run = |page, pages| PageRange::from_len(Page::new(page), pages);
/// assert_eq!(dirty, [run(3, 2), run(9, 1)]);
/// assert_eq!(log.count(layout.all())?, 0);
///
/// log.stop()?;
/// # Ok(())
/// # }
/// ```
pub trait DirtyLog: Send + Sync + Debug {
    /// Reports the dirty pages of `range` and makes them clean: calls `dirty` with each maximal
    /// run, ascending, clipped to `range` (and to the layout).
    ///
    /// Copy a page only after it was reported, and drained where devices write (see above). A write that comes while this runs is reported now or
    /// by a later take, or by both. Several threads may take at once; each page goes to one of them.
    ///
    /// # Errors
    ///
    /// What was reported before the error has been cleared, and the caller owes it; of the rest
    /// nothing is lost.
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError>;

    /// How many pages of `range` are dirty now. Clears nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::take`].
    fn count(&self, range: PageRange) -> Result<u64, DirtyError>;

    /// Ends tracking and gives back everything it took. May be called again, and is what dropping
    /// does. Fine when the process has ended. Not inside the downtime: on a large guest it takes a
    /// while.
    ///
    /// # Errors
    ///
    /// When something could not be given back; it was tried for everything.
    fn stop(&self) -> Result<(), DirtyError>;
}

/// The log could not be read, or tracking not be ended.
#[derive(Debug, Error)]
pub enum DirtyError {
    /// The guest's process has ended.
    #[error("reading the dirty log of process {pid}: it has ended")]
    ProcessGone {
        /// Its number.
        pid: u32,
    },
    /// [`DirtyLog::stop`] was called before.
    #[error("reading the dirty log: tracking has been stopped")]
    Stopped,
    /// Some of the guest's memory is not being tracked.
    #[error(
        "reading the dirty log of {range}: part of this memory is not tracked (any more); the process \
         has mapped something else there, or another program has taken its userfaultfd away"
    )]
    NotTracked {
        /// What was being read.
        range: HostRange,
    },
    /// The kernel does not answer.
    #[error("reading the dirty log of {range} by PAGEMAP_SCAN: {source}")]
    Scan {
        /// What was being read.
        range: HostRange,
        /// What the kernel said.
        source: io::Error,
    },
    /// A block could not be unregistered.
    #[error("ending the tracking of RAM block {block}: {source}")]
    Stop {
        /// Its name.
        block: String,
        /// Why not.
        source: hikkoshi_userfault::RangeError,
    },
}
