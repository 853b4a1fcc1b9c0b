//! An empty machine that waits for a guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_linux::{CancelFlag, Process};
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{GuestDescription, GuestDisks};

use super::error::NoDisks;
use super::{DestinationDisks, DestinationProcess, Hardware};
use crate::disks::DiskComparison;
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
/// 1. [`DestinationDisks::compare`] if the guest has disks, [`prepare`], then
///    [`DestinationDisks::serve`] if some are copied.
/// 2. [`take_userfault`] if post-copy is possible, and [`DestinationProcess::filling_userfault`] if
///    the machine has private memory.
/// 3. [`deliver_frames`] if the source keeps frames, and [`DestinationDisks::connect`] for each
///    disk that is copied.
/// 4. [`DestinationProcess::check_receiving`] now and then while the guest runs at the source.
/// 5. [`DestinationDisks::end`] if disks were copied, then [`load_device_state`].
/// 6. [`resume`] after *commit*, and [`DestinationProcess::watch_for_end`] once the guest runs. If
///    it fails, [`DestinationProcess::never_ran`] decides whether the source may take the guest
///    back.
/// 7. [`DestinationProcess::complete`] when no page is missing, and [`release`] last.
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
/// [`prepare`]: Self::prepare
/// [`take_userfault`]: Self::take_userfault
/// [`deliver_frames`]: Self::deliver_frames
/// [`load_device_state`]: Self::load_device_state
/// [`resume`]: Self::resume
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

    /// The parts of the machine here, its processors included.
    fn hardware(&self) -> Hardware {
        Hardware::default()
    }

    /// The machine's memory, for writing.
    fn ram(&self) -> Arc<GuestRam>;

    /// The networks of the machine, to deliver frames that arrived for the guest at the source.
    /// Called once, when a source has announced such frames. An error does not affect the
    /// migration.
    fn deliver_frames(&mut self) -> Result<Option<Box<dyn FrameDelivery>>, GuestError> {
        Ok(None)
    }

    /// The machine's disks, if they are compared with the source's.
    fn disks(&mut self) -> Option<&mut dyn DestinationDisks> {
        None
    }

    /// The process that the machine is, if it is one of its own.
    fn process(&mut self) -> Option<&mut dyn DestinationProcess> {
        None
    }

    /// Prepares the machine to be filled: from now on it runs only after [`resume`](Self::resume).
    fn prepare(&mut self) -> Result<(), GuestError>;

    /// A userfaultfd of the process that holds the machine's memory, and the address of each RAM
    /// block in that process (bytes, in layout order). Nothing is registered yet; for a resumed
    /// migration it is the one that was left in the process.
    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError>;

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

    /// Leaves the userfaultfd in the guest's process, if there is one, so that faults wait instead
    /// of reading zeros, and forgets it: for a migration that another engine is to resume.
    fn abandon_userfault(&mut self);

    /// Gives back everything that was taken from the machine's process. Only
    /// called when every page is present or the guest will never run here.
    /// Idempotent.
    fn release(&mut self) -> Result<(), GuestError>;
}

/// What the engine does without the optional parts.
impl dyn DestinationGuest + '_ {
    /// Without [`disks`](DestinationGuest::disks) nothing is compared, and nothing copied.
    pub(crate) fn compare_disks(
        &mut self,
        disks: &GuestDisks,
    ) -> Result<DiskComparison, GuestError> {
        match (self.disks(), disks.copied().next()) {
            (Some(here), _) => here.compare(disks),
            (None, None) => Ok(DiskComparison::default()),
            (None, Some(_)) => Err(GuestError::new(NoDisks)),
        }
    }

    /// The disks, for a guest some of whose disks are copied.
    pub(crate) fn copied_disks(&mut self) -> Result<&mut dyn DestinationDisks, GuestError> {
        self.disks().ok_or_else(|| GuestError::new(NoDisks))
    }

    pub(crate) fn postcopy_obstacles(&mut self) -> Vec<GuestError> {
        let process = self.process();
        process.map_or_else(Vec::new, |process| process.postcopy_obstacles())
    }

    pub(crate) fn filling_userfault(&mut self) -> Result<Option<Arc<Userfault>>, GuestError> {
        self.process()
            .map_or(Ok(None), |process| process.filling_userfault())
    }

    pub(crate) fn check_receiving(&mut self) -> Result<(), GuestError> {
        self.process()
            .map_or(Ok(()), |process| process.check_receiving())
    }

    pub(crate) fn never_ran(&mut self) -> bool {
        self.process().is_some_and(|process| process.never_ran())
    }

    pub(crate) fn watch_for_end(&mut self) {
        if let Some(process) = self.process() {
            process.watch_for_end();
        }
    }

    pub(crate) fn is_shut_down(&mut self, limit: Duration) -> Option<bool> {
        self.process()
            .map_or(Some(false), |process| process.is_shut_down(limit))
    }

    pub(crate) fn has_shut_down(&mut self) -> bool {
        self.process()
            .is_some_and(|process| process.has_shut_down())
    }

    pub(crate) fn why_ended(&mut self) -> Option<String> {
        self.process()?.why_ended()
    }

    pub(crate) fn process_memory(&mut self) -> Option<(Arc<Process>, Vec<u64>)> {
        self.process()?.process_memory()
    }

    pub(crate) fn complete(&mut self) -> Option<String> {
        self.process()?.complete()
    }
}
