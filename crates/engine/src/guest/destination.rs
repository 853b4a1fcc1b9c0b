//! An empty machine that waits for a guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_linux::{CancelFlag, Process};
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{GuestDescription, GuestDisks, Machine, Processors};

use super::error::NoDisks;
use crate::disks::{DiskComparison, DiskConnection};
use crate::guest_error::GuestError;
use crate::network_frames::FrameDelivery;
use crate::report::FaultKind;

/// A thread that faults: of a machine's process, or of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadName {
    /// Its name.
    pub name: String,
    /// Whose faults it takes.
    pub kind: FaultKind,
}

/// An empty machine that waits for a guest.
///
/// # Order of the calls
///
/// The engine may query the machine at any time ([`describe`], [`ram`], [`has_ended`],
/// [`name_thread`] and so on). What changes it is called in this order:
///
/// 1. [`compare_disks`] if the guest has disks, [`prepare`], then [`serve_disks`] if some are
///    copied.
/// 2. [`take_userfault`] if post-copy is possible, and [`filling_userfault`] if the machine has
///    private memory.
/// 3. [`deliver_frames`] if the source keeps frames, and [`connect_disk`] for each disk.
/// 4. [`check_receiving`] now and then while the guest runs at the source.
/// 5. [`end_disks`] if disks were copied, then [`load_device_state`].
/// 6. [`resume`] after *commit*, and [`watch_for_end`] once the guest runs. If it fails,
///    [`never_ran`] decides whether the source may take the guest back.
/// 7. [`complete`] when no page is missing, and [`release`] last.
///
/// If the migration fails before *commit*, [`release`] follows at once. If another engine is to
/// resume it, [`abandon_userfault`] is called instead of step 7, after [`kill`] if the guest's
/// memory here is corrupted. [`kill`] and [`release`] end a migration that is given up. An adapter
/// for a resumed migration gets [`take_userfault`] if pages are missing, and then what follows from
/// step 6 on.
///
/// [`describe`]: Self::describe
/// [`ram`]: Self::ram
/// [`has_ended`]: Self::has_ended
/// [`name_thread`]: Self::name_thread
/// [`compare_disks`]: Self::compare_disks
/// [`prepare`]: Self::prepare
/// [`serve_disks`]: Self::serve_disks
/// [`take_userfault`]: Self::take_userfault
/// [`filling_userfault`]: Self::filling_userfault
/// [`deliver_frames`]: Self::deliver_frames
/// [`connect_disk`]: Self::connect_disk
/// [`check_receiving`]: Self::check_receiving
/// [`end_disks`]: Self::end_disks
/// [`load_device_state`]: Self::load_device_state
/// [`resume`]: Self::resume
/// [`watch_for_end`]: Self::watch_for_end
/// [`never_ran`]: Self::never_ran
/// [`complete`]: Self::complete
/// [`release`]: Self::release
/// [`abandon_userfault`]: Self::abandon_userfault
/// [`kill`]: Self::kill
///
/// # Example
///
/// An adapter inside a monitor. `examples/in-memory-guest` is a complete one, and moves.
///
/// ```
/// use std::io;
/// use std::sync::Arc;
/// use std::time::Instant;
///
/// use hikkoshi_engine::{CancelFlag, DestinationGuest, GuestError};
/// use hikkoshi_memory::GuestRam;
/// use hikkoshi_userfault::{Features, Userfault};
/// use hikkoshi_wire::GuestDescription;
///
/// /// What the monitor can do. Its processors run only after `run`.
/// trait Monitor: Send {
///     fn load_devices(&mut self, state: &[u8]) -> io::Result<()>;
///     fn run(&mut self) -> io::Result<()>;
///     fn end(&mut self) -> io::Result<()>;
/// }
///
/// struct Adapter<M> {
///     monitor: M,
///     description: GuestDescription,
///     ram: Arc<GuestRam>,
///     /// Where each RAM block is mapped.
///     hosts: Vec<u64>,
///     userfault: Option<Arc<Userfault>>,
/// }
///
/// impl<M: Monitor> DestinationGuest for Adapter<M> {
///     fn describe(&self) -> &GuestDescription {
///         &self.description
///     }
///     fn ram(&self) -> Arc<GuestRam> {
///         Arc::clone(&self.ram)
///     }
///     fn prepare(&mut self) -> Result<(), GuestError> {
///         Ok(())
///     }
///     fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
///         let userfault =
///             Userfault::create_for_self(Features::FOR_MISSING).map_err(GuestError::new)?;
///         let userfault = self.userfault.insert(Arc::new(userfault));
///         Ok((Arc::clone(userfault), self.hosts.clone()))
///     }
///     fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError> {
///         self.monitor.load_devices(&state).map_err(GuestError::new)
///     }
///     fn resume(&mut self, running: bool, _: &CancelFlag) -> Result<Instant, GuestError> {
///         if running {
///             self.monitor.run().map_err(GuestError::new)?;
///         }
///         Ok(Instant::now())
///     }
///     fn kill(&mut self) -> Result<(), GuestError> {
///         self.monitor.end().map_err(GuestError::new)
///     }
///     fn abandon_userfault(&mut self) {
///         // Open as long as this process: missing pages do not read as zeros.
///         std::mem::forget(self.userfault.take());
///     }
///     fn release(&mut self) -> Result<(), GuestError> {
///         self.userfault = None;
///         Ok(())
///     }
/// }
/// ```
pub trait DestinationGuest: Send {
    /// The machine here, to be compared with the source's.
    fn describe(&self) -> &GuestDescription;

    /// The processors that a guest would have here; see
    /// [`SourceGuest::processors`](crate::SourceGuest::processors).
    fn processors(&self) -> Processors {
        Processors::default()
    }

    /// The parts of the machine here; see
    /// [`SourceGuest::machine`](crate::SourceGuest::machine).
    fn machine(&self) -> Machine {
        Machine::default()
    }

    /// The machine's memory, for writing.
    fn ram(&self) -> Arc<GuestRam>;

    /// The networks of the machine, to deliver frames that arrived for the guest at the source.
    /// Called once, when a source has announced such frames. An error does not affect the
    /// migration.
    fn deliver_frames(&mut self) -> Result<Option<Box<dyn FrameDelivery>>, GuestError> {
        Ok(None)
    }

    /// Why the guest cannot be moved here by post-copy or hybrid, as far as can be found out
    /// without changing anything.
    fn postcopy_obstacles(&self) -> Vec<GuestError> {
        Vec::new()
    }

    /// Prepares the machine to be filled: from now on it runs only after [`resume`](Self::resume).
    fn prepare(&mut self) -> Result<(), GuestError>;

    /// A userfaultfd of the process that holds the machine's memory, and the address of each RAM
    /// block in that process (bytes, in layout order). Nothing is registered yet; for a resumed
    /// migration it is the one that was left in the process.
    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError>;

    /// Another userfaultfd of that process, for filling its private memory before the guest runs
    /// here. Only this process may have it open, so that memory which is registered with it is
    /// unregistered if this process is killed. `None`: pages are written instead, which takes
    /// longer.
    fn filling_userfault(&mut self) -> Result<Option<Arc<Userfault>>, GuestError> {
        Ok(None)
    }

    /// Compares the source's disks with those here: whether they are the same ones, or fit, if they
    /// are copied. Changes nothing. Called before [`prepare`](Self::prepare), so that a guest that
    /// is refused leaves the machine to the next one. The default compares nothing, and copies
    /// nothing.
    fn compare_disks(&mut self, disks: &GuestDisks) -> Result<DiskComparison, GuestError> {
        match disks.copied().next() {
            None => Ok(DiskComparison::default()),
            Some(_) => Err(GuestError::new(NoDisks)),
        }
    }

    /// Lets the source's machine write to those of these disks that are copied, from
    /// [`connect_disk`](Self::connect_disk) to [`end_disks`](Self::end_disks). Called after
    /// [`prepare`](Self::prepare); [`release`](Self::release) ends it, too.
    fn serve_disks(&mut self, disks: &GuestDisks) -> Result<(), GuestError> {
        let _ = disks;
        Err(GuestError::new(NoDisks))
    }

    /// A connection to what serves the disk `number` of these.
    fn connect_disk(&mut self, number: usize) -> Result<DiskConnection, GuestError> {
        let _ = number;
        Err(GuestError::new(NoDisks))
    }

    /// The copies are complete, and the guest is paused at the source: the disks are the machine's
    /// own again. Called before [`load_device_state`](Self::load_device_state), while the guest is
    /// paused, so it must be quick.
    fn end_disks(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Whether the machine can still take the guest; an error ends the migration, and says why not.
    /// Called now and then while the guest runs at the source and its memory is received. Must not
    /// wait for the machine.
    fn check_receiving(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Loads the device state. This accesses guest memory: with post-copy, faults are handled
    /// meanwhile.
    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError>;

    /// Resumes the guest; returns the time at which it was resumed.
    ///
    /// With `running == false` the guest stays paused (its owner had paused it at the source), and
    /// the call only sets the machine's state.
    ///
    /// May wait for pages, and ends early, with an error, once `give_up` is set: the guest still
    /// runs when they arrive. May be called again, by another engine with another adapter, for a
    /// guest that already runs.
    fn resume(&mut self, running: bool, give_up: &CancelFlag) -> Result<Instant, GuestError>;

    /// Whether it is certain, after a [`resume`](Self::resume) that failed, that the guest has
    /// never run here and will not by itself: the monitor refused, and its state shows it. The
    /// source then takes the guest back.
    fn never_ran(&self) -> bool {
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

    /// Whether a machine that [has ended](Self::has_ended) did so because the guest has shut itself
    /// down, as far as that was seen since [`watch_for_end`](Self::watch_for_end).
    fn has_shut_down(&mut self) -> bool {
        false
    }

    /// Why a machine that [has ended](Self::has_ended) did so, if the adapter knows.
    fn why_ended(&self) -> Option<String> {
        None
    }

    /// Ends the machine's process, and the guest with it: its migration was given up, and its
    /// missing pages will never arrive.
    fn kill(&mut self) -> Result<(), GuestError>;

    /// Whether the machine's process has ended, and the guest with it.
    fn has_ended(&self) -> bool {
        false
    }

    /// The thread `thread`, one that faults: of the machine's process, or a worker of the kernel.
    /// `None` if there is no such thread (any more).
    ///
    /// Called while pages are missing: must not wait for the machine.
    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        let _ = thread;
        None
    }

    /// The process that holds the machine's memory, and the address of each RAM block in it (bytes,
    /// in layout order), if the adapter knows them: huge pages are rebuilt there on request.
    fn process_memory(&self) -> Option<(Arc<Process>, Vec<u64>)> {
        None
    }

    /// Leaves the userfaultfd in the guest's process, if there is one, so that faults wait instead
    /// of reading zeros, and forgets it: for a migration that another engine is to resume.
    fn abandon_userfault(&mut self);

    /// Every page of the guest is here: does what its owner was asked for besides, such as making
    /// it persistent. Returns what of that was not done, with what to do about it, for people; it
    /// is reported on both sides, and changes nothing else. Called before the source is informed
    /// that it is not needed any more, by another engine again if this one was killed.
    fn complete(&mut self) -> Option<String> {
        None
    }

    /// Gives back everything that was taken from the machine's process. Only
    /// called when every page is present or the guest will never run here.
    /// Idempotent.
    fn release(&mut self) -> Result<(), GuestError>;
}
