//! A machine that is a process of its own, with an owner other than the engine: optional parts of
//! the two adapters. A monitor that embeds the engine needs none of them.

use std::sync::Arc;
use std::time::Duration;

use hikkoshi_linux::Process;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::Domain;

#[cfg(doc)]
use super::{DestinationGuest, SourceGuest};
use crate::guest_error::GuestError;
use crate::report::AsynchronousFaults;

/// The process that a guest leaves. Others can use it meanwhile, such as a management daemon, and
/// it may outlive the engine, or end before it.
pub trait SourceProcess {
    /// What the destination's management daemon needs to create the guest's machine. `None`: no
    /// daemon owns the guest.
    fn domain(&self) -> Option<Domain> {
        None
    }

    /// Checks that the saved state belongs to the memory that was sent. Called once after
    /// [`save_device_state`](SourceGuest::save_device_state), while the destination loads the
    /// state. After an error the guest is resumed here.
    fn check_device_state(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Fails if the guest runs although it was, or may have been, handed over: what it does now is
    /// lost to the destination. Called before a migration of another engine is resumed.
    fn check_paused(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// *Commit* is about to be sent, or was sent by another engine: the guest may run elsewhere
    /// from now on, and must not run here. Called while it is paused, so it must not wait.
    fn handing_over(&mut self) {}

    /// Fails if something was done to the guest since [`handing_over`](Self::handing_over) that
    /// makes its memory useless to the destination: then no more of it is sent. Called now and
    /// then; must not wait.
    fn check_handed_over(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Why the machine's process has ended, or is about to, if that is known; for people. May wait
    /// for a moment.
    fn why_ended(&mut self) -> Option<String> {
        None
    }

    /// Whether the guest uses KVM's asynchronous page faults, for the account; `None` if this
    /// adapter does not find out. Called after [`release`](SourceGuest::release).
    fn asynchronous_faults(&mut self) -> Option<AsynchronousFaults> {
        None
    }

    /// Leaves everything in the guest's process as it is: the guest was handed over, and may come
    /// back, or the destination needs more of its memory. Another engine will continue, with a new
    /// adapter. Called instead of [`release`](SourceGuest::release).
    fn leave(&mut self) {}
}

/// The process that a guest arrives in. It has an owner, and may end by itself.
pub trait DestinationProcess {
    /// Why the guest cannot be moved here by post-copy or hybrid, as far as can be found out
    /// without changing anything.
    fn postcopy_obstacles(&mut self) -> Vec<GuestError> {
        Vec::new()
    }

    /// Another userfaultfd of that process, for filling its private memory before the guest runs
    /// here. Only this process may have it open, so that memory which is registered with it is
    /// unregistered if this process is killed. `None`: pages are written instead, which takes
    /// longer.
    fn filling_userfault(&mut self) -> Result<Option<Arc<Userfault>>, GuestError> {
        Ok(None)
    }

    /// Whether the machine can still take the guest; an error ends the migration, and says why not.
    /// Called now and then while the guest runs at the source and its memory is received. Must not
    /// wait for the machine.
    fn check_receiving(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Whether it is certain, after a [`resume`](DestinationGuest::resume) that failed, that the
    /// guest has never run here and will not by itself: the monitor refused, and its state shows
    /// it. The source then takes the guest back.
    fn never_ran(&mut self) -> bool {
        false
    }

    /// The guest runs here, and pages of it may be missing: watch the machine from now on for the
    /// reason why it ends. Must not wait for the machine.
    fn watch_for_end(&mut self) {}

    /// Whether the guest has shut itself down, and its machine still exists; `None`: not known.
    /// Called once all of its pages are here. By default no.
    ///
    /// May take as long as `limit`: nothing is read from the links meanwhile.
    fn is_shut_down(&mut self, limit: Duration) -> Option<bool> {
        let _ = limit;
        Some(false)
    }

    /// Whether a machine that [has ended](DestinationGuest::has_ended) did so because the guest has
    /// shut itself down, as far as that was seen since [`watch_for_end`](Self::watch_for_end).
    fn has_shut_down(&mut self) -> bool {
        false
    }

    /// Why a machine that [has ended](DestinationGuest::has_ended) did so, if the adapter knows.
    fn why_ended(&mut self) -> Option<String> {
        None
    }

    /// The process that holds the machine's memory, and the address of each RAM block in it (bytes,
    /// in layout order), if the adapter knows them: huge pages are rebuilt there on request.
    fn process_memory(&mut self) -> Option<(Arc<Process>, Vec<u64>)> {
        None
    }

    /// Every page of the guest is here: does what its owner was asked for besides, such as making
    /// it persistent. Returns what of that was not done, with what to do about it, for people; it
    /// is reported on both sides, and changes nothing else. Called before the source is informed
    /// that it is not needed any more, by another engine again if this one was killed.
    fn complete(&mut self) -> Option<String> {
        None
    }
}
