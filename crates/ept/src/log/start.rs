//! Starting and stopping, for a range or all, while virtual processors run.

use thiserror::Error;

use super::{Form, pml};
use crate::address::{Gfn, GfnRange, Level};
use crate::atomic::Ordering;
use crate::bits::words_of;
use crate::entry::Entry;
use crate::flush::Flush;
use crate::guest::Guest;
use crate::memory::Memory;
use crate::processors::Processors;
use crate::rmap::Location;
use crate::walk::{replace, settled};

/// Why a log was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// The processor cannot do it.
    #[error("starting a log in form {0:?}: the processor lacks it; use write protection")]
    Unsupported(Form),
    /// A log of another form is on.
    #[error(
        "starting a log in form {wanted:?}: one in form {on:?} is on; stop it first, or add to it"
    )]
    OtherForm {
        /// The form asked for.
        wanted: Form,
        /// The form that is on.
        on: Form,
    },
    /// Memory for the logs of the virtual processors.
    #[error("starting a log: no frame left for a virtual processor's page-modification log")]
    NoMemory,
    /// The guest ends before.
    #[error("starting a log of {0:?}: the guest ends before")]
    OutOfRange(GfnRange),
}

impl<M: Memory> Guest<M> {
    /// Starts logging writes to `range` ([`Guest::all`] for the whole guest), or adds `range` to what
    /// is logged already.
    ///
    /// The log of what was not tracked before is empty at first; the rest stays as it is. When this returns, every later write is logged; of those made
    /// meanwhile, some may be. Waits for other threads' operations on this guest, and for the
    /// processors.
    ///
    /// # Errors
    ///
    /// See [`StartError`]; nothing has changed then.
    pub fn start_log(
        &self,
        form: Form,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
    ) -> Result<(), StartError> {
        if !self.all().covers(range) {
            return Err(StartError::OutOfRange(range));
        }
        let offered = match form {
            Form::WriteProtection => true,
            Form::DirtyFlags => self.capabilities.accessed_dirty,
            Form::Pml => self.capabilities.accessed_dirty && self.capabilities.pml,
        };
        if !offered {
            return Err(StartError::Unsupported(form));
        }
        let _control = self.log.control.lock();
        let first = match self.log.form() {
            None => true,
            Some(on) if on == form => false,
            Some(on) => return Err(StartError::OtherForm { wanted: form, on }),
        };
        if first && form == Form::Pml {
            pml::allocate_all(&self.memory, &self.log).map_err(|_| StartError::NoMemory)?;
        }
        // What was left behind where nothing is tracked.
        for (word, mask) in words_of(range) {
            self.log
                .dirty
                .take_word(word, mask & !self.log.tracked.word(word));
        }
        self.log.set_form(Some(form));
        if first && form == Form::Pml {
            // Before any dirty flag is cleared: a flag set by a processor that does not log yet would
            // hide the page.
            processors.set_pml(true);
        }
        self.log.tracked.set(range);
        // Operations that began without knowing all this have ended after the wait, and what they
        // mapped is there to be visited; later ones know.
        self.walkers.wait();
        // PML logs wherever the flag is clear: the pages beside the range get theirs set.
        let visited = if first && form == Form::Pml {
            self.all()
        } else {
            range
        };
        self.rearm_all(visited, &|leaf| !leaf.is_logged());
        // All of it, not only the leaves that changed: an obligation of before may not have been met yet,
        // and a processor that remembers an older leaf as written would write past the log.
        let mut flush = Flush::none();
        flush.add(self.plain_views(), visited);
        flush.add_whole(self.nested_views());
        self.discharge(flush, processors);
        Ok(())
    }

    /// Stops logging writes to `range`, and forgets what was logged there. When nothing is logged any
    /// more, the log is off.
    ///
    /// Waits for other threads' operations on this guest, and for the processors.
    pub fn stop_log(&self, range: GfnRange, processors: &(impl Processors + ?Sized)) {
        let range = range.intersect(self.all());
        let _control = self.log.control.lock();
        let Some(form) = self.log.form() else { return };
        self.log.tracked.clear(range);
        let last = self.log.tracked.is_empty();
        if last {
            self.log.set_form(None);
        }
        self.walkers.wait();
        // Allows writes again, sets flags: nothing that a processor would have to forget.
        self.rearm_all(range, &|leaf| leaf.is_logged());
        if form == Form::Pml {
            // Nothing of the range may be in a buffer still when it is tracked the next time.
            processors.drain(&|vcpu, index| self.drain_pml(vcpu, index));
        }
        if last && form == Form::Pml {
            processors.set_pml(false);
            // An exit handler may still be reading a buffer.
            self.walkers.wait();
            pml::release_all(&self.memory, &self.log);
        }
        self.log.dirty.take(range, |_, _| ());
    }

    /// Gives each leaf of `range`, in all views, the state of a page that nobody has written, where
    /// `which` says so.
    fn rearm_all(&self, range: GfnRange, which: &dyn Fn(Entry) -> bool) {
        let _inside = self.walkers.enter();
        // Downwards: a leaf that is split meanwhile is found as its pieces.
        for level in Level::LEAVES {
            self.rmap
                .each_in(&self.memory, level, range, &mut |gfn, location| {
                    self.rearm_leaf(level, gfn, location, which);
                });
        }
    }

    /// Rearms one leaf.
    fn rearm_leaf(
        &self,
        level: Level,
        gfn: Gfn,
        location: Location,
        which: &dyn Fn(Entry) -> bool,
    ) {
        let slot = location.slot(&self.memory);
        let nested = self.in_nested(location);
        loop {
            let old = settled(slot);
            if !old.is_leaf(level) || !which(old) {
                return;
            }
            // A nested view's entry may be mapping another guest frame by now: held busy while asking.
            if nested && !replace(slot, old, Entry::BUSY) {
                continue;
            }
            let gfn = if nested {
                self.origin_of(location).unwrap_or(gfn)
            } else {
                gfn
            };
            let span = GfnRange::from_len(gfn, level.pages());
            let new = self.armed(old, level, span.intersect(self.all()), nested);
            if nested {
                slot.store(new.0, Ordering::Release);
                return;
            }
            if new == old || replace(slot, old, new) {
                return;
            }
        }
    }
}
