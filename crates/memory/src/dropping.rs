//! Dropping pages at the destination, so that an access to them faults.
//!
//! A hole is punched into a file for each range. Private memory is dropped by its process: all
//! ranges at once, because each stop of the process costs more than a thousand ranges.

use std::io;
use std::sync::Arc;

use hikkoshi_linux::{HostRange, Process, drop_pages};
use hikkoshi_pages::{Extent, PAGE_BYTES, PageRange};

use crate::backing::Backing;
use crate::error::{MemoryError, MemoryLost};
use crate::guest_ram::bytes_of;
use crate::private_memory::PrivateMemory;
use crate::writer::RamWriter;

/// How often pages are dropped that are present again at once: reading a hole of a file fills it
/// with zeros, and QEMU's monitor may be reading the guest's memory.
const DROP_ATTEMPTS: u32 = 8;

/// Ranges of one process, and the extents that they belong to.
struct ProcessRanges<'a> {
    process: &'a Arc<Process>,
    hosts: Vec<HostRange>,
    extents: Vec<PageRange>,
}

impl RamWriter {
    /// Drops `ranges`, so that the next access faults, and checks that they are absent: when a hole
    /// is punched into a huge page of tmpfs, the kernel may fill it with zeros instead.
    ///
    /// `ranges` must consist of whole host pages. Private memory is dropped with few system calls,
    /// however many ranges there are.
    ///
    /// # Errors
    /// [`MemoryError::FileContent`], before anything is dropped, and [`MemoryError::Drop`].
    pub fn drop_stale(&self, ranges: &[PageRange]) -> Result<(), MemoryError> {
        self.check_files(ranges)?;
        let mut present = self.drop_once(ranges)?;
        for _ in 1..DROP_ATTEMPTS {
            if present.is_empty() {
                break;
            }
            present = self.drop_once(&present)?;
        }
        match present.first() {
            None => Ok(()),
            Some(&range) => Err(MemoryError::Drop { range, cause: None }),
        }
    }

    /// Drops ranges, and does not check that the pages are absent: fewer system calls, while a
    /// guest is paused. The caller checks pages of files afterwards, and has registered anonymous
    /// memory, so that no access fills it.
    ///
    /// # Errors
    /// The errors of [`drop_stale`](Self::drop_stale).
    pub fn drop_unchecked(&self, ranges: &[PageRange]) -> Result<(), MemoryError> {
        self.check_files(ranges)?;
        self.drop_with_files(ranges)
    }

    /// Checks that private mappings have nothing but zeros in their files.
    fn check_files(&self, ranges: &[PageRange]) -> Result<(), MemoryError> {
        for extent in self.extents(ranges) {
            if let Backing::Private(memory) = self.place(&extent).0 {
                check_file(memory, &extent)?;
            }
        }
        Ok(())
    }

    /// Drops `ranges`, and zeros in the files of private mappings.
    fn drop_with_files(&self, ranges: &[PageRange]) -> Result<(), MemoryError> {
        self.drop_extents(ranges)?;
        for extent in self.extents(ranges) {
            if let Backing::Private(memory) = self.place(&extent).0 {
                memory
                    .punch_file(&bytes_of(&extent))
                    .map_err(|cause| failed(extent.pages, cause))?;
            }
        }
        Ok(())
    }

    /// Drops `ranges`, and returns those that are present afterwards.
    fn drop_once(&self, ranges: &[PageRange]) -> Result<Vec<PageRange>, MemoryError> {
        self.drop_with_files(ranges)?;
        let mut present = Vec::new();
        for extent in self.extents(ranges) {
            let range = extent.pages;
            let backing = self.place(&extent).0;
            // hugetlbfs does not report holes.
            let holds = if self.is_huge(&extent) {
                Ok(false)
            } else {
                backing.has_data(&bytes_of(&extent))
            };
            if holds.map_err(|cause| failed(range, cause))? {
                present.push(range);
            }
        }
        Ok(present)
    }

    /// Drops everything, and checks that it is absent.
    ///
    /// # Errors
    /// The errors of [`drop_stale`](Self::drop_stale).
    pub fn drop_all(&self) -> Result<(), MemoryError> {
        self.drop_stale(&[self.ram().layout().all()])
    }

    /// Prepares the memory for a migration without post-copy, which needs no absent pages. Files
    /// that have all of their pages keep them, and what they hold until it is written or cleared
    /// ([`keeps_any`](Self::keeps_any)). Everything else is dropped, and zeros are written where a
    /// privately mapped file would be read instead.
    ///
    /// # Errors
    /// [`MemoryError::Drop`] and [`MemoryError::Write`].
    pub fn clear_all(&mut self) -> Result<(), MemoryError> {
        self.without_postcopy = true;
        let others = self.keep_populated()?;
        self.drop_extents(&others)?;
        for extent in self.extents(&others) {
            let Backing::Private(memory) = self.place(&extent).0 else {
                continue;
            };
            if memory.file().is_none() {
                continue;
            }
            let mut rest = extent.pages;
            while let Some(data) = self
                .ram()
                .next_data(rest)
                .map_err(|cause| failed(rest, cause))?
            {
                self.write_zeros(data)?;
                rest = PageRange::new(data.end(), rest.end());
            }
        }
        Ok(())
    }

    fn is_huge(&self, extent: &Extent) -> bool {
        let block = self.ram().layout().block(extent.block);
        block.is_some_and(|(block, _)| block.host_page > PAGE_BYTES)
    }

    fn extents<'a>(&'a self, ranges: &'a [PageRange]) -> impl Iterator<Item = Extent> + 'a {
        let layout = self.ram().layout();
        ranges.iter().flat_map(|&range| layout.locate_range(range))
    }

    fn drop_extents(&self, ranges: &[PageRange]) -> Result<(), MemoryError> {
        let mut by_process: Vec<ProcessRanges<'_>> = Vec::new();
        for extent in self.extents(ranges) {
            let range = extent.pages;
            match self.place(&extent).0 {
                Backing::File(file) => {
                    file.punch(&bytes_of(&extent))
                        .map_err(|cause| failed(range, cause))?;
                    self.written().clear_range(range);
                }
                Backing::Lost => return Err(failed(range, MemoryLost.into())),
                Backing::Private(memory) => {
                    let (process, host) = (memory.process(), memory.host(&bytes_of(&extent)));
                    let same =
                        |known: &&mut ProcessRanges<'_>| known.process.pid() == process.pid();
                    match by_process.iter_mut().find(same) {
                        Some(known) => {
                            known.hosts.push(host);
                            known.extents.push(range);
                        }
                        None => by_process.push(ProcessRanges {
                            process,
                            hosts: vec![host],
                            extents: vec![range],
                        }),
                    }
                }
            }
        }
        for of_process in by_process {
            let [first, ..] = of_process.extents[..] else {
                continue;
            };
            drop_pages(of_process.process, &of_process.hosts)
                .map_err(|error| failed(first, io::Error::other(error)))?;
            for range in of_process.extents {
                self.written().clear_range(range);
            }
        }
        Ok(())
    }
}

fn check_file(memory: &PrivateMemory, extent: &Extent) -> Result<(), MemoryError> {
    let range = extent.pages;
    match memory.file_is_zero(&bytes_of(extent)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(MemoryError::FileContent { range }),
        Err(cause) => Err(failed(range, cause)),
    }
}

fn failed(range: PageRange, cause: io::Error) -> MemoryError {
    let cause = Some(cause);
    MemoryError::Drop { range, cause }
}
