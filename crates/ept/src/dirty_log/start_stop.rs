//! Starting and stopping, for a range or all, while virtual processors run.

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
    /// The processor cannot do it.
    #[error("starting a log in form {0:?}: the processor lacks it; use write protection")]
    Unsupported(LogMethod),
    /// A log of another form is on.
    #[error(
        "starting a log in form {wanted:?}: one in form {on:?} is on; stop it first, or add to it"
    )]
    OtherMethod {
        /// The form asked for.
        wanted: LogMethod,
        /// The form that is on.
        on: LogMethod,
    },
    /// Memory for the logs of the virtual processors.
    #[error("starting a log: no frame left for a virtual processor's page-modification log")]
    NoMemory,
    /// The guest ends before.
    #[error("starting a log of {0:?}: the guest ends before")]
    OutOfRange(GfnRange),
    /// Another thread is starting or stopping.
    #[error(
        "starting a log: another thread is starting or stopping one; try again when it is done"
    )]
    Busy,
}

/// Why a log was not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StopError {
    /// Another thread is starting or stopping.
    #[error(
        "stopping a log: another thread is starting or stopping one; try again when it is done"
    )]
    Busy,
}

/// The right to start or stop; ends when dropped.
///
/// Not a lock that one could wait for: its holder waits for the virtual processors, and one of them might
/// be the one that waits, with interrupts off.
struct Changing<'a>(&'a Log);

impl Log {
    fn change(&self) -> Option<Changing<'_>> {
        self.changing
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then(|| Changing(self)) // not made, and dropped, if it is not ours
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.changing.store(0, Ordering::Release);
    }
}

impl<M: HostMemory> Guest<M> {
    /// Starts logging writes to `range` ([`Guest::all`] for the whole guest), or adds `range` to what
    /// is logged already.
    ///
    /// The log of what was not tracked before is empty at first; the rest stays as it is. When this
    /// returns, every later write is logged; of those made meanwhile, some may be. Waits for other
    /// threads' operations on this guest, and for the processors; holds no lock meanwhile.
    ///
    /// # Errors
    ///
    /// See [`StartError`]; nothing has changed then.
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
        let _changing = self.log.change().ok_or(StartError::Busy)?;
        let first = match self.log.method() {
            None => true,
            Some(on) if on == method => false,
            Some(on) => return Err(StartError::OtherMethod { wanted: method, on }),
        };
        if first && method == LogMethod::Pml {
            pml::allocate_all(&self.memory, &self.log).map_err(|_| StartError::NoMemory)?;
        }
        // What was left behind where nothing is tracked.
        for (word, mask) in words_of(range) {
            self.log
                .dirty
                .take_word(word, mask & !self.log.tracked.word(word));
        }
        self.log.set_method(Some(method));
        if first && method == LogMethod::Pml {
            // Before any dirty flag is cleared: a flag set by a processor that does not log yet would
            // hide the page.
            pml::switch_on(&self.log);
            processors.set_pml(true);
        }
        self.log.tracked.set(range);
        // Operations that began without knowing all this have ended after the wait, and what they
        // mapped is there to be visited; later ones know.
        self.rcu.synchronize();
        // PML logs wherever the flag is clear: the pages beside the range get theirs set.
        let visited = if first && method == LogMethod::Pml {
            self.all()
        } else {
            range
        };
        self.rearm_range(visited, &|leaf| !leaf.is_logged());
        // All of it, not only the leaves that changed: an obligation of before may not have been met yet,
        // and a processor that remembers an older leaf as written would write past the log.
        let mut flush = self.empty_flush();
        flush.add(self.plain_views(), visited);
        flush.add_whole_views(self.nested_views());
        self.flush(flush, processors);
        Ok(())
    }

    /// Stops logging writes to `range`, and forgets what was logged there. When nothing is logged any
    /// more, the log is off.
    ///
    /// Waits for other threads' operations on this guest, and for the processors; holds no lock meanwhile.
    ///
    /// # Errors
    ///
    /// [`StopError::Busy`]; nothing has changed then.
    pub fn stop_log(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
    ) -> Result<(), StopError> {
        let range = range.intersect(self.all());
        let _changing = self.log.change().ok_or(StopError::Busy)?;
        let Some(method) = self.log.method() else {
            return Ok(());
        };
        self.log.tracked.clear(range);
        let last = self.log.tracked.is_empty();
        if last {
            self.log.set_method(None);
        }
        self.rcu.synchronize();
        // Allows writes again, sets flags: nothing that a processor would have to forget.
        self.rearm_range(range, &|leaf| leaf.is_logged());
        if method == LogMethod::Pml {
            // Nothing of the range may be in a buffer still when it is tracked the next time.
            processors.drain(&|vcpu, index| self.drain_pml(vcpu, index));
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

    /// Gives each leaf of `range`, in all views, the state of a page that nobody has written, where
    /// `which` says so.
    fn rearm_range(&self, range: GfnRange, which: &dyn Fn(Entry) -> bool) {
        for part in range.chunks(CHUNK_PAGES) {
            let _guard = self.rcu.read();
            // Downwards: a leaf that is split meanwhile is found as its pieces. None is put together:
            // `merge` knows what is tracked, and refuses.
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
