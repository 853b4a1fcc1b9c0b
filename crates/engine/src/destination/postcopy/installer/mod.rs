//! Installs received pages in the guest's memory, and removes them from the missing set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use hikkoshi_linux::{HostAddr, StopEventFd};
use hikkoshi_memory::{Content, GuestRam};
use hikkoshi_pages::{Extent, PAGE_BYTES, Page, PageRange};
use hikkoshi_userfault::{RangeError, Userfault};

use crate::destination::error::DestinationFailure;
use crate::destination::install_error::InstallError;
use crate::destination::postcopy::missing_pages::MissingPages;
use crate::destination::postcopy::open_requests::OpenRequests;
use crate::destination::postcopy::page_copier::PageCopier;
use crate::report::{MissingAndRequested, MissingRanges, RequestLatencies};

/// What to do for a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultAction {
    /// Request what is missing of this host page.
    Request(PageRange),
    /// The source does not owe this host page, or it is present: [`PageCopier::fill`] it.
    Fill(PageRange),
    /// It has been requested, waits for admission, or has just arrived.
    Nothing,
}

/// How long a thread that has installed a page may take to remove it from the missing set, in ms.
/// It does nothing in between, but may not get a processor.
const INSTALLED_SOON_MS: u32 = 200;

/// Installs pages and decides about faults. Shared by the fault threads and the links' receivers.
#[derive(Debug)]
pub(crate) struct Installer {
    /// Which pages are to come.
    pub(crate) missing: MissingPages,
    /// What is requested of them.
    pub(crate) requests: OpenRequests,
    /// The way into the guest's memory.
    pub(crate) copier: PageCopier,
    /// How long its requests took.
    pub(crate) latencies: Arc<RequestLatencies>,
    /// Missing pages that another process had filled with the content that was to come.
    filled_before: AtomicU64,
    /// Set when no further page can become missing.
    missing_pages_known: OnceLock<()>,
    stop: StopEventFd,
}

impl Installer {
    /// Prepares everything while the guest still runs at the source; no page is missing yet.
    /// `hosts` is the address of each block in the process of `userfault`; the source sends over
    /// `links` background links. What is measured is added to `latencies`.
    pub(crate) fn new(
        userfault: Arc<Userfault>,
        ram: Arc<GuestRam>,
        hosts: &[u64],
        links: u16,
        latencies: Arc<RequestLatencies>,
    ) -> Result<Self, DestinationFailure> {
        let stop = StopEventFd::new().map_err(DestinationFailure::Thread)?;
        let layout = ram.layout();
        Ok(Self {
            missing: MissingPages::new(layout.pages()),
            requests: OpenRequests::new(layout, links)?,
            copier: PageCopier::new(userfault, ram, hosts, stop.clone()),
            latencies,
            filled_before: AtomicU64::new(0),
            missing_pages_known: OnceLock::new(),
            stop,
        })
    }

    /// No further page can become missing: the source has paused its guest, and has listed the last
    /// stale pages. Or the guest will never run here.
    pub(crate) fn set_missing_pages_known(&self) {
        let _ = self.missing_pages_known.set(());
    }

    /// Waits until all missing pages are known. Before that no page may be installed, because a
    /// stale one that is present would stay in its place. And no fault may be answered, because a
    /// page that is not missing is filled with zeros, and may become missing meanwhile.
    pub(crate) fn wait_until_missing_pages_are_known(&self) {
        self.missing_pages_known.wait();
    }

    /// Stops every thread that waits here or reads faults.
    pub(crate) fn stop(&self) -> &StopEventFd {
        &self.stop
    }

    /// Missing pages that were present before they arrived, with the right content. Only this type
    /// may fill them: there should be none.
    pub(crate) fn filled_before(&self) -> u64 {
        self.filled_before.load(Ordering::Relaxed)
    }

    /// What to do for an access to `addr`, whose fault was read at `fault_read` on our clock.
    pub(crate) fn decide(&self, addr: HostAddr, fault_read: u64) -> FaultAction {
        let Some(page) = self.copier.page_at(addr) else {
            // Not the guest's memory, and so not registered by us.
            tracing::warn!(%addr, "a fault outside the guest's memory");
            return FaultAction::Nothing;
        };
        let range = self.copier.layout().host_page_range(page);
        if !self.missing.any(range) {
            return FaultAction::Fill(range);
        }
        if self.requests.begin(range, fault_read, &self.missing) {
            FaultAction::Request(range)
        } else {
            FaultAction::Nothing
        }
    }

    /// Makes all waiting threads fault again, and requests everything again, over a new link.
    ///
    /// The fault threads must have been given the new link before: a request that was lost was
    /// recorded before it was lost, so that it is made again.
    pub(crate) fn request_again(&self) -> Result<(), RangeError> {
        self.requests.restart(&self.missing);
        self.copier.wake_all()
    }

    /// Installs the content of `range`, which was read at `received` on our clock; `true` when no
    /// page is missing any more.
    pub(crate) fn install(
        &self,
        range: PageRange,
        content: &[u8],
        received: u64,
    ) -> Result<bool, InstallError> {
        let mut rest = content;
        let mut last = false;
        for extent in self.copier.layout().locate_range(range) {
            let bytes = usize::try_from(extent.pages.bytes()).unwrap_or(usize::MAX);
            let (piece, tail) = rest.split_at(bytes.min(rest.len()));
            rest = tail;
            last |= self.install_extent(&extent, piece, received)?;
        }
        Ok(last)
    }

    /// Installs zeros, as [`install`](Self::install) installs pages.
    pub(crate) fn install_zeros(
        &self,
        range: PageRange,
        received: u64,
    ) -> Result<bool, InstallError> {
        let mut last = false;
        for part in range.chunks(self.copier.most_zeros()) {
            last |= self.install(part, self.copier.zeros(part), received)?;
        }
        Ok(last)
    }

    fn install_extent(
        &self,
        extent: &Extent,
        content: &[u8],
        received: u64,
    ) -> Result<bool, InstallError> {
        let mut last = false;
        let mut content = content;
        // An extent may reach over several huge pages.
        let mut rest = extent.pages;
        while !rest.is_empty() {
            let whole = self.copier.layout().host_page_range(rest.start());
            let Some(huge) = self.requests.huge().size_of(whole) else {
                return self.install_small(extent, content, received);
            };
            let (piece, tail) = rest.split_at(whole.end());
            let bytes = usize::try_from(piece.bytes()).unwrap_or(usize::MAX);
            let (part, more) = content.split_at(bytes.min(content.len()));
            // If it is not missing, this piece was sent twice.
            if self.missing.any(whole)
                && let Some(complete) = huge
                    .staging
                    .add(whole, piece, part, || self.missing.any(whole))?
            {
                if let Some(buffer) = complete.buffer() {
                    let mut filled = None;
                    self.copier.copy_huge(whole.start(), buffer, &mut |_| {
                        self.may_stay(whole, buffer.words(), &mut filled)
                    })?;
                    check_filled(filled)?;
                }
                last |= self.installed(whole, whole.len(), received);
                // A gigabyte takes long to clear: free the slot before the next page is admitted.
                drop(complete);
                huge.admission.end(whole.start());
            }
            content = more;
            rest = tail;
        }
        Ok(last)
    }

    /// Installs pages of 4 KiB.
    fn install_small(
        &self,
        extent: &Extent,
        content: &[u8],
        received: u64,
    ) -> Result<bool, InstallError> {
        let first = extent.pages.start();
        let start = self.copier.address(first).unwrap_or(HostAddr(0));
        let mut filled = None;
        let (done, copied) = self.copier.copy(extent, content, &mut |at| {
            let offset = at.addr.0.saturating_sub(start.0);
            let page = first.saturating_add(offset / PAGE_BYTES);
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let sent = content.get(from..).unwrap_or_default();
            self.may_stay(PageRange::one(page), sent, &mut filled)
        });
        // A page with foreign content stays in the set: the migration must not look complete.
        check_filled(filled)?;
        // Also what was installed before a failure: it must not be installed again over what the
        // guest has written since.
        let pages = PageRange::from_len(first, done / PAGE_BYTES);
        let last = self.installed(pages, 1, received);
        copied?;
        Ok(last)
    }

    /// Whether a host page that was present before it was installed may stay: it was received
    /// before and sent twice, or already holds what the source `sent`. If not, `filled` is set.
    #[cold]
    fn may_stay(
        &self,
        pages: PageRange,
        sent: &(impl Content + ?Sized),
        filled: &mut Option<PageRange>,
    ) -> bool {
        if !self.missing.any(pages) {
            return true;
        }
        if !sent.is_in(self.copier.ram(), pages) && !self.is_installed_soon(pages) {
            filled.get_or_insert(pages);
            return false;
        }
        if self.filled_before.fetch_add(pages.len(), Ordering::Relaxed) == 0 {
            tracing::warn!(
                ?pages,
                "pages that the source was to send were present already, with the same content: \
                 another process reads or writes the guest's memory here"
            );
        }
        true
    }

    /// Whether another thread has just installed `pages`, which were sent twice, and removes them
    /// from the missing set now. QEMU may have written to them in between.
    fn is_installed_soon(&self, pages: PageRange) -> bool {
        for _ in 0..INSTALLED_SOON_MS {
            if !self.missing.any(pages) {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Removes installed pages from the missing set; `true` when no page is missing any more.
    fn installed(&self, range: PageRange, step: u64, received: u64) -> bool {
        let now = self.requests.now();
        let new = self.missing.clear(range);
        if new == 0 {
            return false;
        }
        self.requests
            .answered(range, step, received, now, |moments| {
                self.latencies.record(moments)
            });
        self.missing.subtract(new)
    }
}

impl MissingRanges for Installer {
    fn each_missing(&self, each: &mut dyn FnMut(PageRange)) {
        self.missing.ranges().for_each(each);
    }
}

impl MissingAndRequested for Installer {
    fn missing_pages(&self) -> u64 {
        self.missing.count()
    }

    fn each_waiting(&self, each: &mut dyn FnMut(Page)) {
        self.requests.each_outstanding(each);
    }
}

fn check_filled(filled: Option<PageRange>) -> Result<(), InstallError> {
    filled.map_or(Ok(()), |range| Err(InstallError::Filled { range }))
}

#[cfg(test)]
#[cfg(not(loom))]
pub(crate) mod tests;
