//! A running guest that is to be moved away.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_linux::CancelFlag;
use hikkoshi_memory::GuestRam;
use hikkoshi_wire::{Domain, GuestDescription, GuestDisks, Machine, Processors};

use super::error::NoDisks;
use crate::disks::{DiskConnection, DiskContent, DiskProgress};
use crate::guest_error::GuestError;
use crate::network_frames::FrameCapture;
use crate::report::AsynchronousFaults;

/// A running guest that is to be moved away.
///
/// # Order of the calls
///
/// The engine may query the guest at any time ([`describe`], [`ram`], [`needs_drain`],
/// [`has_ended`] and so on). What changes it is called in this order:
///
/// 1. [`capture_frames`], unless frames are not kept, and [`disks_compared`].
/// 2. If disks are copied: [`connect_disk`] and [`open_disk`] for each one, [`limit_disks`] and
///    [`copy_disk`] for each one, then [`limit_disks`] and [`disk_progress`] until all are in sync.
/// 3. [`start_dirty_log`] (not in post-copy without pre-copy rounds), then [`drain`] any number of
///    times if the guest [needs it](Self::needs_drain).
/// 4. [`prepare_pause`], [`pause`], and [`complete_disks`] if disks are copied.
/// 5. [`save_device_state`], [`read_at_resume`], [`check_device_state`].
/// 6. [`handing_over`] when *commit* is about to be sent, then [`check_handed_over`] now and then
///    until the destination has every page.
/// 7. [`release`] last. If another engine is to resume the migration, or the machine's process has
///    ended with pages that the destination needs, [`leave`] is called instead.
///
/// If the migration fails before *commit*, or the guest comes back, [`resume`] follows, and then
/// [`release`]. An adapter for a resumed migration gets [`check_paused`] and [`handing_over`] if
/// the guest was or may have been handed over, [`check_handed_over`], and [`resume`] if it comes
/// back; then one of the two of step 7. [`asynchronous_faults`] is called after all others.
///
/// [`describe`]: Self::describe
/// [`ram`]: Self::ram
/// [`needs_drain`]: Self::needs_drain
/// [`has_ended`]: Self::has_ended
/// [`capture_frames`]: Self::capture_frames
/// [`disks_compared`]: Self::disks_compared
/// [`connect_disk`]: Self::connect_disk
/// [`open_disk`]: Self::open_disk
/// [`copy_disk`]: Self::copy_disk
/// [`limit_disks`]: Self::limit_disks
/// [`disk_progress`]: Self::disk_progress
/// [`start_dirty_log`]: Self::start_dirty_log
/// [`drain`]: Self::drain
/// [`prepare_pause`]: Self::prepare_pause
/// [`pause`]: Self::pause
/// [`complete_disks`]: Self::complete_disks
/// [`save_device_state`]: Self::save_device_state
/// [`read_at_resume`]: Self::read_at_resume
/// [`check_device_state`]: Self::check_device_state
/// [`check_paused`]: Self::check_paused
/// [`handing_over`]: Self::handing_over
/// [`check_handed_over`]: Self::check_handed_over
/// [`resume`]: Self::resume
/// [`release`]: Self::release
/// [`leave`]: Self::leave
/// [`asynchronous_faults`]: Self::asynchronous_faults
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

    /// The guest's disks, which the destination compares with its own. At most
    /// [`MAX_COPIED_DISKS`](crate::MAX_COPIED_DISKS) are copied. The default is for adapters whose
    /// guests have no disks, or that compare them themselves.
    fn disks(&self) -> GuestDisks {
        GuestDisks::default()
    }

    /// The destination has compared the disks, or did not: removes what was added to them for
    /// that.
    fn disks_compared(&mut self) {}

    /// Makes the connection over which the machine copies the disk `number` of those [that are
    /// copied](hikkoshi_wire::GuestDisks::copied): the machine gets one end as a client, and the
    /// other one is returned. The machine uses it from [`open_disk`](Self::open_disk) on. If the
    /// engine ends it, what the machine waits for must fail soon.
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

    /// How many bytes a second the copies may send, all together; `None`: no limit. **The guest's
    /// own writes to a disk that is copied must not wait for it**, and a disk that is in sync has
    /// no limit. Used from the next [`copy_disk`](Self::copy_disk) or
    /// [`disk_progress`](Self::disk_progress) on.
    fn limit_disks(&mut self, bytes_per_second: Option<u64>) {
        let _ = bytes_per_second;
    }

    /// About how many bytes the copies of the [`disks`](Self::disks) send.
    fn disk_content(&mut self) -> Result<DiskContent, GuestError> {
        Ok(DiskContent::default())
    }

    /// How far the copies are; an error says why one has failed. Called a few times a second.
    fn disk_progress(&mut self) -> Result<Vec<DiskProgress>, GuestError> {
        Ok(Vec::new())
    }

    /// Ends the copies of a guest that was [paused](Self::pause): both sides' disks have the same
    /// content when this returns. Fails if one is not complete. Ends early, with an error, once
    /// `give_up` is set; [`resume`](Self::resume) must be possible then. Called only if disks are
    /// copied.
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
    /// pinned, but not when the data lands. Called after
    /// [`start_dirty_log`](Self::start_dirty_log), once or more often; the answer must not change.
    /// If so, the engine calls [`drain`](Self::drain) after it has taken the log of some pages and
    /// before it copies them. [`DirtyLog`] explains why.
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
