//! Starting and stopping a log, for a range or for all pages, while vCPUs run.

use thiserror::Error;

use super::{CHUNK_PAGES, Log, LogMethod, pml};
use crate::address::{GfnRange, Level};
use crate::atomic::Ordering;
use crate::bitmap::words_of;
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::processors::Processors;

/// Why a log was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The processor does not support the method.
    #[error("cannot start a log by {0}: the processor does not support it; use write protection")]
    Unsupported(LogMethod),
    /// A log of another method is active.
    #[error(
        "cannot start a log by {wanted}: a log by {on} is active; stop it first, or use its method"
    )]
    OtherMethod {
        /// The requested method.
        wanted: LogMethod,
        /// The method of the active log.
        on: LogMethod,
    },
    /// There is not enough memory for the PML buffers of the vCPUs.
    #[error("cannot start a log: no free frame for a vCPU's page-modification log")]
    NoMemory,
    /// The range ends after the guest's memory.
    #[error("cannot start a log of {0:?}: the range ends after the guest's memory")]
    OutOfRange(GfnRange),
    /// Another thread is starting or stopping a log.
    #[error(
        "cannot start a log: another thread is starting or stopping one; try again when it has finished"
    )]
    Busy,
}

/// Why a log was not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// Another thread is starting or stopping a log.
    #[error(
        "cannot stop a log: another thread is starting or stopping one; try again when it has finished"
    )]
    Busy,
}

/// The exclusive right to start or stop a log; released on drop.
///
/// This is deliberately not a lock that a thread can wait for. Its holder waits for the vCPUs, and
/// one of those may be the thread that would wait here, with interrupts disabled.
struct ChangeGuard<'a>(&'a Log);

impl Log {
    fn change(&self) -> Option<ChangeGuard<'_>> {
        self.changing
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then(|| ChangeGuard(self)) // lazily: a guard that is created is also dropped
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.changing.store(0, Ordering::Release);
    }
}

impl<M: HostMemory> Guest<M> {
    /// Starts logging writes to `range` ([`Guest::all`] for the whole guest), or adds `range` to
    /// the active log.
    ///
    /// The log of pages that were not tracked before is empty; the rest of the log does not change.
    /// Every write after this returns is logged; a write during the call may or may not be. Waits
    /// for operations of other threads on this guest and for the processors, without holding a
    /// lock.
    ///
    /// # Errors
    ///
    /// See [`StartError`]; on an error nothing has changed.
    pub fn start_log(
        &self,
        method: LogMethod,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
    ) -> Result<(), StartError> {
        if !self.all().covers(range) {
            return Err(StartError::OutOfRange(range));
        }
        let offered = match method {
            LogMethod::WriteProtection => true,
            LogMethod::DirtyFlags => self.capabilities.accessed_dirty,
            LogMethod::Pml => self.capabilities.accessed_dirty && self.capabilities.pml,
        };
        if !offered {
            return Err(StartError::Unsupported(method));
        }
        let _guard = self.log.change().ok_or(StartError::Busy)?;
        let first = match self.log.method() {
            None => true,
            Some(on) if on == method => false,
            Some(on) => return Err(StartError::OtherMethod { wanted: method, on }),
        };
        if first && method == LogMethod::Pml {
            pml::allocate_all(&self.memory, &self.log).map_err(|_| StartError::NoMemory)?;
        }
        // Remove stale bits of pages that are not tracked yet.
        for (word, mask) in words_of(range) {
            self.log
                .dirty
                .take_word(word, mask & !self.log.tracked.word(word));
        }
        self.log.set_method(Some(method));
        if first && method == LogMethod::Pml {
            // Do this before any dirty flag is cleared. If a processor that does not log yet set
            // the flag, the page would be missed.
            pml::switch_on(&self.log);
            processors.set_pml(true);
        }
        self.log.tracked.set(range);
        // After this, all operations that started without this state have ended, and the leaves
        // they mapped are visited below. Later operations see the state.
        self.rcu.synchronize();
        // PML logs every page whose dirty flag is clear: the flags of pages outside the range are
        // set.
        let visited = if first && method == LogMethod::Pml {
            self.all()
        } else {
            range
        };
        self.rearm_range(visited, &|leaf| !leaf.is_logged());
        // Flush the whole range, not only the changed leaves. An earlier flush may still be
        // pending, and a processor with an older cached translation that is dirty would write
        // without logging.
        let mut flush = self.empty_flush();
        flush.add(self.plain_views(), visited);
        flush.add_whole_views(self.nested_views());
        self.flush(flush, processors);
        Ok(())
    }

    /// Stops logging writes to `range` and discards the log of that range. When no page is tracked
    /// any more, logging is off.
    ///
    /// Waits for operations of other threads on this guest and for the processors, without holding
    /// a lock.
    ///
    /// # Errors
    ///
    /// [`StopError::Busy`]; on an error nothing has changed.
    pub fn stop_log(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
    ) -> Result<(), StopError> {
        let range = range.intersect(self.all());
        let _guard = self.log.change().ok_or(StopError::Busy)?;
        let Some(method) = self.log.method() else {
            return Ok(());
        };
        self.log.tracked.clear(range);
        let last = self.log.tracked.is_empty();
        if last {
            self.log.set_method(None);
        }
        self.rcu.synchronize();
        // This only permits writes again and sets flags: no cached translation becomes invalid.
        self.rearm_range(range, &|leaf| leaf.is_logged());
        if method == LogMethod::Pml {
            // The buffers must not hold entries of the range when it is tracked the next time.
            processors.drain_pml(&|vcpu, index| self.drain_pml(vcpu, index));
        }
        if last && method == LogMethod::Pml {
            pml::switch_off(&self.log);
            processors.set_pml(false);
            // An exit handler may still be reading a buffer.
            self.rcu.synchronize();
            pml::release_all(&self.memory, &self.log);
        }
        self.log.dirty.take(range, |_, _| ());
        Ok(())
    }

    /// Puts each leaf of `range`, in all views, for which `which` returns true into the state for
    /// pages that were not written yet.
    fn rearm_range(&self, range: GfnRange, which: &dyn Fn(Entry) -> bool) {
        for part in range.chunks(CHUNK_PAGES) {
            let _guard = self.rcu.read();
            // From large to small: if a leaf is split meanwhile, its child leaves are found. No
            // leaves are merged meanwhile: `merge` checks the tracked set and refuses.
            for level in Level::LEAVES {
                self.rmap
                    .for_each_in(&self.memory, level, part, &mut |gfn, location| {
                        let span = GfnRange::from_len(gfn, level.pages()).intersect(self.all());
                        let nested = location.is_nested();
                        self.change_leaf(level, gfn, location, |leaf| {
                            which(leaf).then(|| self.arm_leaf(leaf, level, span, nested))
                        });
                    });
            }
        }
    }
}
