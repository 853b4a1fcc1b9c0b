//! What KVM's three logs have in common: pages move from the kernel's log to a bitmap of this
//! process, from which a range is taken.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use error_reporter::Report;
use hikkoshi_pages::{PageBitmap, PageRange};
use kvm_bindings::KVM_MEM_LOG_DIRTY_PAGES;

use super::bitmap::Bitmap;
use super::ioctl::set_flags;
use super::manual_protect::ManualProtect;
use super::method::{KvmStartError, Method};
use super::ring::Ring;
use super::rings::DirtyRings;
use super::slots::MemorySlots;
use crate::log::{DirtyError, DirtyLog};
use crate::runs::take_pending;

/// KVM's dirty log of a VM that this process runs, read in one of three ways: see [`kvm`](super).
#[derive(Debug)]
pub struct KvmLog {
    slots: MemorySlots,
    /// Pages that are dirty, but not in the kernel's log (any more).
    pending: PageBitmap,
    kernel: Mutex<KernelLog>,
}

/// The kernel's log. Only one thread at a time reads it, so that each page is reported once.
#[derive(Debug)]
struct KernelLog {
    method: Box<dyn Method>,
    stopped: bool,
}

impl KvmLog {
    /// Starts the log with one bitmap for each slot (`KVM_GET_DIRTY_LOG`). Every KVM has it. Each
    /// take clears and protects the whole of each slot that it touches.
    ///
    /// # Errors
    ///
    /// See [`KvmStartError`].
    pub fn bitmap(slots: MemorySlots) -> Result<Self, KvmStartError> {
        let method = Bitmap::new(&slots)?;
        Self::start(slots, Box::new(method))
    }

    /// Starts the log with manual protection (`KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2`): each take
    /// clears and protects only the pages that it reports.
    ///
    /// Nothing is protected at the start: every page counts as dirty until it is taken for the
    /// first time, if KVM offers that (Linux 5.8 and later).
    ///
    /// # Errors
    ///
    /// See [`KvmStartError`].
    pub fn manual_protect(slots: MemorySlots) -> Result<Self, KvmStartError> {
        let method = ManualProtect::new(&slots)?;
        Self::start(slots, Box::new(method))
    }

    /// Starts the log with one ring for each virtual processor. `rings` must have been enabled
    /// before the first one was created, and must contain the ring of every one.
    ///
    /// From now on, a processor stops with `KVM_EXIT_DIRTY_RING_FULL` when its ring is full: see
    /// [`harvest`](Self::harvest).
    ///
    /// # Errors
    ///
    /// See [`KvmStartError`].
    pub fn ring(slots: MemorySlots, rings: Arc<DirtyRings>) -> Result<Self, KvmStartError> {
        let method = Ring::new(&slots, rings)?;
        Self::start(slots, Box::new(method))
    }

    fn start(slots: MemorySlots, method: Box<dyn Method>) -> Result<Self, KvmStartError> {
        // From here on, dropping the log undoes what was done.
        let log = Self {
            pending: PageBitmap::empty(slots.pages()),
            slots,
            kernel: Mutex::new(KernelLog {
                method,
                stopped: false,
            }),
        };
        for slot in log.slots.iter() {
            let flags = slot.region.flags | KVM_MEM_LOG_DIRTY_PAGES;
            set_flags(log.slots.vm(), slot, flags).map_err(|source| KvmStartError::Slot {
                slot: slot.region.slot,
                source,
            })?;
        }
        Ok(log)
    }

    /// Makes pages dirty that this process has written itself, which KVM does not report.
    ///
    /// Call it after the write; if a device writes by direct memory access, call it when the pages
    /// are pinned, and drain as [`DirtyLog`] says. A monitor that collects its writes elsewhere
    /// (`vm-memory`'s `AtomicBitmap`) calls it with them before each round, and after the guest was
    /// paused.
    pub fn mark(&self, pages: PageRange) {
        self.pending.set_range(pages);
    }

    /// Makes room in the rings, if the log uses rings.
    ///
    /// Call it whenever `KVM_RUN` ends with `KVM_EXIT_DIRTY_RING_FULL`, on any thread, and then run
    /// the processor again: it has lost nothing. This also holds after the log was stopped. Rings
    /// of some thousand entries are enough; a smaller ring costs more exits.
    ///
    /// # Errors
    ///
    /// The processor cannot run on.
    pub fn harvest(&self) -> Result<(), DirtyError> {
        self.lock()
            .method
            .collect(&self.slots, PageRange::EMPTY, &self.pending)
    }

    fn lock(&self) -> MutexGuard<'_, KernelLog> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_started(&self) -> Result<MutexGuard<'_, KernelLog>, DirtyError> {
        let kernel = self.lock();
        if kernel.stopped {
            return Err(DirtyError::Stopped);
        }
        Ok(kernel)
    }
}

impl DirtyLog for KvmLog {
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        let range = range.intersect(self.pending.all());
        self.lock_started()?
            .method
            .collect(&self.slots, range, &self.pending)?;
        take_pending(&self.pending, range, dirty);
        Ok(())
    }

    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        let range = range.intersect(self.pending.all());
        self.lock_started()?
            .method
            .peek(&self.slots, range, &self.pending, dirty)
    }

    fn starts_clean(&self) -> bool {
        self.lock().method.starts_clean()
    }

    fn stop(&self) -> Result<(), DirtyError> {
        let mut kernel = self.lock();
        if std::mem::replace(&mut kernel.stopped, true) {
            return Ok(());
        }
        let mut result = Ok(());
        for slot in self.slots.iter() {
            if let Err(source) = set_flags(self.slots.vm(), slot, slot.region.flags) {
                let slot = slot.region.slot;
                result = result.and(Err(DirtyError::KvmStop { slot, source }));
            }
        }
        result.and(kernel.method.stop(&self.slots))
    }
}

impl Drop for KvmLog {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(error = %Report::new(&error), "cannot stop KVM's dirty log");
        }
    }
}
