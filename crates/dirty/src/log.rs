//! The [`DirtyLog`] trait and its error type.

use std::fmt::Debug;
use std::io;

use hikkoshi_linux::HostRange;
use hikkoshi_pages::PageRange;
use thiserror::Error;

use crate::capability_error::CapabilityError;

/// A record of the pages that were written. Its guarantees are written as tests in
/// [`contract_tests`](crate::contract_tests).
///
/// # What a log cannot report
///
/// A device with direct memory access (DMA) writes to pages that the kernel has pinned for it and
/// does not use page tables. A direct disk read (`O_DIRECT`, `cache=none`) pins its pages when it
/// is submitted. The log reports them as written *at that time*, and may report nothing when the
/// data lands. So a page can still change after it was taken, without becoming dirty again.
///
/// If a guest has such devices, **take, then drain, then copy**: between the take and the copy,
/// wait until all device writes in progress have landed. Pages that were pinned before the take
/// have landed after the drain; pages that are pinned after the take are reported again. Pages that
/// were pinned before the log was started are covered as well, if every page is copied once after
/// such a drain.
///
/// # Example
///
/// In this example the memory belongs to this process; usually it belongs to another one.
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
    /// run, in ascending order, clipped to `range` (and to the layout).
    ///
    /// Copy a page only after it was reported, and after a drain if devices write to memory (see
    /// above). A write during the call is reported now, by a later take, or by both. Several
    /// threads can take at the same time; each page is reported to at least one of them, if they
    /// divide the memory at host pages. Of a huge page that is in the ranges of two, what one has
    /// cleared for the other may be reported by the next take only.
    ///
    /// A dirty page stays dirty when it is dropped (see
    /// [what is reported](crate#what-is-reported-and-what-is-not)).
    ///
    /// # Errors
    ///
    /// The pages that were reported before the error are clean in the log, and the caller has to
    /// send them. No other page is lost.
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError>;

    /// Reports the dirty pages of `range` as [`take`](Self::take) does, and leaves them dirty: a
    /// later peek or take reports them again. No page has to be protected again, so it takes less
    /// time than a take of many dirty pages.
    ///
    /// A write before the call is reported; a write during the call may be.
    ///
    /// Whether a page that is dirty already was written once more cannot be seen by peeking. So it
    /// is for a paused guest, or for pages whose content is sent later: a page that is copied after
    /// a peek must be copied again if anything may write it afterwards.
    ///
    /// # Errors
    ///
    /// No page is lost, whether or not it was reported before the error.
    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError>;

    /// Returns the number of pages of `range` that are dirty now. Clears nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::peek`].
    fn count(&self, range: PageRange) -> Result<u64, DirtyError> {
        let mut pages = 0;
        self.peek(range, &mut |run| pages += run.len())?;
        Ok(pages)
    }

    /// Whether every page was clean when the log was started. If not, the first take of a page may
    /// report it although nothing has written to it.
    fn starts_clean(&self) -> bool {
        true
    }

    /// Stops tracking and restores everything that it changed. It can be called again, and dropping
    /// the log calls it. It succeeds if the process has ended. Do not call it during the downtime:
    /// on a large guest it takes a while.
    ///
    /// # Errors
    ///
    /// Returns an error if something could not be restored; it still tries to restore everything
    /// else.
    fn stop(&self) -> Result<(), DirtyError>;
}

/// Why the log could not be read, or tracking could not be stopped.
#[derive(Debug, Error)]
pub enum DirtyError {
    /// The guest's process has ended.
    #[error("reading the dirty log of process {pid}: it has ended")]
    ProcessGone {
        /// The process ID.
        pid: u32,
    },
    /// [`DirtyLog::stop`] was called before.
    #[error("reading the dirty log: tracking was stopped")]
    Stopped,
    /// Part of the guest's memory is not tracked.
    #[error(
        "reading the dirty log of {range}: part of this memory is not tracked; the process has \
         remapped it, or another program has closed its userfaultfd"
    )]
    NotTracked {
        /// The range that was read.
        range: HostRange,
    },
    /// The kernel returned an error.
    #[error("reading the dirty log of {range} by PAGEMAP_SCAN")]
    Scan {
        /// The range that was read.
        range: HostRange,
        /// The error of the system call.
        source: io::Error,
    },
    /// A hole of the guest's memory could not be protected.
    #[error("reading the dirty log: protecting memory that was dropped")]
    ProtectHole(#[source] hikkoshi_userfault::RangeError),
    /// KVM's log of a memory slot could not be read or cleared.
    #[error("reading KVM's dirty log of memory slot {slot} by {call}")]
    KvmSlot {
        /// The system call.
        call: &'static str,
        /// The slot's number.
        slot: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// KVM's dirty rings could not be reset.
    #[error("reading KVM's dirty rings by KVM_RESET_DIRTY_RINGS")]
    KvmRings {
        /// The error of the system call.
        source: io::Error,
    },
    /// KVM's log of a memory slot could not be stopped.
    #[error("stopping KVM's dirty log of memory slot {slot}")]
    KvmStop {
        /// The slot's number.
        slot: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// A log that is not of this crate could not be read or stopped.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// A capability of KVM could not be disabled.
    #[error("stopping KVM's dirty log")]
    KvmCapability(#[from] CapabilityError),
    /// A block could not be unregistered.
    #[error("stopping write tracking of RAM block {block}")]
    Stop {
        /// The name of the block.
        block: String,
        /// The cause.
        source: hikkoshi_userfault::RangeError,
    },
}
