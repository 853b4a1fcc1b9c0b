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

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use error_reporter::Report;
use hikkoshi_linux::{HostAddr, HostRange, Pagemap, Process};
use hikkoshi_pages::{Extent, PAGE_BYTES, PageBitmap, PageRange, RamLayout};
use hikkoshi_userfault::{RangeError, RegisterMode, Userfault};
use thiserror::Error;

use crate::log::{DirtyError, DirtyLog};
use crate::pagemap_scan::{Clear, SCAN_BYTES, first_written, scan, written_areas};
use crate::runs::RunCoalescer;
use crate::unsupported_kernel::{UnsupportedKernel, hugetlb_support};

/// Size of the range of one search. It limits how long the memory layout of the process stays
/// locked (for reading, but a writer that waits for the lock delays page faults).
const SEARCH_BYTES: u64 = 256 << 20;

/// The dirty log of the shared memory of another process, or of this one.
#[derive(Debug)]
pub struct PagemapLog {
    userfault: Arc<Userfault>,
    /// `None` if the memory belongs to this process.
    process: Option<Arc<Process>>,
    pagemap: Pagemap,
    layout: RamLayout,
    /// The host address of each block in the process.
    hosts: Vec<HostAddr>,
    /// Pages that the kernel has reported but the caller has not asked for yet: the kernel clears
    /// whole huge pages, and the caller may ask for a part. Exists only if a block has huge pages.
    pending: Option<PageBitmap>,
    stopped: AtomicBool,
}

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
    block: String,
    /// The cause.
    source: RangeError,
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
    /// says that every page is dirty which is in memory.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub fn start_unprotected(
        userfault: Arc<Userfault>,
        layout: &RamLayout,
        hosts: &[HostAddr],
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
        let huge = layout
            .blocks()
            .any(|(block, _)| block.host_page > PAGE_BYTES);
        // From here on, dropping the log unregisters what was registered.
        let log = Self {
            userfault,
            process,
            pagemap,
            layout: layout.clone(),
            hosts: hosts.to_vec(),
            pending: huge.then(|| PageBitmap::empty(layout.pages())),
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

    /// Whether a block consists of huge pages.
    fn is_huge(&self, extent: Extent) -> bool {
        self.layout
            .block(extent.block)
            .is_some_and(|(block, _)| block.host_page > PAGE_BYTES)
    }

    /// Protects and reports the dirty pages of memory with 4 KiB pages. On an error, reports the
    /// rest of the range of the failed scan, because some of it may have been cleared.
    fn take_base_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(range) = self.host(extent) else {
            return Ok(());
        };
        let host_extent = HostExtent { extent, range };
        let mut areas = Vec::new();
        let mut rest = range;
        while rest.len > 0 {
            let window = first(rest, SEARCH_BYTES.min(rest.len));
            let reached = written_areas(&self.pagemap, window, &mut areas)?;
            for area in &areas {
                self.take_area(*area, host_extent, dirty)?;
            }
            rest = after(rest, reached.0.saturating_sub(rest.addr.0));
        }
        Ok(())
    }

    /// Protects and reports the dirty pages of an area. On an error, reports the rest of the area.
    fn take_area(
        &self,
        area: HostRange,
        host_extent: HostExtent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let mut reported = area.addr.0;
        let result = scan(&self.pagemap, area, Clear::Yes, |written| {
            reported = written.addr.0 + written.len;
            dirty.push(host_extent.pages(written));
        });
        if result.is_err() {
            let unknown = after(area, reported - area.addr.0);
            dirty.push(host_extent.pages(unknown));
        }
        result
    }

    /// Protects and reports the dirty pages of memory with huge pages. The kernel clears whole huge
    /// pages, so everything it clears is added to `pending`, and the requested part is removed from
    /// there.
    fn take_huge_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let aligned = self.layout.round_out(extent.pages);
        for whole in self.layout.locate_range(aligned) {
            let Some(range) = self.host(whole) else {
                continue;
            };
            let host_extent = HostExtent {
                extent: whole,
                range,
            };
            let mut rest = range;
            while rest.len > 0 {
                // The size is a multiple of every huge page size that can be tracked, and blocks
                // are aligned to huge pages.
                let piece = first(rest, (SCAN_BYTES - rest.addr.0 % SCAN_BYTES).min(rest.len));
                let result = match first_written(&self.pagemap, piece) {
                    Ok(None) => Ok(()),
                    Ok(Some(_)) => scan(&self.pagemap, piece, Clear::Yes, |written| {
                        pending.set_range(host_extent.pages(written));
                    }),
                    Err(error) => Err(error),
                };
                if result.is_err() {
                    pending.set_range(host_extent.pages(piece));
                }
                let mut wanted = host_extent.pages(piece).intersect(extent.pages);
                while let Some(run) = pending.claim_run(wanted, u64::MAX) {
                    dirty.push(run);
                    wanted = PageRange::new(run.end(), wanted.end());
                }
                result?;
                rest = after(rest, piece.len);
            }
        }
        Ok(())
    }

    /// Reports the dirty pages of memory with 4 KiB pages.
    fn peek_base_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        self.peek_kernel(extent, |written| dirty.push(written))
    }

    /// Reports the dirty pages of memory with huge pages: what the kernel reports now, and what it
    /// has reported before and no take has asked for.
    fn peek_huge_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let all = PageBitmap::empty(self.layout.pages());
        for run in pending.runs(extent.pages) {
            all.set_range(run);
        }
        let aligned = self.layout.round_out(extent.pages);
        for whole in self.layout.locate_range(aligned) {
            self.peek_kernel(whole, |written| {
                all.set_range(written);
            })?;
        }
        for run in all.runs(extent.pages) {
            dirty.push(run);
        }
        Ok(())
    }

    /// Reports what the kernel says was written, and changes nothing.
    fn peek_kernel(
        &self,
        extent: Extent,
        mut written: impl FnMut(PageRange),
    ) -> Result<(), DirtyError> {
        let Some(range) = self.host(extent) else {
            return Ok(());
        };
        let host_extent = HostExtent { extent, range };
        let mut rest = range;
        while rest.len > 0 {
            let window = first(rest, SEARCH_BYTES.min(rest.len));
            scan(&self.pagemap, window, Clear::No, |run| {
                written(host_extent.pages(run));
            })?;
            rest = after(rest, window.len);
        }
        Ok(())
    }

    /// Reports the dirty pages of each extent of `range`, by `base` in memory with 4 KiB pages and
    /// by `huge` in memory with huge pages.
    fn read(
        &self,
        range: PageRange,
        dirty: &mut dyn FnMut(PageRange),
        base: ReadExtent,
        huge: ReadExtent,
    ) -> Result<(), DirtyError> {
        self.check_started()?;
        let mut runs = RunCoalescer::new(dirty);
        let mut result = Ok(());
        for extent in self.layout.locate_range(range) {
            let read = if self.is_huge(extent) { huge } else { base };
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
        self.read(range, dirty, Self::take_base_pages, Self::take_huge_pages)
    }

    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.read(range, dirty, Self::peek_base_pages, Self::peek_huge_pages)
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

/// An extent of pages, and its host address range in the process.
#[derive(Clone, Copy, Debug)]
struct HostExtent {
    extent: Extent,
    range: HostRange,
}

impl HostExtent {
    /// Returns the pages of `part`, which is inside the range, rounded up to whole pages.
    fn pages(&self, part: HostRange) -> PageRange {
        let start = part.addr.0.saturating_sub(self.range.addr.0);
        let end = start.saturating_add(part.len).div_ceil(PAGE_BYTES);
        let page = |number| self.extent.pages.start().saturating_add(number);
        PageRange::new(page(start / PAGE_BYTES), page(end)).intersect(self.extent.pages)
    }
}

/// Returns the first `len` bytes of a range.
fn first(range: HostRange, len: u64) -> HostRange {
    HostRange::new(range.addr, len)
}

/// Returns the range without its first `len` bytes.
fn after(range: HostRange, len: u64) -> HostRange {
    let len = len.min(range.len);
    HostRange::new(HostAddr(range.addr.0 + len), range.len - len)
}
