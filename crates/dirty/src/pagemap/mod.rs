//! Tracking the shared memory of another process from outside, with asynchronous write protection
//! by a userfaultfd of that process and the `PAGEMAP_SCAN` ioctl.
//!
//! A write to a protected page costs the guest one fault. The kernel resolves it without help: it
//! removes the protection, which marks the page as written. To take a range, a scan finds the pages
//! without protection, reports them and protects them again, under the page-table lock.
//!
//! # Cost
//!
//! A protecting scan makes KVM drop its mappings of the whole range of the scan, dirty or not. A
//! scan that only reads does not. So [`PagemapLog`] first searches for written pages over long
//! ranges, and runs protecting scans only on the areas in which there are some. A clean guest is
//! not disturbed, and what a take adds to the search is in proportion to what is dirty.
//!
//! The search reads every entry of the page tables, 8 bytes for each page of the memory. Memory
//! that was never touched has these tables, too: the protection of a page that does not exist yet
//! is a mark in its entry, and the log needs that mark. Without it, the first write to one of 512
//! pages would make the kernel report all of them.
//!
//! On kernels that do not report all holes, a second scan looks for them. It looks at each page in
//! the kernel's slow way: about 10 ms a GiB, where a search of clean memory takes 0.5 ms (measured
//! under load, docs/versions.md).

mod error;
mod holes;
mod host_extent;
mod peek;
mod reports_holes;
mod scan;
mod take;
mod test_memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use error_reporter::Report;
use hikkoshi_linux::{HostAddr, HostRange, Pagemap, Process};
use hikkoshi_pages::{Extent, PAGE_BYTES, PageBitmap, PageRange, RamLayout};
use hikkoshi_userfault::{RangeError, RegisterMode, Userfault};

use self::host_extent::{after, first};
use self::scan::SCAN_BYTES;
use crate::log::{DirtyError, DirtyLog};
use crate::runs::RunCoalescer;
use crate::unsupported_kernel::hugetlb_support;

use self::reports_holes::reports_holes;
pub use error::{ProtectError, StartError};
pub use scan::Scan;
pub(crate) use test_memory::{TEST_BYTES, TestMemory};

/// Size of the range of one search. It limits how long the memory layout of the process stays
/// locked (for reading, but a writer that waits for the lock delays page faults).
const SEARCH_BYTES: u64 = 256 << 20;

/// The dirty log of the shared memory of another process, or of this one.
#[derive(Debug)]
pub struct PagemapLog {
    userfault: Arc<Userfault>,
    /// `None` if the memory belongs to this process.
    process: Option<Arc<Process>>,
    pagemap: Arc<Pagemap>,
    kernel: Arc<dyn Scan>,
    /// Whether the kernel reports the holes of memory with 4 KiB pages.
    reports_holes: bool,
    layout: RamLayout,
    /// The host address of each block in the process.
    hosts: Vec<HostAddr>,
    /// Pages that were cleared but the caller has not asked for yet: the kernel clears whole huge
    /// pages, and the caller may ask for a part. Exists only if a block hides its holes.
    pending: Option<PageBitmap>,
    stopped: AtomicBool,
}

impl PagemapLog {
    /// Starts tracking the memory of the process that `userfault` belongs to. Block number *n* of
    /// `layout` is contiguous at host address number *n*, though it may consist of several
    /// mappings. Every page is clean when this returns, so the caller must send the existing
    /// contents of the memory without asking the log.
    ///
    /// `userfault` must have been created with [`Features::FOR_DIRTY_LOG`], and must not be
    /// registered anywhere in these blocks. Check [`support`](crate::support()) first.
    ///
    /// [`Features::FOR_DIRTY_LOG`]: hikkoshi_userfault::Features::FOR_DIRTY_LOG
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start(
        userfault: Arc<Userfault>,
        layout: &RamLayout,
        hosts: &[HostAddr],
    ) -> Result<Self, StartError> {
        let log = Self::start_unprotected(userfault, layout, hosts)?;
        for extent in layout.locate_range(layout.all()) {
            log.protect_extent(extent)
                .map_err(|source| StartError::Block {
                    block: log.block_name(extent.block),
                    source,
                })?;
        }
        Ok(log)
    }

    /// Like [`start`](Self::start), but protects nothing: writes cost nothing, and are not
    /// recorded, until [`protect`](Self::protect) is called for their range. Until then the log
    /// says that every page is dirty, also one that was never used.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start_unprotected(
        userfault: Arc<Userfault>,
        layout: &RamLayout,
        hosts: &[HostAddr],
    ) -> Result<Self, StartError> {
        Self::start_with(userfault, layout, hosts, reports_holes(), |pagemap| pagemap)
    }

    /// Like [`start_unprotected`](Self::start_unprotected), with a kernel that reports holes or
    /// does not, and whose scan may be replaced.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    #[doc(hidden)]
    pub fn start_with(
        userfault: Arc<Userfault>,
        layout: &RamLayout,
        hosts: &[HostAddr],
        reports_holes: bool,
        kernel: impl FnOnce(Arc<Pagemap>) -> Arc<dyn Scan>,
    ) -> Result<Self, StartError> {
        let blocks = layout.blocks().len();
        let fits = |((block, _), host): (_, &HostAddr)| {
            let block: &hikkoshi_pages::RamBlock = block;
            host.checked_add(block.bytes).is_some()
        };
        if blocks != hosts.len() || !layout.blocks().zip(hosts).all(fits) {
            return Err(StartError::Addresses {
                blocks,
                given: hosts.len(),
            });
        }
        for (block, _) in layout.blocks() {
            hugetlb_support(block.host_page).map_err(|source| StartError::Unsupported {
                block: block.id.clone(),
                source,
            })?;
        }
        let process = userfault.process().cloned();
        let pid = process
            .as_ref()
            .map_or_else(std::process::id, |process| process.pid());
        let pagemap = Pagemap::open(process.as_deref())
            .map_err(|source| StartError::Pagemap { pid, source })?;
        let pagemap = Arc::new(pagemap);
        let huge = layout
            .blocks()
            .any(|(block, _)| block.host_page > PAGE_BYTES);
        // From here on, dropping the log unregisters what was registered.
        let log = Self {
            userfault,
            process,
            kernel: kernel(Arc::clone(&pagemap)),
            pagemap,
            reports_holes,
            layout: layout.clone(),
            hosts: hosts.to_vec(),
            pending: (huge || !reports_holes).then(|| PageBitmap::empty(layout.pages())),
            stopped: AtomicBool::new(false),
        };
        for (block, range) in log.host_blocks() {
            let failed = |source| StartError::Block {
                block: block.id.clone(),
                source,
            };
            log.userfault
                .register(range, RegisterMode::WRITE_PROTECT)
                .map_err(failed)?;
        }
        Ok(log)
    }

    /// Makes the pages of `range` clean, without reporting them, and records writes to them from
    /// now on. The range must consist of whole huge pages, if the block has them: they are
    /// protected as a whole.
    ///
    /// # Errors
    ///
    /// See [`ProtectError`]. Some pages of the range may be clean.
    pub fn protect(&self, range: PageRange) -> Result<(), ProtectError> {
        let whole = self.layout.round_out(range);
        for extent in self.layout.locate_range(whole) {
            self.protect_extent(extent).map_err(|source| ProtectError {
                block: self.block_name(extent.block),
                source,
            })?;
        }
        if let Some(pending) = &self.pending {
            while pending.claim_run(range, u64::MAX).is_some() {}
        }
        Ok(())
    }

    /// Not with a scan, which skips memory without page tables. In parts, because the guest's own
    /// faults wait for as long as one call takes.
    fn protect_extent(&self, extent: Extent) -> Result<(), RangeError> {
        let Some(mut rest) = self.host(extent) else {
            return Ok(());
        };
        while rest.len > 0 {
            let piece = first(rest, SCAN_BYTES.min(rest.len));
            self.userfault.write_protect(piece, true)?;
            rest = after(rest, piece.len);
        }
        Ok(())
    }

    fn block_name(&self, index: usize) -> String {
        let block = self.layout.block(index);
        block.map_or_else(String::new, |(block, _)| block.id.clone())
    }

    fn host_blocks(&self) -> impl Iterator<Item = (&hikkoshi_pages::RamBlock, HostRange)> {
        self.layout
            .blocks()
            .zip(&self.hosts)
            .map(|((block, _), host)| (block, HostRange::new(*host, block.bytes)))
    }

    /// Returns an error if the log was stopped.
    fn check_started(&self) -> Result<(), DirtyError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(DirtyError::Stopped);
        }
        Ok(())
    }

    /// Returns an error if what was read from the log may be wrong.
    fn check(&self) -> Result<(), DirtyError> {
        self.check_started()?;
        match &self.process {
            // It loses its memory some time before it ends.
            Some(process) if matches!(self.pagemap.has_memory(), Ok(false)) => {
                Err(DirtyError::ProcessGone { pid: process.pid() })
            }
            _ => Ok(()),
        }
    }

    /// Replaces an error by its actual cause: if the process has ended or the log was stopped, the
    /// memory looks untracked.
    fn explain(&self, result: Result<(), DirtyError>) -> Result<(), DirtyError> {
        // Also after success: the memory of a process that has ended reads as clean.
        self.check().and(result)
    }

    fn host(&self, extent: Extent) -> Option<HostRange> {
        let host = self.hosts.get(extent.block)?;
        let addr = host.checked_add(extent.offset)?;
        Some(HostRange::new(addr, extent.pages.bytes()))
    }

    /// Whether a scan for written pages may not report the holes of a block ([`holes`]).
    fn hides_holes(&self, extent: Extent) -> bool {
        let block = self.layout.block(extent.block);
        !self.reports_holes || block.is_some_and(|(block, _)| block.host_page > PAGE_BYTES)
    }

    /// Reports the dirty pages of each extent of `range`: by `written` where the kernel reports
    /// holes, by `with_holes` elsewhere.
    fn read(
        &self,
        range: PageRange,
        dirty: &mut dyn FnMut(PageRange),
        written: ReadExtent,
        with_holes: ReadExtent,
    ) -> Result<(), DirtyError> {
        self.check_started()?;
        let mut runs = RunCoalescer::new(dirty);
        let mut result = Ok(());
        for extent in self.layout.locate_range(range) {
            let read = if self.hides_holes(extent) {
                with_holes
            } else {
                written
            };
            result = read(self, extent, &mut runs);
            if result.is_err() {
                break;
            }
        }
        drop(runs);
        self.explain(result)
    }
}

/// Reads the log of one extent.
type ReadExtent = fn(&PagemapLog, Extent, &mut RunCoalescer<'_>) -> Result<(), DirtyError>;

impl DirtyLog for PagemapLog {
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.read(range, dirty, Self::take_written, Self::take_with_holes)
    }

    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.read(range, dirty, Self::peek_written, Self::peek_with_holes)
    }

    fn stop(&self) -> Result<(), DirtyError> {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut result = Ok(());
        for (block, range) in self.host_blocks() {
            if let Err(source) = self.userfault.unregister(range) {
                result = result.and(Err(DirtyError::Stop {
                    block: block.id.clone(),
                    source,
                }));
            }
        }
        result
    }
}

impl Drop for PagemapLog {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(error = %Report::new(&error), "cannot stop write tracking");
        }
    }
}
