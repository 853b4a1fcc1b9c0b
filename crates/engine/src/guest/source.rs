//! A running guest that is to be moved away.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_linux::CancelFlag;
use hikkoshi_memory::GuestRam;
use hikkoshi_wire::{Domain, GuestDescription, GuestDisks};

use super::{Hardware, SourceDisks, SourceProcess};
use crate::disks::DiskContent;
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
/// 1. [`capture_frames`], unless frames are not kept.
/// 2. The [`disks`] are compared and copied, if there are any; see [`SourceDisks`].
/// 3. [`start_dirty_log`] (not in post-copy without pre-copy rounds), then [`drain`] any number of
///    times if the guest [needs it](Self::needs_drain).
/// 4. [`prepare_pause`], [`pause`]. Copies of disks end then.
/// 5. [`save_device_state`], [`read_at_resume`], [`SourceProcess::check_device_state`].
/// 6. [`SourceProcess::handing_over`] when *commit* is about to be sent, then
///    [`SourceProcess::check_handed_over`] now and then until the destination has every page.
/// 7. [`release`] last. If another engine is to resume the migration, or the machine's process has
///    ended with pages that the destination needs, [`SourceProcess::leave`] is called instead.
///
/// If the migration fails before *commit*, or the guest comes back, [`resume`] follows, and then
/// [`release`]. An adapter for a resumed migration gets [`SourceProcess::check_paused`] and
/// `handing_over` if the guest was or may have been handed over, `check_handed_over`, and
/// [`resume`] if it comes back; then one of the two of step 7.
///
/// [`describe`]: Self::describe
/// [`ram`]: Self::ram
/// [`needs_drain`]: Self::needs_drain
/// [`has_ended`]: Self::has_ended
/// [`capture_frames`]: Self::capture_frames
/// [`disks`]: Self::disks
/// [`start_dirty_log`]: Self::start_dirty_log
/// [`drain`]: Self::drain
/// [`prepare_pause`]: Self::prepare_pause
/// [`pause`]: Self::pause
/// [`save_device_state`]: Self::save_device_state
/// [`read_at_resume`]: Self::read_at_resume
/// [`resume`]: Self::resume
/// [`release`]: Self::release
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

    /// The parts of the guest's machine, its processors included.
    fn hardware(&self) -> Hardware {
        Hardware::default()
    }

    /// The guest's memory, for reading.
    fn ram(&self) -> Arc<GuestRam>;

    /// The networks of the guest, to keep frames that arrive for it while it is paused. Called
    /// once, before the guest is offered to the destination. `None` if there are none. An error
    /// does not affect the migration.
    fn capture_frames(&mut self) -> Result<Option<Box<dyn FrameCapture>>, GuestError> {
        Ok(None)
    }

    /// The guest's disks, if the destination has to compare or to get them.
    fn disks(&mut self) -> Option<&mut dyn SourceDisks> {
        None
    }

    /// The process that the machine is, if it is one of its own.
    fn process(&mut self) -> Option<&mut dyn SourceProcess> {
        None
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

    /// Resumes a paused guest, as if nothing had happened.
    ///
    /// Must work at any point: when [`pause`](Self::pause) was never called, and when `pause` or
    /// `save_device_state` failed half-way. A guest that its owner had paused stays paused.
    fn resume(&mut self) -> Result<(), GuestError>;

    /// Gives back everything that was taken from the guest's process.
    /// Idempotent.
    fn release(&mut self) -> Result<(), GuestError>;

    /// Whether the machine's process has ended, and the guest with it, if it was here.
    fn has_ended(&self) -> bool {
        false
    }
}

/// What the engine does without the optional parts.
impl dyn SourceGuest + '_ {
    pub(crate) fn offered_disks(&mut self) -> GuestDisks {
        let disks = self.disks().map(|disks| disks.offered());
        disks.unwrap_or_default()
    }

    pub(crate) fn disks_compared(&mut self) {
        if let Some(disks) = self.disks() {
            disks.compared();
        }
    }

    pub(crate) fn disk_content(&mut self) -> Result<DiskContent, GuestError> {
        let disks = self.disks();
        disks.map_or_else(|| Ok(DiskContent::default()), |disks| disks.content())
    }

    pub(crate) fn domain(&mut self) -> Option<Domain> {
        self.process()?.domain()
    }

    pub(crate) fn check_device_state(&mut self) -> Result<(), GuestError> {
        self.process()
            .map_or(Ok(()), |process| process.check_device_state())
    }

    pub(crate) fn check_paused(&mut self) -> Result<(), GuestError> {
        self.process()
            .map_or(Ok(()), |process| process.check_paused())
    }

    pub(crate) fn handing_over(&mut self) {
        if let Some(process) = self.process() {
            process.handing_over();
        }
    }

    pub(crate) fn check_handed_over(&mut self) -> Result<(), GuestError> {
        self.process()
            .map_or(Ok(()), |process| process.check_handed_over())
    }

    pub(crate) fn why_ended(&mut self) -> Option<String> {
        self.process()?.why_ended()
    }

    pub(crate) fn asynchronous_faults(&mut self) -> Option<AsynchronousFaults> {
        self.process()?.asynchronous_faults()
    }

    pub(crate) fn leave(&mut self) {
        if let Some(process) = self.process() {
            process.leave();
        }
    }
}
