//! Post-copied pages on their last step: into the guest's memory, through
//! `UFFDIO_COPY` and no other way, so that a page that is present has been
//! received.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_faults::{CopyError, HostAddr, HostRange, Mode, RangeError, Userfault};
use hikkoshi_pages::{Extent, PAGE_BYTES, PAGE_SIZE, Page, PageBitmap, PageRange, RamLayout};
use thiserror::Error;

use super::staging::{Staging, TooManyPartial};
use crate::stats::{Latency, LatencySummary};

/// Why a page could not be installed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The kernel did not take it.
    #[error("{0}")]
    Copy(#[from] CopyError),
    /// The source sends huge pages in a way that no source does.
    #[error("{0}")]
    Staging(#[from] TooManyPartial),
}

/// What came of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// These pages must be asked for.
    Ask(PageRange),
    /// They have been asked for, or they are there.
    Nothing,
}

/// Installs pages and knows which are missing. Shared by the fault thread and
/// the links' receivers, without a lock but for huge pages in pieces.
#[derive(Debug)]
pub(super) struct Installer {
    userfault: Arc<Userfault>,
    layout: RamLayout,
    /// Where each block begins in the process that has the userfaultfd.
    hosts: Vec<HostAddr>,
    /// Owed by the source and not installed yet. A page leaves the set after
    /// it was installed: what is not in the set can be filled with zeros
    /// without overtaking the source's content.
    missing: PageBitmap,
    left: AtomicU64,
    /// When a page was asked for, in µs since `begun`, plus one; 0 if it was
    /// not. Of a huge page only the first entry is used.
    asked: Box<[AtomicU32]>,
    begun: Instant,
    /// Of the pages that were asked for. Locked for one record at a time.
    latency: Mutex<Latency>,
    staging: Staging,
    zeros: Vec<u8>,
}

impl Installer {
    /// Everything that can be made ready while the guest still runs at the
    /// source; nothing is owed yet. `hosts` says where each block begins in
    /// the process of `userfault`.
    pub(super) fn new(userfault: Arc<Userfault>, layout: RamLayout, hosts: &[u64]) -> Self {
        let largest = layout.blocks().map(|(block, _)| block.host_page).max();
        let largest = usize::try_from(largest.unwrap_or(PAGE_BYTES)).unwrap_or(PAGE_SIZE);
        let pages = usize::try_from(layout.pages()).unwrap_or(0);
        Self {
            missing: PageBitmap::empty(layout.pages()),
            left: AtomicU64::new(0),
            hosts: hosts.iter().copied().map(HostAddr).collect(),
            asked: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            begun: Instant::now(),
            latency: Mutex::default(),
            staging: Staging::new(largest),
            zeros: vec![0; largest.max(256 * PAGE_SIZE)],
            userfault,
            layout,
        }
    }

    /// The source will send `range` after the switch. Only before
    /// [`start`](Self::start).
    pub(super) fn owe(&self, range: PageRange) {
        let new = self.missing.set_range(range);
        self.left.fetch_add(new, Ordering::AcqRel);
    }

    /// Registers all of the guest's memory: from here on an access to a page
    /// that is not there faults.
    pub(super) fn start(&self) -> Result<(), RangeError> {
        self.host_ranges()
            .try_for_each(|range| self.userfault.register(range, Mode::MISSING).map(drop))
    }

    /// Where faults are read from.
    pub(super) fn userfault(&self) -> &Userfault {
        &self.userfault
    }

    /// Pages that have not arrived.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// How long the requests took that have been answered so far.
    pub(super) fn latency(&self) -> LatencySummary {
        self.latency
            .lock()
            .map(|latency| latency.summary())
            .unwrap_or_default()
    }

    /// Lets go of the guest's memory. What is missing reads as zeros from now
    /// on: only when nothing is missing, or the guest will never run here.
    pub(super) fn unregister(&self) -> Result<(), RangeError> {
        self.host_ranges()
            .try_for_each(|range| self.userfault.unregister(range))
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

    /// The guest has touched `addr` and waits.
    ///
    /// A page that the source does not owe holds zeros: it is filled here.
    pub(super) fn faulted(&self, addr: HostAddr) -> Result<Wanted, CopyError> {
        let Some(page) = self.page_at(addr) else {
            // Not the guest's memory, and so not registered by us.
            tracing::warn!(%addr, "a fault outside the guest's memory");
            return Ok(Wanted::Nothing);
        };
        let range = self.layout.host_page_range(page);
        if self.missing.count_range(range) == 0 {
            for extent in self.layout.locate_range(range) {
                let bytes = usize::try_from(extent.pages.bytes()).unwrap_or(0);
                self.copy(&extent, &self.zeros[..bytes])?;
            }
            return Ok(Wanted::Nothing);
        }
        let now = u32::try_from(self.begun.elapsed().as_micros()).unwrap_or(u32::MAX - 1) + 1;
        let first = self
            .asked(range.start())
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        Ok(if first {
            Wanted::Ask(range)
        } else {
            Wanted::Nothing
        })
    }

    fn asked(&self, page: Page) -> &AtomicU32 {
        // Every page that gets here was found in the layout, and `asked` has
        // an entry for each of its pages.
        #[allow(clippy::cast_possible_truncation)]
        &self.asked[page.index() as usize]
    }

    /// Installs the content of `range`; `true` when it was the last.
    pub(super) fn install(&self, range: PageRange, content: &[u8]) -> Result<bool, InstallError> {
        let mut rest = content;
        let mut last = false;
        for extent in self.layout.locate_range(range) {
            let bytes = usize::try_from(extent.pages.bytes()).unwrap_or(usize::MAX);
            let (piece, tail) = rest.split_at(bytes.min(rest.len()));
            rest = tail;
            last |= self.install_extent(&extent, piece)?;
        }
        Ok(last)
    }

    /// As [`install`](Self::install), with zeros.
    pub(super) fn install_zeros(&self, range: PageRange) -> Result<bool, InstallError> {
        let most = (self.zeros.len() / PAGE_SIZE) as u64;
        let mut last = false;
        for part in range.chunks(most) {
            let bytes = usize::try_from(part.bytes()).unwrap_or(0);
            last |= self.install(part, &self.zeros[..bytes])?;
        }
        Ok(last)
    }

    fn install_extent(&self, extent: &Extent, content: &[u8]) -> Result<bool, InstallError> {
        let host_page = self.layout.host_page_range(extent.pages.start());
        if host_page.len() == 1 {
            self.copy(extent, content)?;
            return Ok(self.received(extent.pages, 1));
        }
        let mut last = false;
        let mut offset = 0;
        // An extent may reach over several huge pages.
        let mut rest = extent.pages;
        while !rest.is_empty() {
            let whole = self.layout.host_page_range(rest.start());
            let (piece, tail) = rest.split_at(whole.end());
            let bytes = usize::try_from(piece.bytes()).unwrap_or(usize::MAX);
            let part = &content[offset..(offset + bytes).min(content.len())];
            let complete = if self.missing.count_range(whole) == 0 {
                None // It is there; this piece came twice.
            } else {
                self.staging.add(whole, piece, part)?
            };
            if let Some(buffer) = complete {
                let mut installed = Ok(());
                for extent in self.layout.locate_range(whole) {
                    installed = self.copy(&extent, &buffer);
                }
                self.staging.give_back(buffer);
                installed?;
                last |= self.received(whole, whole.len());
            }
            offset += bytes;
            rest = tail;
        }
        Ok(last)
    }

    /// Installs whole host pages.
    fn copy(&self, extent: &Extent, content: &[u8]) -> Result<(), CopyError> {
        let base = self.hosts[extent.block];
        let at = HostAddr(base.0 + extent.offset);
        let huge = self.layout.host_page_range(extent.pages.start()).len() > 1;
        if huge {
            self.userfault.copy_host_page(at, content)?;
        } else {
            self.userfault.copy(at, content)?;
        }
        Ok(())
    }

    /// Books installed pages; `true` when nothing is missing any more.
    fn received(&self, pages: PageRange, step: u64) -> bool {
        let now = self.begun.elapsed();
        let new = self.missing.clear_range(pages);
        for host_page in pages.chunks(step) {
            let asked = self.asked(host_page.start()).load(Ordering::Acquire);
            if asked != 0 && new > 0 {
                let asked = Duration::from_micros(u64::from(asked - 1));
                if let Ok(mut latency) = self.latency.lock() {
                    latency.record(now.saturating_sub(asked));
                }
            }
        }
        // Exactly one thread takes it to zero, and by then every thread has
        // recorded its latencies.
        new > 0 && self.left.fetch_sub(new, Ordering::AcqRel) == new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_faults::Features;
    use hikkoshi_pages::RamBlock;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

    const PAGES: u64 = 16;

    /// 16 pages, mapped and registered; pages 4 to 11 are owed.
    fn installer() -> (Installer, MmapRegion) {
        let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(PAGES * PAGE_BYTES).unwrap();
        let bytes = usize::try_from(PAGES * PAGE_BYTES).unwrap();
        let map = MmapRegion::from_file(FileOffset::new(file, 0), bytes).unwrap();
        let layout = RamLayout::new(vec![RamBlock {
            id: "ram".into(),
            bytes: PAGES * PAGE_BYTES,
            host_page: PAGE_BYTES,
            guest: Vec::new(),
        }])
        .unwrap();
        let userfault = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
        let hosts = [map.as_ptr() as u64];
        let installer = Installer::new(Arc::new(userfault), layout, &hosts);
        installer.owe(range(4, 12));
        installer.start().unwrap();
        (installer, map)
    }

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    fn addr(map: &MmapRegion, page: u64) -> HostAddr {
        HostAddr(map.as_ptr() as u64 + page * PAGE_BYTES + 100)
    }

    #[test]
    fn a_page_is_asked_for_once() {
        let (installer, map) = installer();
        let ask = |page| installer.faulted(addr(&map, page)).unwrap();
        assert_eq!(ask(5), Wanted::Ask(range(5, 6)));
        assert_eq!(ask(5), Wanted::Nothing, "asked for already");
        assert_eq!(ask(2), Wanted::Nothing, "nobody owes it: it holds zeros");
        let nowhere = HostAddr(map.as_ptr() as u64 + PAGES * PAGE_BYTES);
        assert_eq!(installer.faulted(nowhere).unwrap(), Wanted::Nothing);
        assert_eq!(installer.left(), 8);

        assert!(!installer.install(range(5, 6), &[7; PAGE_SIZE]).unwrap());
        assert_eq!(ask(5), Wanted::Nothing, "it is there");
        assert_eq!(installer.latency().count, 1);
        let byte: u8 = map.as_volatile_slice().read_obj(5 * PAGE_SIZE + 9).unwrap();
        assert_eq!(byte, 7);
        installer.unregister().unwrap();
    }

    #[test]
    fn the_last_page_is_told_once_and_a_second_copy_is_left_alone() {
        let (installer, map) = installer();
        assert!(!installer.install_zeros(range(4, 8)).unwrap());
        assert!(!installer.install(range(4, 5), &[9; PAGE_SIZE]).unwrap());
        let byte: u8 = map.as_volatile_slice().read_obj(4 * PAGE_SIZE).unwrap();
        assert_eq!(byte, 0, "the first content stays");
        assert_eq!(installer.left(), 4);
        let content = vec![3; 4 * PAGE_SIZE];
        assert!(
            installer.install(range(8, 12), &content).unwrap(),
            "the last"
        );
        assert!(!installer.install(range(8, 12), &content).unwrap(), "again");
        assert_eq!(installer.left(), 0);
        assert_eq!(installer.latency().count, 0, "nobody had asked");
        installer.unregister().unwrap();
        installer.unregister().unwrap();
    }
}
