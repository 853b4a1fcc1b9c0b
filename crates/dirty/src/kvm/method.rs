//! What the three ways to read KVM's log do.

use std::fmt::Debug;
use std::io;

use hikkoshi_pages::{PageBitmap, PageRange};
use thiserror::Error;

use super::slots::MemorySlots;
use crate::capability_error::CapabilityError;
use crate::log::DirtyError;

/// A way to read KVM's log.
pub(super) trait Method: Debug + Send {
    /// Moves the dirty pages of `range` from the kernel's log to `pending`, and perhaps others. The
    /// kernel has protected them again when this returns. On an error, no page is lost.
    fn collect(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
    ) -> Result<(), DirtyError>;

    /// Reports the maximal runs of `range` that are dirty in the kernel's log or in `pending`. They
    /// stay dirty in one of them.
    fn peek(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
        dirty: &mut dyn FnMut(PageRange),
    ) -> Result<(), DirtyError> {
        self.collect(slots, range, pending)?;
        pending.runs(range).for_each(dirty);
        Ok(())
    }

    /// See [`DirtyLog::starts_clean`](crate::DirtyLog::starts_clean).
    fn starts_clean(&self) -> bool {
        true
    }

    /// Undoes what was changed for this method, after logging has ended for all slots.
    fn stop(&mut self, slots: &MemorySlots) -> Result<(), DirtyError>;
}

/// Why KVM's dirty log could not be started. Nothing is changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvmStartError {
    /// A capability could not be used.
    #[error("starting KVM's dirty log")]
    Capability(#[from] CapabilityError),
    /// Logging could not be enabled for a slot.
    #[error("enabling KVM's dirty log for memory slot {slot}")]
    Slot {
        /// The slot's number.
        slot: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// The dirty rings could not be emptied.
    #[error("emptying KVM's dirty rings")]
    Rings(#[source] DirtyError),
}
