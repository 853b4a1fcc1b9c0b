//! Absent pages, installed by a userfaultfd before the guest runs.
//!
//! The kernel charges a page of shared memory to the memory cgroup of the process in whose address
//! space it is installed, which is the guest's. A page that this process writes to the file would
//! be charged to this process, and the guest's limit would not apply to it
//! (docs/decisions/0029-charge-guest-memory-to-qemu.md).
//!
//! To write an absent page through `/proc/PID/mem` is to fault it in: the kernel allocates a page,
//! a huge one where the process asked for huge pages, fills all of it with zeros, and copies each
//! 4 KiB twice. `UFFDIO_COPY` allocates 4 KiB pages, copies once and zeroes nothing. Filling 1 GiB
//! took a third of the time (docs/benchmarks.md).
//!
//! While the memory is registered, an access to an absent page blocks. The guest does not run yet,
//! but its process may access its memory: a monitor command that dumps it, for instance. A thread
//! answers such a fault with zeros, as the kernel would without the registration. Only this process
//! may hold the userfaultfd: if it is killed, the kernel unregisters the memory, and nothing stays
//! blocked.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::{HostRange, StopEventFd};
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_userfault::{
    CopyError, EventBuffer, RangeError, ReadError, Ready, RegisterMode, Userfault, UserfaultEvent,
};
use thiserror::Error;

use crate::backing::Backing;
use crate::error::MemoryLost;
use crate::guest_ram::GuestRam;
use crate::process_memory::ProcessMemory;

/// Blocks from this size on are registered, 2 MiB. Smaller ones have no huge pages to avoid.
const MIN_BYTES: u64 = 2 << 20;

/// Faults that are read at once.
const FAULTS: usize = 16;

/// How long a fault waits that could not be answered, until it is reported again.
const PAUSE: Duration = Duration::from_millis(10);

/// Pages cannot be installed by userfaultfd. They can still be written.
#[derive(Debug, Error)]
pub enum PageInstallerError {
    /// The memory could not be registered.
    #[error(transparent)]
    Register(#[from] RangeError),
    /// The thread that answers faults could not be started.
    #[error("starting the thread that answers faults while memory is filled")]
    Thread(#[source] io::Error),
}

/// Installs absent pages. Unregisters the memory when it is dropped.
#[derive(Debug)]
pub(crate) struct PageInstaller {
    userfault: Arc<Userfault>,
    /// For each block, whether it is registered.
    blocks: Vec<bool>,
    ranges: Vec<HostRange>,
    /// Whether the memory was unregistered, here or by the thread. See [`unregister_once`].
    ended: Arc<Mutex<bool>>,
    stop: StopEventFd,
    faults: Option<JoinHandle<()>>,
}

/// Where pages of the block are installed: memory with pages of 4 KiB. hugetlb memory takes whole
/// huge pages only.
fn place(host_page: u64, backing: &Backing) -> Option<HostRange> {
    let range = backing.installable()?.host_range();
    (host_page == PAGE_BYTES && range.len >= MIN_BYTES).then_some(range)
}

/// Whether any block would be registered.
pub(crate) fn is_useful(ram: &GuestRam) -> bool {
    let mut blocks = ram.layout().blocks().zip(ram.backings());
    blocks.any(|((block, _), backing)| place(block.host_page, backing).is_some())
}

impl PageInstaller {
    /// Registers the memory of `ram` with `userfault`, which belongs to its process.
    pub(crate) fn start(
        ram: &GuestRam,
        userfault: Arc<Userfault>,
    ) -> Result<Self, PageInstallerError> {
        let stop = StopEventFd::new().map_err(PageInstallerError::Thread)?;
        let mut installer = Self {
            userfault,
            blocks: Vec::new(),
            ranges: Vec::new(),
            ended: Arc::default(),
            stop,
            faults: None,
        };
        for ((block, _), backing) in ram.layout().blocks().zip(ram.backings()) {
            let range = place(block.host_page, backing);
            if let Some(range) = range {
                installer.userfault.register(range, RegisterMode::MISSING)?;
                installer.ranges.push(range);
            }
            installer.blocks.push(range.is_some());
        }
        let answering = FaultThread {
            userfault: Arc::clone(&installer.userfault),
            ranges: installer.ranges.clone(),
            ended: Arc::clone(&installer.ended),
            stop: installer.stop.clone(),
        };
        let thread = thread::Builder::new().name("dst-fill-faults".into());
        let thread = thread.spawn(move || answering.run());
        installer.faults = Some(thread.map_err(PageInstallerError::Thread)?);
        Ok(installer)
    }

    /// Whether pages of block number `block` are installed.
    pub(crate) fn has(&self, block: usize) -> bool {
        self.blocks.get(block).copied().unwrap_or(false)
    }

    /// Unregisters the memory: nothing here does so after this returns. Pages are written from now
    /// on. What cannot be unregistered stays answered: an access there would block for ever
    /// otherwise.
    ///
    /// Does nothing the second time: post-copy has registered the memory by then, and kernels that
    /// let any userfaultfd unregister a range would end that registration. Missing pages would read
    /// as zeros. Linux 6.18 refuses it (`EINVAL`).
    pub(crate) fn end(&self) {
        if unregister_once(&self.ended, &self.userfault, &self.ranges) {
            self.stop.stop();
        }
    }

    /// Installs pages of `backing`, which the process maps at `place`, from byte `at` on. A page
    /// that is present after all is written.
    pub(crate) fn install(
        &self,
        backing: &Backing,
        place: &ProcessMemory,
        at: u64,
        content: &[u8],
    ) -> io::Result<()> {
        let start = place.host(&(at..at)).addr;
        let mut written = Ok(());
        let copied = self
            .userfault
            .copy_unless(start, content, PAGE_BYTES, &mut |page| {
                if written.is_ok() {
                    let offset = page.addr.0.saturating_sub(start.0);
                    let page = part(content, offset, page.len);
                    written = page.and_then(|page| backing.write(at + offset, page));
                }
                true
            });
        written?;
        match copied {
            Ok(_) => Ok(()),
            // `end` was called, or the process has replaced the memory, which writing finds out.
            Err(error @ CopyError::NotRegistered { .. }) => {
                let done = error.done();
                let rest = content.len() as u64 - done;
                place.write(at + done, part(content, done, rest)?)
            }
            Err(CopyError::ProcessGone { .. }) => Err(MemoryLost.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl Drop for PageInstaller {
    fn drop(&mut self) {
        self.end();
        self.stop.stop();
        if let Some(faults) = self.faults.take() {
            // It returns nothing, and a panic has been reported.
            let _ = faults.join();
        }
    }
}

fn part(content: &[u8], from: u64, bytes: u64) -> io::Result<&[u8]> {
    let range = usize::try_from(from)
        .ok()
        .zip(usize::try_from(from.saturating_add(bytes)).ok());
    range
        .and_then(|(from, to)| content.get(from..to))
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Unregisters the memory, the first time. Whether it did, and all of it. No thread still
/// unregisters when this returns: the lock is held meanwhile. These system calls wait for no
/// process, and for no fault to be answered.
fn unregister_once(ended: &Mutex<bool>, userfault: &Userfault, ranges: &[HostRange]) -> bool {
    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    !std::mem::replace(&mut *ended, true) && unregister(userfault, ranges)
}

/// Whether all of it is unregistered.
fn unregister(userfault: &Userfault, ranges: &[HostRange]) -> bool {
    let mut all = true;
    for &range in ranges {
        if let Err(error) = userfault.unregister(range) {
            tracing::warn!(error = %Report::new(&error), "memory that was filled stays registered");
            all = false;
        }
    }
    all
}

/// Answers faults with zeros.
struct FaultThread {
    userfault: Arc<Userfault>,
    ranges: Vec<HostRange>,
    /// See [`PageInstaller`].
    ended: Arc<Mutex<bool>>,
    stop: StopEventFd,
}

impl FaultThread {
    fn run(self) {
        if let Err(error) = self.answer_all() {
            tracing::warn!(error = %Report::new(&error), "pages are written instead of installed");
            // Not after the end, as the memory may be registered for post-copy then.
            unregister_once(&self.ended, &self.userfault, &self.ranges);
        }
    }

    fn answer_all(&self) -> Result<(), ReadError> {
        let mut events = EventBuffer::with_capacity(FAULTS);
        loop {
            match self.userfault.wait(&self.stop, None)? {
                Ready::Stopped | Ready::ProcessGone => return Ok(()),
                Ready::TimedOut | Ready::Other => continue,
                Ready::Events => self.userfault.read(&mut events)?,
            };
            while let Some(event) = events.pop() {
                let UserfaultEvent::Fault(fault) = event else {
                    continue;
                };
                let page = HostRange::new(fault.addr, PAGE_BYTES);
                // Pages that were unregistered meanwhile, or have arrived, are not errors: their
                // threads were woken.
                match self.userfault.zero(page) {
                    Ok(_) | Err(CopyError::NotRegistered { .. }) => {}
                    Err(error) => {
                        tracing::debug!(error = %Report::new(&error), "answering a fault");
                        thread::sleep(PAUSE);
                        let _ = self.userfault.wake(page);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use hikkoshi_userfault::Features;

    use super::*;

    #[test]
    fn the_end_waits_until_another_thread_has_unregistered() {
        let installer = PageInstaller {
            userfault: Arc::new(Userfault::create_for_self(Features::NONE).unwrap()),
            blocks: Vec::new(),
            ranges: Vec::new(),
            ended: Arc::default(),
            stop: StopEventFd::new().unwrap(),
            faults: None,
        };
        let ended = Arc::clone(&installer.ended);
        let mut unregistering = ended.lock().unwrap();
        *unregistering = true;
        let (sender, returned) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                installer.end();
                sender.send(()).unwrap();
            });
            let early = returned.recv_timeout(Duration::from_millis(100));
            assert_eq!(early, Err(RecvTimeoutError::Timeout));
            drop(unregistering);
            returned.recv_timeout(Duration::from_secs(20)).unwrap();
        });
    }
}
