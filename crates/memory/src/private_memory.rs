//! A RAM block in the private memory of a process: anonymous, or a private mapping of a file.
//!
//! Read and written through `/proc/PID/mem`. Reading there populates what is absent, as an access
//! by the process does: a hole would become a page, and a hugetlb hole would take a page from the
//! pool. So the pagemap says first what is there, and only that is read. A page that is dropped
//! between the two is populated by the read, with zeros; that is the one exception, and harmless.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_linux::{Errno, HostAddr, HostRange, Pagemap, Process};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, is_zero};

use crate::error::MemoryLost;
use crate::process_memory::ProcessMemory;
use crate::ram_file::RamFile;

/// Private memory of a process. Offsets are bytes from the beginning of the block.
#[derive(Debug)]
pub struct PrivateMemory {
    place: ProcessMemory,
    pagemap: Pagemap,
    /// The file of a private mapping: what a page reads as that the process has not written.
    file: Option<RamFile>,
    /// Whether the destination has all of it.
    sent: AtomicBool,
}

impl PrivateMemory {
    /// Opens `bytes` bytes of private anonymous memory at `address` of `process` (private hugetlb
    /// memory included), for reading at the source, and `writable` at the destination.
    ///
    /// # Errors
    ///
    /// As `open(2)`: it requires the right to trace the process. `ESRCH` when the process has
    /// exited, `EINVAL` when the range is not aligned to pages or exceeds the address space.
    pub fn open(
        process: Arc<Process>,
        address: u64,
        bytes: u64,
        writable: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            pagemap: Pagemap::open(Some(&process))?,
            place: ProcessMemory::open(process, address, bytes, writable)?,
            file: None,
            sent: AtomicBool::new(false),
        })
    }

    /// The memory is a private mapping of `file`: pages that the process has not written are the
    /// file's. The file must be open for reading; at the destination of a post-copy migration
    /// also for writing: what is zero in it becomes a hole.
    #[must_use]
    pub fn over_file(self, file: RamFile) -> Self {
        Self {
            file: Some(file),
            ..self
        }
    }

    /// The process.
    pub fn process(&self) -> &Arc<Process> {
        self.place.process()
    }

    /// Where the memory is in the process.
    pub(crate) fn place(&self) -> &ProcessMemory {
        &self.place
    }

    /// The file of a private mapping.
    pub fn file(&self) -> Option<&RamFile> {
        self.file.as_ref()
    }

    /// At the source of a paused guest: the destination has received every page that is not a hole.
    /// From now on all of it counts as holes, also after the process has ended.
    pub fn set_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    /// Undoes [`set_sent`](Self::set_sent): a new migration of the guest starts.
    pub fn clear_sent(&self) {
        self.sent.store(false, Ordering::Release);
    }

    /// Whether [`set_sent`](Self::set_sent) was called.
    pub fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Bytes that the process has in memory or in swap space.
    ///
    /// # Errors
    ///
    /// As reading a pagemap.
    pub fn held_bytes(&self) -> io::Result<u64> {
        let mut held = 0;
        self.pagemap
            .pages(self.place.host_range(), |run| {
                held += run.len;
                Ok(ControlFlow::Continue(()))
            })
            .map_err(|error| self.explain(error))?;
        Ok(held)
    }

    /// The address of a part of the block.
    pub(crate) fn host(&self, part: &Range<u64>) -> HostRange {
        self.place.host(part)
    }

    fn offset(&self, at: HostAddr) -> u64 {
        at.0.saturating_sub(self.place.host_range().addr.0)
    }

    fn part(&self, run: HostRange) -> Range<u64> {
        let start = self.offset(run.addr);
        start..start.saturating_add(run.len)
    }

    /// Reads whole pages. Absent pages stay absent.
    pub(crate) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let whole = at..at.saturating_add(buffer.len() as u64);
        // The rest of the buffer, and where it begins in the block.
        let mut rest = (buffer, at);
        self.pagemap
            .pages(self.host(&whole), |run| {
                let run = self.part(run);
                let buffer = std::mem::take(&mut rest.0);
                let absent = split(buffer, run.start.saturating_sub(rest.1))?;
                self.read_absent(rest.1, absent.0)?;
                let present = split(absent.1, run.end.saturating_sub(run.start))?;
                self.place.read(run.start, present.0)?;
                rest = (present.1, run.end);
                Ok(ControlFlow::Continue(()))
            })
            .map_err(|error| self.explain(error))?;
        self.read_absent(rest.1, rest.0)
    }

    /// Reads pages that the process does not have.
    fn read_absent(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.check_not_ended()?;
        match &self.file {
            None => buffer.fill(0),
            Some(file) => file.read(at, buffer)?,
        }
        Ok(())
    }

    /// Writes whole pages.
    pub(crate) fn write(&self, at: u64, content: &[u8]) -> io::Result<()> {
        self.place.write(at, content)
    }

    /// Fails if the process has lost its memory, which looks absent then. To be called after the
    /// pagemap was asked.
    fn check_not_ended(&self) -> io::Result<()> {
        if self.pagemap.has_memory()? {
            Ok(())
        } else {
            Err(MemoryLost.into())
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.pagemap.has_memory(), Ok(false))
    }

    /// Whether the process has ended, and with it memory that the destination may need.
    pub fn is_lost(&self) -> bool {
        !self.is_sent() && self.has_ended()
    }

    /// Reading the memory of a process that has ended transfers nothing, and its pagemap reports
    /// `ESRCH`.
    fn explain(&self, error: io::Error) -> io::Error {
        if Errno::from_io_error(&error) == Some(Errno::SRCH) {
            return MemoryLost.into();
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof if self.has_ended() => MemoryLost.into(),
            _ => error,
        }
    }

    /// The first page in `within` that the file of a private mapping has data for.
    fn first_in_file(&self, within: &Range<u64>) -> io::Result<Option<u64>> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        if within.is_empty() || file.is_empty()? {
            return Ok(None);
        }
        let data = file.first_data(within)?;
        Ok(data.map(|at| at - at % PAGE_BYTES))
    }

    /// The first run in `within` that the file of a private mapping has data for. Page by page: to
    /// ask for the next hole takes as long as the run is, also if only a part of it is in `within`.
    fn file_run(&self, within: &Range<u64>) -> io::Result<Option<Range<u64>>> {
        let Some(start) = self.first_in_file(within)? else {
            return Ok(None);
        };
        let mut end = start + PAGE_BYTES;
        while self.first_in_file(&(end..within.end))? == Some(end) {
            end += PAGE_BYTES;
        }
        Ok(Some(start..end))
    }

    /// Whether the file of a private mapping holds nothing but zeros in `within`.
    pub(crate) fn file_is_zero(&self, within: &Range<u64>) -> io::Result<bool> {
        let mut page = [0; PAGE_SIZE];
        let mut from = within.start;
        while let (Some(file), Some(at)) = (&self.file, self.first_in_file(&(from..within.end))?) {
            file.read(at, &mut page)?;
            if !is_zero(&page) {
                return Ok(false);
            }
            from = at + PAGE_BYTES;
        }
        Ok(true)
    }

    /// Makes `within` a hole of the file, in which it [is zero](Self::file_is_zero). A process that
    /// writes a page of a private tmpfs mapping allocates a page of zeros in the file as well, and
    /// that one would be read instead of faulting when the process's own page was dropped.
    pub(crate) fn punch_file(&self, within: &Range<u64>) -> io::Result<()> {
        match (&self.file, self.first_in_file(within)?) {
            (Some(file), Some(_)) => file.punch(within),
            _ => Ok(()),
        }
    }

    /// The first run of pages in `within` that are not holes: the process has them, or the file has
    /// data there. A hole reads as zeros, and an access to it faults.
    pub(crate) fn first_run(&self, within: &Range<u64>) -> io::Result<Option<Range<u64>>> {
        if self.is_sent() {
            return Ok(None);
        }
        let own = self
            .pagemap
            .first_pages(self.host(within))
            .map_err(|error| self.explain(error))?
            .map(|run| self.part(run));
        if own.as_ref().is_none_or(|own| own.start > within.start) {
            self.check_not_ended()?;
        }
        let before = own.as_ref().map_or(within.end, |own| own.start);
        Ok(self.file_run(&(within.start..before))?.or(own))
    }

    /// Calls `each` with all runs in `within` that are not holes, in ascending order. Adjacent runs
    /// may be reported separately. One walk over the page tables, however many runs there are.
    pub(crate) fn runs(
        &self,
        within: &Range<u64>,
        each: &mut dyn FnMut(Range<u64>),
    ) -> io::Result<()> {
        if self.file.is_some() {
            let mut rest = within.clone();
            while let Some(run) = self.first_run(&rest)? {
                rest.start = run.end;
                each(run);
            }
            return Ok(());
        }
        if self.is_sent() {
            return Ok(());
        }
        self.pagemap
            .pages(self.host(within), |run| {
                each(self.part(run));
                Ok(ControlFlow::Continue(()))
            })
            .map_err(|error| self.explain(error))?;
        self.check_not_ended()
    }
}

fn split(buffer: &mut [u8], at: u64) -> io::Result<(&mut [u8], &mut [u8])> {
    usize::try_from(at)
        .ok()
        .and_then(|at| buffer.split_at_mut_checked(at))
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
