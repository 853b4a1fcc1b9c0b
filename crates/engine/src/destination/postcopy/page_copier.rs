//! Pages into the guest's memory, through `UFFDIO_COPY` and no other way, so that a page that is
//! present has been received.
//!
//! Nothing here allocates once the guest runs, and no lock is held over a system call.

use std::sync::Arc;

use hikkoshi_linux::{HostAddr, HostRange, StopEventFd};
use hikkoshi_memory::{GuestRam, PresenceError};
use hikkoshi_pages::{Extent, PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamLayout};
use hikkoshi_userfault::{CopyError, PageBuffer, RangeError, RegisterMode, Userfault};

use crate::destination::postcopy::memory_pressure::MemoryPressure;

/// The guest's memory in its process, and the userfaultfd that fills it.
#[derive(Debug)]
pub(crate) struct PageCopier {
    userfault: Arc<Userfault>,
    ram: Arc<GuestRam>,
    /// The address of each block in the process that has the userfaultfd.
    hosts: Vec<HostAddr>,
    memory_pressure: MemoryPressure,
    zeros: Vec<u8>,
}

impl PageCopier {
    /// `hosts` is the address of each block in the process of `userfault`. Waits for memory end
    /// with `stop`.
    pub(crate) fn new(
        userfault: Arc<Userfault>,
        ram: Arc<GuestRam>,
        hosts: &[u64],
        stop: StopEventFd,
    ) -> Self {
        let blocks = ram.layout().blocks();
        let largest = blocks.map(|(block, _)| block.host_page).max();
        let largest = usize::try_from(largest.unwrap_or(PAGE_BYTES)).unwrap_or(PAGE_SIZE);
        Self {
            hosts: hosts.iter().copied().map(HostAddr).collect(),
            memory_pressure: MemoryPressure::new(stop),
            zeros: vec![0; largest.max(256 * PAGE_SIZE)],
            userfault,
            ram,
        }
    }

    /// The guest's memory.
    pub(crate) fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Which page is where.
    pub(crate) fn layout(&self) -> &RamLayout {
        self.ram.layout()
    }

    /// The userfaultfd that reports faults.
    pub(crate) fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    /// What happens when the host has no memory for a page.
    pub(crate) fn memory_pressure(&self) -> &MemoryPressure {
        &self.memory_pressure
    }

    /// Registers all of the guest's memory: accesses to absent pages fault from now on.
    pub(crate) fn register(&self) -> Result<(), RangeError> {
        self.host_ranges().try_for_each(|range| {
            self.userfault
                .register(range, RegisterMode::MISSING)
                .map(drop)
        })
    }

    /// Unregisters the guest's memory. Absent pages read as zeros from now on: only when no page
    /// is missing, or the guest will never run here.
    ///
    /// Continues after a block that fails, so that no thread waits for ever in another block.
    /// Returns the first failure.
    pub(crate) fn unregister(&self) -> Result<(), RangeError> {
        let mut first = Ok(());
        for range in self.host_ranges() {
            first = first.and(self.userfault.unregister(range));
        }
        first
    }

    /// Wakes all threads that wait for a page; they fault again.
    pub(crate) fn wake_all(&self) -> Result<(), RangeError> {
        self.host_ranges()
            .try_for_each(|range| self.userfault.wake(range))
    }

    /// Whether any page of `range` is present: pages of 4 KiB, or one huge page, all of it
    /// registered.
    pub(crate) fn holds(&self, range: PageRange) -> Result<bool, PresenceError> {
        let private = self
            .layout()
            .locate(range.start())
            .is_some_and(|(block, _)| {
                let backing = self.ram.backings().get(block);
                backing.is_some_and(|backing| backing.private().is_some())
            });
        if private || self.layout().host_page_range(range.start()).len() == 1 {
            return Ok(self.ram.has_data(range)?);
        }
        let Some(at) = self.address(range.start()) else {
            return Ok(false);
        };
        let range = HostRange::new(at, range.bytes());
        Ok(self.userfault.holds_huge_page(range)?)
    }

    /// The page at address `addr` of the guest's process.
    pub(crate) fn page_at(&self, addr: HostAddr) -> Option<Page> {
        self.host_ranges().enumerate().find_map(|(block, range)| {
            let offset = addr.0.checked_sub(range.addr.0)?;
            self.layout().page_at(block, offset)
        })
    }

    /// The address of `page` in the guest's process.
    pub(crate) fn address(&self, page: Page) -> Option<HostAddr> {
        let (block, offset) = self.layout().locate(page)?;
        Some(HostAddr(self.hosts.get(block)?.0 + offset))
    }

    fn host_ranges(&self) -> impl Iterator<Item = HostRange> + '_ {
        self.layout()
            .blocks()
            .zip(&self.hosts)
            .map(|((block, _), &addr)| HostRange::new(addr, block.bytes))
    }

    /// The content of `range`, if it holds zeros. `range` is not longer than
    /// [`most_zeros`](Self::most_zeros).
    pub(crate) fn zeros(&self, range: PageRange) -> &[u8] {
        let bytes = usize::try_from(range.bytes()).unwrap_or(0);
        self.zeros.get(..bytes).unwrap_or_default()
    }

    /// The most pages that [`zeros`](Self::zeros) returns.
    pub(crate) fn most_zeros(&self) -> u64 {
        (self.zeros.len() / PAGE_SIZE) as u64
    }

    /// Fills a host page with zeros. A page that is present is left alone; threads that wait for
    /// it are woken.
    pub(crate) fn fill(&self, range: PageRange) -> Result<(), CopyError> {
        for extent in self.layout().locate_range(range) {
            let zeros = self.zeros(extent.pages);
            self.copy(&extent, zeros, &mut |_| true).1?;
        }
        Ok(())
    }

    /// Copies whole host pages. Returns how many bytes are present now, counted from the first,
    /// and the error that stopped the rest. `present` is called as by [`Userfault::copy_unless`].
    pub(crate) fn copy(
        &self,
        extent: &Extent,
        content: &[u8],
        present: &mut dyn FnMut(HostRange) -> bool,
    ) -> (u64, Result<(), CopyError>) {
        let Some(start) = self.address(extent.pages.start()) else {
            return (0, Ok(()));
        };
        let host_page = self.layout().host_page_range(extent.pages.start()).bytes();
        let mut done = 0;
        let copied = self.memory_pressure.retry(|| {
            let at = HostAddr(start.0 + done);
            let skip = usize::try_from(done).unwrap_or(usize::MAX);
            let rest = content.get(skip..).unwrap_or_default();
            let copied = self.userfault.copy_unless(at, rest, host_page, present);
            done += match &copied {
                Ok(copied) => copied.installed + copied.present,
                Err(error) => error.done(),
            };
            copied.map(drop)
        });
        (done, copied)
    }

    /// Copies one huge page that was assembled in `buffer`. `present` as in [`copy`](Self::copy).
    pub(crate) fn copy_huge(
        &self,
        page: Page,
        buffer: &PageBuffer,
        present: &mut dyn FnMut(HostRange) -> bool,
    ) -> Result<(), CopyError> {
        let Some(at) = self.address(page) else {
            return Ok(());
        };
        self.memory_pressure.retry(|| {
            let copied = self.userfault.copy_buffer_unless(at, buffer, present);
            copied.map(drop)
        })
    }
}
