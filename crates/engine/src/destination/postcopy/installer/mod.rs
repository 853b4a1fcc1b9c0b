//! Post-copied pages on their last step: into the guest's memory, through
//! `UFFDIO_COPY` and no other way, so that a page that is present has been
//! received.
//!
//! Nothing here allocates once the guest runs, and no lock is held over a
//! system call.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hikkoshi_linux::{HostAddr, HostRange, Stop};
use hikkoshi_pages::{Extent, PAGE_BYTES, PAGE_SIZE, Page, PageBitmap, PageRange, RamLayout};
use hikkoshi_userfault::{CopyError, RangeError, RegisterMode, Userfault};
use thiserror::Error;

use crate::destination::error::DestinationFailure;
use crate::destination::postcopy::huge::admission::{Admission, AdmissionEvent};
use crate::destination::postcopy::huge::slots::TooManyPartial;
use crate::destination::postcopy::huge::staging::{Size, Staging};
use crate::destination::postcopy::memory_pressure::MemoryPressure;
use crate::destination::postcopy::request_times::{RequestTime, RequestTimes};
use crate::report::{Moments, RequestLatencies};
use hikkoshi_memory::Content;
use hikkoshi_memory::PresenceError;
use hikkoshi_memory::RamFiles;

/// Why a page could not be installed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The kernel did not take it.
    #[error("{0}")]
    Copy(#[from] CopyError),
    /// The source sends huge pages in a way that no source does.
    #[error("{0}")]
    Staging(#[from] TooManyPartial),
    /// Something else has put other content there.
    #[error(
        "{range} of the guest's memory, which the source was to send, holds something else already: \
         another process than this QEMU has the RAM file mapped or open (a vhost-user backend, say, \
         or a tool that reads it). With that content the guest would be corrupted"
    )]
    Filled {
        /// Which pages.
        range: PageRange,
    },
}

/// What came of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultAction {
    /// What is missing of this host page must be asked for.
    Ask(PageRange),
    /// Nobody owes this host page, or it is there: [`Installer::fill`] it.
    Fill(PageRange),
    /// It has been asked for, or waits for its turn, or has just come.
    Nothing,
}

/// One thread's record of the requests that it has answered. Nobody else looks
/// at it before the end.
pub(crate) type Recorder = Mutex<RequestLatencies>;

/// Installs pages and knows which are missing. Shared by the fault threads and
/// the links' receivers.
#[derive(Debug)]
pub(crate) struct Installer {
    userfault: Arc<Userfault>,
    ram: Arc<RamFiles>,
    layout: RamLayout,
    /// Where each block begins in the process that has the userfaultfd.
    hosts: Vec<HostAddr>,
    /// Owed by the source and not installed yet. A page leaves the set after
    /// it was installed: what is not in the set can be filled with zeros
    /// without overtaking the source's content.
    missing: PageBitmap,
    left: AtomicU64,
    /// Owed pages that somebody else had filled, and that lack nothing.
    filled_before: AtomicU64,
    /// Host pages that have been asked for (or wait to be), by their first
    /// page: each is asked for once.
    asked: PageBitmap,
    outstanding: RequestTimes,
    begun: Instant,
    /// For each size of huge pages.
    huge: Vec<Huge>,
    news: Arc<AdmissionEvent>,
    room: MemoryPressure,
    stop: Stop,
    zeros: Vec<u8>,
}

/// Huge pages of one size.
#[derive(Debug)]
struct Huge {
    host_page: u64,
    staging: Staging,
    turns: Admission,
}

impl Installer {
    /// Everything that can be made ready while the guest still runs at the
    /// source; nothing is owed yet. `hosts` says where each block begins in
    /// the process of `userfault`.
    pub(crate) fn new(
        userfault: Arc<Userfault>,
        ram: Arc<RamFiles>,
        hosts: &[u64],
        links: u16,
    ) -> Result<Self, DestinationFailure> {
        let layout = ram.layout().clone();
        let largest = layout.blocks().map(|(block, _)| block.host_page).max();
        let largest = usize::try_from(largest.unwrap_or(PAGE_BYTES)).unwrap_or(PAGE_SIZE);
        let news = Arc::new(AdmissionEvent::new().map_err(DestinationFailure::Thread)?);
        let stop = Stop::new().map_err(DestinationFailure::Thread)?;
        let huge = Size::all(&layout, links)
            .into_iter()
            .map(|size| {
                let staging = Staging::new(size).map_err(|cause| DestinationFailure::Staging {
                    bytes: size.bytes(),
                    cause: cause.into(),
                })?;
                let most = usize::try_from(size.asked).unwrap_or(1);
                Ok(Huge {
                    host_page: size.host_page,
                    staging,
                    turns: Admission::new(most, Arc::clone(&news)),
                })
            })
            .collect::<Result<_, DestinationFailure>>()?;
        Ok(Self {
            missing: PageBitmap::empty(layout.pages()),
            left: AtomicU64::new(0),
            filled_before: AtomicU64::new(0),
            hosts: hosts.iter().copied().map(HostAddr).collect(),
            asked: PageBitmap::empty(layout.pages()),
            outstanding: RequestTimes::new(),
            begun: Instant::now(),
            huge,
            news,
            room: MemoryPressure::new(stop.clone()),
            stop,
            zeros: vec![0; largest.max(256 * PAGE_SIZE)],
            userfault,
            ram,
            layout,
        })
    }

    /// The source will send `range` after the switch. Only before
    /// [`start`](Self::start).
    pub(crate) fn owe(&self, range: PageRange) {
        let new = self.missing.set_range(range);
        self.left.fetch_add(new, Ordering::AcqRel);
    }

    /// Registers all of the guest's memory: from here on an access to a page
    /// that is not there faults.
    pub(crate) fn start(&self) -> Result<(), RangeError> {
        self.host_ranges().try_for_each(|range| {
            self.userfault
                .register(range, RegisterMode::MISSING)
                .map(drop)
        })
    }

    /// The host page that `page` is in.
    pub(crate) fn host_page(&self, page: Page) -> PageRange {
        self.layout.host_page_range(page)
    }

    /// Whether anything of `range` is there: pages of 4 KiB, or one huge page,
    /// all of it registered.
    pub(crate) fn holds(&self, range: PageRange) -> Result<bool, PresenceError> {
        if self.host_page(range.start()).len() == 1 {
            return Ok(self.ram.has_data(range)?);
        }
        let Some(at) = self.address(range.start()) else {
            return Ok(false);
        };
        let range = HostRange::new(at, range.bytes());
        Ok(self.userfault.holds_huge_page(range)?)
    }

    /// Ends whatever waits here or reads faults.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// From here on the source cannot take its guest back just because there is
    /// no memory for a page: it is waited for.
    pub(crate) fn be_patient(&self) {
        self.room.be_patient();
    }

    pub(crate) fn is_patient(&self) -> bool {
        self.room.is_patient()
    }

    /// Nobody who brings pages waits for memory while this is on.
    pub(crate) fn interrupt(&self, on: bool) {
        self.room.interrupt(on);
    }

    /// What is missing, in order. Whole host pages, while nobody brings any.
    pub(crate) fn missing(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.missing.runs(self.missing.all())
    }

    /// Of what is missing, the source owes only what is in `owed`: the rest
    /// holds zeros. Whoever waits for some of that goes on after
    /// [`start_over`](Self::start_over). Nobody may bring pages meanwhile.
    ///
    /// # Errors
    /// The first page that is not missing here, if there is one in `owed`;
    /// nothing was changed then.
    pub(crate) fn take_owed(&self, owed: &PageBitmap) -> Result<(), Page> {
        for run in owed.runs(owed.all()) {
            if self.missing.count_range(run) < run.len() {
                return Err(run.start());
            }
        }
        for run in self.missing.runs(self.missing.all()).collect::<Vec<_>>() {
            let mut rest = run;
            while !rest.is_empty() {
                let next = owed.runs(rest).next();
                let end = next.map_or(rest.end(), |next| next.start());
                let zeros = PageRange::new(rest.start(), end);
                let gone = self.missing.clear_range(zeros);
                self.left.fetch_sub(gone, Ordering::AcqRel);
                rest = PageRange::new(next.map_or(rest.end(), |next| next.end()), rest.end());
            }
        }
        Ok(())
    }

    /// Forgets pieces of huge pages: they come again. Nobody may bring pages
    /// meanwhile.
    pub(crate) fn drop_pieces(&self) {
        for huge in &self.huge {
            huge.staging.drop_all();
        }
    }

    /// There is a new way to ask for pages: everybody who waits for one faults
    /// anew, and what was asked for before is asked for again.
    ///
    /// Whoever asks must have been given the new way before: a request that was
    /// lost was noted before it was lost, and that note is dropped here.
    pub(crate) fn start_over(&self) -> Result<(), RangeError> {
        self.asked.clear_range(self.asked.all());
        for huge in &self.huge {
            huge.turns.start_over();
        }
        self.outstanding.forget();
        self.host_ranges()
            .try_for_each(|range| self.userfault.wake(range))
    }

    /// Where faults are read from.
    pub(crate) fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    /// Pages that have not arrived.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// Owed pages that were there before they came, and lack nothing. Only what is installed here may fill them: there should be none.
    pub(crate) fn filled_before(&self) -> u64 {
        self.filled_before.load(Ordering::Relaxed)
    }

    /// Requests that are in no latency.
    pub(crate) fn unmeasured(&self) -> u64 {
        self.outstanding.unmeasured()
    }

    /// Nanoseconds on the clock that requests are measured by.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Lets go of the guest's memory. What is missing reads as zeros from now
    /// on: only when nothing is missing, or the guest will never run here.
    ///
    /// Goes on after a block that fails: whoever waits in another one shall not
    /// wait for ever. The first failure is told.
    pub(crate) fn unregister(&self) -> Result<(), RangeError> {
        let mut first = Ok(());
        for range in self.host_ranges() {
            first = first.and(self.userfault.unregister(range));
        }
        first
    }

    fn host_ranges(&self) -> impl Iterator<Item = HostRange> + '_ {
        self.layout
            .blocks()
            .zip(&self.hosts)
            .map(|((block, _), &addr)| HostRange::new(addr, block.bytes))
    }

    /// The page at `addr` in the guest's process.
    fn page_at(&self, addr: HostAddr) -> Option<Page> {
        self.host_ranges().enumerate().find_map(|(block, range)| {
            let offset = addr.0.checked_sub(range.addr.0)?;
            self.layout.page_at(block, offset)
        })
    }

    /// The guest has touched `addr` and waits; that was read at `read` on our
    /// clock.
    pub(crate) fn faulted(&self, addr: HostAddr, read: u64) -> FaultAction {
        let Some(page) = self.page_at(addr) else {
            // Not the guest's memory, and so not registered by us.
            tracing::warn!(%addr, "a fault outside the guest's memory");
            return FaultAction::Nothing;
        };
        let range = self.layout.host_page_range(page);
        if !self.is_missing(range) {
            return FaultAction::Fill(range);
        }
        if !self.asked.set(range.start()) {
            return FaultAction::Nothing;
        }
        let Some(huge) = self.huge(range) else {
            return FaultAction::Ask(range);
        };
        let now = huge.turns.begin(range.start(), read);
        if !self.is_missing(range) {
            // It came in between, and whoever installed it may have looked for
            // its turn before it had one.
            huge.turns.end(range.start());
            return FaultAction::Nothing;
        }
        if now {
            FaultAction::Ask(range)
        } else {
            FaultAction::Nothing
        }
    }

    /// Fills a host page that nobody owes: it holds zeros. One that is there is
    /// left alone, and whoever waits for it is woken.
    pub(crate) fn fill(&self, range: PageRange) -> Result<(), CopyError> {
        for extent in self.layout.locate_range(range) {
            let bytes = usize::try_from(extent.pages.bytes()).unwrap_or(0);
            let zeros = self.zeros.get(..bytes).unwrap_or_default();
            self.copy(&extent, zeros, &mut |_| true).1?;
        }
        Ok(())
    }

    /// A huge page whose turn to be asked for has come, and when its fault was
    /// read.
    pub(crate) fn next_turn(&self) -> Option<(PageRange, u64)> {
        self.huge.iter().find_map(|huge| {
            while let Some((page, read)) = huge.turns.next() {
                let range = self.layout.host_page_range(page);
                if self.is_missing(range) {
                    return Some((range, read));
                }
                huge.turns.end(page);
            }
            None
        })
    }

    /// Readable when the turn of a huge page may have come.
    pub(crate) fn news(&self) -> &AdmissionEvent {
        &self.news
    }

    /// What to ask for, of a host page that is missing.
    pub(crate) fn requests(&self, range: PageRange, mut each: impl FnMut(PageRange)) {
        match self.huge(range) {
            Some(huge) => huge.staging.gaps(range, each),
            None => each(range),
        }
    }

    /// Notes when a host page was asked for. Right before the request leaves.
    pub(crate) fn asking(&self, range: PageRange, fault_read: u64, request_sent: u64) {
        let made = RequestTime {
            fault_read,
            request_sent,
        };
        self.outstanding.note(range.start(), made, &self.missing);
    }

    fn huge(&self, range: PageRange) -> Option<&Huge> {
        let bytes = range.bytes();
        self.huge.iter().find(|huge| huge.host_page == bytes)
    }

    /// Whether anything of a host page is missing. Pages of a huge page arrive
    /// at once, but leave the set a word at a time, from the first on.
    fn is_missing(&self, range: PageRange) -> bool {
        self.missing.any(range)
    }

    /// Installs the content of `range`, which was read at `received` on our
    /// clock; `true` when it was the last.
    pub(crate) fn install(
        &self,
        range: PageRange,
        content: &[u8],
        received: u64,
        recorder: &Recorder,
    ) -> Result<bool, InstallError> {
        let mut rest = content;
        let mut last = false;
        for extent in self.layout.locate_range(range) {
            let bytes = usize::try_from(extent.pages.bytes()).unwrap_or(usize::MAX);
            let (piece, tail) = rest.split_at(bytes.min(rest.len()));
            rest = tail;
            last |= self.install_extent(&extent, piece, received, recorder)?;
        }
        Ok(last)
    }

    /// As [`install`](Self::install), with zeros.
    pub(crate) fn install_zeros(
        &self,
        range: PageRange,
        received: u64,
        recorder: &Recorder,
    ) -> Result<bool, InstallError> {
        let most = (self.zeros.len() / PAGE_SIZE) as u64;
        let mut last = false;
        for part in range.chunks(most) {
            let bytes = usize::try_from(part.bytes()).unwrap_or(0);
            let zeros = self.zeros.get(..bytes).unwrap_or_default();
            last |= self.install(part, zeros, received, recorder)?;
        }
        Ok(last)
    }

    fn install_extent(
        &self,
        extent: &Extent,
        content: &[u8],
        received: u64,
        recorder: &Recorder,
    ) -> Result<bool, InstallError> {
        let mut last = false;
        let mut content = content;
        // An extent may reach over several huge pages.
        let mut rest = extent.pages;
        while !rest.is_empty() {
            let whole = self.layout.host_page_range(rest.start());
            let Some(huge) = self.huge(whole) else {
                return self.install_small(extent, content, received, recorder);
            };
            let (piece, tail) = rest.split_at(whole.end());
            let bytes = usize::try_from(piece.bytes()).unwrap_or(usize::MAX);
            let (part, more) = content.split_at(bytes.min(content.len()));
            // One that is there: this piece came twice.
            if self.is_missing(whole)
                && let Some(complete) = huge
                    .staging
                    .add(whole, piece, part, || self.is_missing(whole))?
            {
                if let (Some(at), Some(buffer)) = (self.address(whole.start()), complete.buffer()) {
                    let mut filled = None;
                    let mut present = |_| self.may_stay(whole, buffer.words(), &mut filled);
                    self.with_room(|| {
                        let copied = self.userfault.copy_buffer_unless(at, buffer, &mut present);
                        copied.map(drop)
                    })?;
                    refuse(filled)?;
                }
                last |= self.received(whole, whole.len(), received, recorder);
                // A gigabyte takes long to clear: whoever is next shall find
                // the slot free.
                drop(complete);
                huge.turns.end(whole.start());
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
        recorder: &Recorder,
    ) -> Result<bool, InstallError> {
        let start = self.address(extent.pages.start()).unwrap_or(HostAddr(0));
        let mut filled = None;
        let (there, copied) = self.copy(extent, content, &mut |at| {
            let offset = at.addr.0.saturating_sub(start.0);
            let page = extent.pages.start().saturating_add(offset / PAGE_BYTES);
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let sent = content.get(from..).unwrap_or_default();
            self.may_stay(PageRange::one(page), sent, &mut filled)
        });
        // What was not to be there stays in the set: nobody shall believe that
        // all is here.
        refuse(filled)?;
        // Also what went in before a failure: it must not come again, and be
        // found there with what the guest has written since.
        let pages = PageRange::from_len(extent.pages.start(), there / PAGE_BYTES);
        let last = self.received(pages, 1, received, recorder);
        copied?;
        Ok(last)
    }

    /// Copies whole host pages. How many bytes are there now, counted from the
    /// first, and what kept the rest away. `present` is asked as by
    /// [`Userfault::copy_unless`].
    fn copy(
        &self,
        extent: &Extent,
        content: &[u8],
        present: &mut dyn FnMut(HostRange) -> bool,
    ) -> (u64, Result<(), CopyError>) {
        let Some(start) = self.address(extent.pages.start()) else {
            return (0, Ok(()));
        };
        let host_page = self.layout.host_page_range(extent.pages.start()).bytes();
        let mut there = 0;
        let copied = self.with_room(|| {
            let at = HostAddr(start.0 + there);
            let skip = usize::try_from(there).unwrap_or(usize::MAX);
            let rest = content.get(skip..).unwrap_or_default();
            let copied = self.userfault.copy_unless(at, rest, host_page, present);
            there += match &copied {
                Ok(copied) => copied.installed + copied.present,
                Err(error) => error.done(),
            };
            copied.map(drop)
        });
        (there, copied)
    }

    /// Waits while the host has no memory for it.
    fn with_room(
        &self,
        mut install: impl FnMut() -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        loop {
            match install() {
                Err(CopyError::OutOfMemory { .. }) if self.room.wait() => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.room.found();
                    return Ok(());
                }
            }
        }
    }

    /// Whether a host page that is there before it was installed may stay: it
    /// was received before and came twice, or lacks nothing of what the source
    /// `sent`. If not, it is noted in `filled`.
    #[cold]
    fn may_stay(
        &self,
        pages: PageRange,
        sent: &(impl Content + ?Sized),
        filled: &mut Option<PageRange>,
    ) -> bool {
        if !self.is_missing(pages) {
            return true;
        }
        if !sent.is_in(&self.ram, pages) {
            filled.get_or_insert(pages);
            return false;
        }
        if self.filled_before.fetch_add(pages.len(), Ordering::Relaxed) == 0 {
            tracing::warn!(
                ?pages,
                "pages that the source was to send were there already, and lack nothing: something \
                 else reads or writes the guest's memory here"
            );
        }
        true
    }

    /// Where a page is in the guest's process.
    fn address(&self, page: Page) -> Option<HostAddr> {
        let (block, offset) = self.layout.locate(page)?;
        Some(HostAddr(self.hosts.get(block)?.0 + offset))
    }

    /// Books installed pages; `true` when nothing is missing any more.
    fn received(&self, pages: PageRange, step: u64, received: u64, recorder: &Recorder) -> bool {
        let installed = self.now();
        let new = self.missing.clear_range(pages);
        if new == 0 {
            return false;
        }
        for host_page in pages.chunks(step) {
            if !self.asked.get(host_page.start()) {
                continue;
            }
            let Some(made) = self.outstanding.answered(host_page.start()) else {
                continue;
            };
            if let Ok(mut latencies) = recorder.lock() {
                latencies.record(&Moments {
                    fault_read: made.fault_read,
                    request_sent: made.request_sent,
                    page_received: received,
                    installed,
                });
            }
        }
        // Exactly one thread takes it to zero, and by then every thread has
        // recorded its latencies.
        self.left.fetch_sub(new, Ordering::AcqRel) == new
    }
}

fn refuse(filled: Option<PageRange>) -> Result<(), InstallError> {
    filled.map_or(Ok(()), |range| Err(InstallError::Filled { range }))
}

#[cfg(test)]
#[cfg(not(loom))]
pub(crate) mod tests;
