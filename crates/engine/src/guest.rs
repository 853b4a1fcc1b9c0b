//! The two traits that a virtual-machine monitor implements to take part in a migration:
//! [`SourceGuest`] and [`DestinationGuest`].
//!
//! The QEMU adapter implements them from outside QEMU's process. Your own monitor can implement
//! them inside it.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use crate::report::{AsynchronousFaults, FaultKind};
use hikkoshi_dirty::DirtyLog;
use hikkoshi_linux::Process;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{Disk, Domain, GuestDescription, Machine, Processors};
use thiserror::Error;

use crate::disks::{DiskConnection, DiskProgress};
use crate::guest_error::GuestError;
use crate::network_frames::{FrameCapture, FrameDelivery};
use hikkoshi_linux::CancelFlag;
use hikkoshi_memory::GuestRam;

/// A running guest that is to be moved away.
///
/// The engine calls the methods in this order: [`start_dirty_log`] (not in post-copy without
/// pre-copy rounds), [`drain`] any number of times, [`pause`], [`save_device_state`], then
/// [`resume`] if the migration failed, and [`release`] last. If another engine is to resume the
/// migration, [`leave`] is called instead of [`release`]. An adapter for a resumed migration gets
/// at most [`resume`], and then one of these two.
///
/// [`start_dirty_log`]: SourceGuest::start_dirty_log
/// [`drain`]: SourceGuest::drain
/// [`pause`]: SourceGuest::pause
/// [`save_device_state`]: SourceGuest::save_device_state
/// [`resume`]: SourceGuest::resume
/// [`release`]: SourceGuest::release
/// [`leave`]: SourceGuest::leave
///
/// # Example
///
/// An adapter inside a monitor whose devices do not write to guest memory by themselves.
/// `examples/in-memory-guest` is a complete one, and moves.
///
/// ```
/// use std::io::{self, Write};
/// use std::sync::Arc;
/// use std::time::Instant;
///
/// use hikkoshi_dirty::DirtyLog;
/// use hikkoshi_engine::{CancelFlag, GuestError, SourceGuest};
/// use hikkoshi_memory::GuestRam;
/// use hikkoshi_wire::GuestDescription;
///
/// /// What the monitor can do.
/// trait Monitor: Send {
///     fn log_writes(&mut self) -> io::Result<Arc<dyn DirtyLog>>;
///     fn pause(&mut self) -> io::Result<()>;
///     fn save_devices(&mut self, sink: &mut dyn Write) -> io::Result<()>;
///     fn run(&mut self) -> io::Result<()>;
///     fn stop_logging(&mut self) -> io::Result<()>;
/// }
///
/// struct Adapter<M> {
///     monitor: M,
///     description: GuestDescription,
///     ram: Arc<GuestRam>,
/// }
///
/// impl<M: Monitor> SourceGuest for Adapter<M> {
///     fn describe(&self) -> &GuestDescription {
///         &self.description
///     }
///     fn ram(&self) -> Arc<GuestRam> {
///         Arc::clone(&self.ram)
///     }
///     fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
///         self.monitor.log_writes().map_err(GuestError::new)
///     }
///     fn needs_drain(&self) -> bool {
///         false
///     }
///     fn drain(&mut self, _: &CancelFlag) -> Result<(), GuestError> {
///         Ok(())
///     }
///     fn pause(&mut self) -> Result<Instant, GuestError> {
///         self.monitor.pause().map_err(GuestError::new)?;
///         Ok(Instant::now())
///     }
///     fn save_device_state(
///         &mut self,
///         sink: &mut dyn Write,
///         _: &CancelFlag,
///     ) -> Result<(), GuestError> {
///         self.monitor.save_devices(sink).map_err(GuestError::new)
///     }
///     fn resume(&mut self) -> Result<(), GuestError> {
///         self.monitor.run().map_err(GuestError::new)
///     }
///     fn release(&mut self) -> Result<(), GuestError> {
///         self.monitor.stop_logging().map_err(GuestError::new)
///     }
/// }
/// ```
pub trait SourceGuest: Send {
    /// The machine as the destination must provide it.
    ///
    /// `running` is whether the guest runs; from [`pause`](Self::pause) on, whether it ran at that
    /// time. A guest that its owner has paused stays paused at the destination.
    fn describe(&self) -> &GuestDescription;

    /// The processors that the guest was given. The default is for adapters whose guests have the
    /// same processors everywhere.
    fn processors(&self) -> Processors {
        Processors::default()
    }

    /// The parts of the guest's machine. The default is for adapters whose machines are all alike,
    /// or that find differences themselves.
    fn machine(&self) -> Machine {
        Machine::default()
    }

    /// What the destination's management daemon needs to create the guest's machine. `None`: no
    /// daemon owns the guest.
    fn domain(&self) -> Option<Domain> {
        None
    }

    /// The guest's memory, for reading.
    fn ram(&self) -> Arc<GuestRam>;

    /// The networks of the guest, to keep frames that arrive for it while it is paused. Called
    /// once, before the guest is offered to the destination. `None` if there are none. An error
    /// does not affect the migration.
    fn capture_frames(&mut self) -> Result<Option<Box<dyn FrameCapture>>, GuestError> {
        Ok(None)
    }

    /// The disks whose content is copied to the destination: at most
    /// [`MAX_DISKS`](crate::MAX_DISKS). None by default.
    fn disks(&self) -> Vec<Disk> {
        Vec::new()
    }

    /// Makes the connection over which the machine copies the disk `number` of
    /// [`disks`](Self::disks): the machine gets one end as a client, and the other one is returned.
    /// The machine uses it from [`open_disk`](Self::open_disk) on. If the engine ends it, what the
    /// machine waits for must fail soon.
    fn connect_disk(&mut self, number: usize) -> Result<DiskConnection, GuestError> {
        let _ = number;
        Err(GuestError::new(NoDisks))
    }

    /// Has the machine set up that connection, which carries its bytes now. Called for each disk
    /// before the first one is copied: a server does not wait long for a client to begin. Ends
    /// early, with an error, once `cancel` is set.
    fn open_disk(&mut self, number: usize, cancel: &CancelFlag) -> Result<(), GuestError> {
        let _ = (number, cancel);
        Err(GuestError::new(NoDisks))
    }

    /// Begins to copy that disk, whose connection is open. The guest runs. When all is copied, each
    /// write of the guest reaches both disks before it is complete.
    /// [`complete_disks`](Self::complete_disks) ends the copies; so do [`resume`](Self::resume) and
    /// [`release`](Self::release), whatever they have copied. Ends early, with an error, once
    /// `cancel` is set.
    fn copy_disk(&mut self, number: usize, cancel: &CancelFlag) -> Result<(), GuestError> {
        let _ = (number, cancel);
        Err(GuestError::new(NoDisks))
    }

    /// How far the copies are; an error says why one has failed. Called a few times a second.
    fn disk_progress(&mut self) -> Result<Vec<DiskProgress>, GuestError> {
        Ok(Vec::new())
    }

    /// Ends the copies of a guest that was [paused](Self::pause): both sides' disks have the same
    /// content when this returns. Fails if one is not complete. Ends early, with an error, once
    /// `give_up` is set; [`resume`](Self::resume) must be possible then. Called only if there are
    /// [`disks`](Self::disks).
    fn complete_disks(&mut self, give_up: &CancelFlag) -> Result<(), GuestError> {
        let _ = give_up;
        Err(GuestError::new(NoDisks))
    }

    /// Starts to log writes to the guest's memory.
    ///
    /// When this call has returned, no write by a processor is missed. It may be called once; the
    /// log ends with [`release`](Self::release).
    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError>;

    /// Whether devices write to guest memory in a way that the dirty log sees when a page is
    /// pinned, but not when the data lands. Called once, after
    /// [`start_dirty_log`](Self::start_dirty_log). If so, the engine calls [`drain`](Self::drain)
    /// after it has taken the log of some pages and before it copies them. [`DirtyLog`] explains
    /// why.
    fn needs_drain(&self) -> bool;

    /// Waits until every device write has landed that was in progress when this was called. The
    /// processors keep running, but may wait where they need the monitor; new device requests wait
    /// until the drain is over. Ends early, with an error, once `cancel` is set.
    ///
    /// A paused guest has no device writes in progress: [`pause`](Self::pause) drains as well.
    fn drain(&mut self, cancel: &CancelFlag) -> Result<(), GuestError>;

    /// The RAM blocks that the monitor reads when it resumes the guest at the destination, by
    /// number. It would wait for each of their pages, so a few are sent before that.
    fn read_at_resume(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Does what takes time and can be done while the guest runs, shortly before
    /// [`pause`](Self::pause): checks, settings, files. Nothing has to be done here: `pause` must
    /// work without it.
    ///
    /// On an error the guest keeps running. After a success [`resume`](Self::resume) undoes it, if
    /// the guest is not paused after all.
    fn prepare_pause(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Pauses the guest, after everything for saving its device state was set up; returns the time
    /// at which it paused. Device writes that were in progress have landed when this returns.
    ///
    /// On an error the guest keeps running (or stays as its owner left it). While disks are copied,
    /// it may be [`resume`](Self::resume) that resumes it then.
    fn pause(&mut self) -> Result<Instant, GuestError>;

    /// Saves the paused guest's device state into `sink`.
    ///
    /// May dirty guest memory: the last [`DirtyLog::take`] comes afterwards.
    ///
    /// Ends soon, with an error, once `give_up` is set: the migration was cancelled, or the guest
    /// has been paused for too long. [`resume`](Self::resume) must be possible then.
    fn save_device_state(
        &mut self,
        sink: &mut dyn Write,
        give_up: &CancelFlag,
    ) -> Result<(), GuestError>;

    /// Checks that the saved state belongs to the memory that was sent. Called once after
    /// [`save_device_state`](Self::save_device_state), while the destination loads the state. After
    /// an error the guest is resumed here.
    fn check_device_state(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Resumes a paused guest, as if nothing had happened.
    ///
    /// Must work at any point: when [`pause`](Self::pause) was never called, and when `pause` or
    /// `save_device_state` failed half-way. A guest that its owner had paused stays paused.
    fn resume(&mut self) -> Result<(), GuestError>;

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
    /// adapter does not find out. Called after [`release`](Self::release).
    fn asynchronous_faults(&self) -> Option<AsynchronousFaults> {
        None
    }

    /// Leaves everything in the guest's process as it is: the guest was handed over, and may come
    /// back, or the destination needs more of its memory. Another engine will continue, with a new
    /// adapter. Called instead of [`release`](Self::release).
    fn leave(&mut self) {}

    /// Gives back everything that was taken from the guest's process.
    /// Idempotent.
    fn release(&mut self) -> Result<(), GuestError>;

    /// Whether the machine's process has ended, and the guest with it, if it was here.
    fn has_ended(&self) -> bool {
        false
    }
}

/// The adapter copies no disks.
#[derive(Debug, Error)]
#[error("copying the guest's disks: this adapter does not copy disks")]
struct NoDisks;

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
/// Order of the calls: [`prepare`], then, if post-copy is possible,
/// [`take_userfault`], [`load_device_state`], [`resume`], [`release`].
///
/// [`prepare`]: DestinationGuest::prepare
/// [`take_userfault`]: DestinationGuest::take_userfault
/// [`load_device_state`]: DestinationGuest::load_device_state
/// [`resume`]: DestinationGuest::resume
/// [`release`]: DestinationGuest::release
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
    /// [`SourceGuest::processors`].
    fn processors(&self) -> Processors {
        Processors::default()
    }

    /// The parts of the machine here; see [`SourceGuest::machine`].
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

    /// Checks that these disks of the source can be copied to disks here; changes nothing. The
    /// error names everything that prevents it: a disk that is not here, or has another size.
    /// Called before [`prepare`](Self::prepare), so that a guest that is refused leaves the machine
    /// to the next one.
    fn check_disks(&mut self, disks: &[Disk]) -> Result<(), GuestError> {
        let _ = disks;
        Err(GuestError::new(NoDisks))
    }

    /// Lets the source's machine write to these disks, from [`connect_disk`](Self::connect_disk) to
    /// [`end_disks`](Self::end_disks). Called after [`prepare`](Self::prepare);
    /// [`release`](Self::release) ends it, too.
    fn serve_disks(&mut self, disks: &[Disk]) -> Result<(), GuestError> {
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

    /// Whether a machine that [has ended](Self::has_ended) did so because the guest has shut itself
    /// down, as far as that was seen since [`watch_for_end`](Self::watch_for_end).
    fn has_shut_down(&mut self) -> bool {
        false
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
