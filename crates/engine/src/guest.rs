//! What the engine asks of a guest, on either side.
//!
//! A virtual-machine monitor takes part in a migration by implementing one of
//! the two traits here. The engine never knows what stands behind them: the
//! QEMU adapter does, from outside the process; a monitor of one's own may,
//! from inside.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_linux::Process;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{GuestDescription, Machine, Processors};

use hikkoshi_linux::Cancel;
use hikkoshi_memory::RamFiles;

/// What went wrong inside a guest adapter, in the adapter's own words.
///
/// The text says what was being done, to what, what went wrong and what to do
/// next; the engine adds only what became of the guest.
#[derive(Debug)]
pub struct GuestError(Box<dyn Error + Send + Sync>);

impl GuestError {
    /// Wraps an adapter's error.
    pub fn new(inner: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(inner.into())
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for GuestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A running guest that is to be moved away.
///
/// The engine calls the methods in this order: [`start_dirty_log`] (not in
/// post-copy without pre-copy rounds), [`drain`] any number of times, [`pause`],
/// [`save_device_state`], then
/// either [`resume`] (the migration failed) or nothing (it succeeded), and
/// [`release`] last, or [`leave`] where the migration is to be taken up again.
/// An adapter for that hears [`resume`] at most, and then one of these two.
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
/// use hikkoshi_engine::{Cancel, GuestError, SourceGuest};
/// use hikkoshi_memory::RamFiles;
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
///     ram: Arc<RamFiles>,
/// }
///
/// impl<M: Monitor> SourceGuest for Adapter<M> {
///     fn describe(&self) -> &GuestDescription {
///         &self.description
///     }
///     fn ram(&self) -> Arc<RamFiles> {
///         Arc::clone(&self.ram)
///     }
///     fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
///         self.monitor.log_writes().map_err(GuestError::new)
///     }
///     fn needs_drain(&self) -> bool {
///         false
///     }
///     fn drain(&mut self, _: &Cancel) -> Result<(), GuestError> {
///         Ok(())
///     }
///     fn pause(&mut self) -> Result<Instant, GuestError> {
///         self.monitor.pause().map_err(GuestError::new)?;
///         Ok(Instant::now())
///     }
///     fn save_device_state(&mut self, sink: &mut dyn Write, _: &Cancel) -> Result<(), GuestError> {
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
    /// `running` says whether the guest runs, as of [`pause`](Self::pause)
    /// once that was called; a guest that its owner paused stays paused at the
    /// destination.
    fn describe(&self) -> &GuestDescription;

    /// What the guest was given for processors. An adapter whose guests have
    /// the same ones everywhere need not say.
    fn processors(&self) -> Processors {
        Processors::default()
    }

    /// What the guest's machine consists of. An adapter whose machines are all
    /// alike, or that finds differences by itself, need not say.
    fn machine(&self) -> Machine {
        Machine::default()
    }

    /// The guest's memory, for reading.
    fn ram(&self) -> Arc<RamFiles>;

    /// Starts to log writes to the guest's memory.
    ///
    /// From the return of this call on, no write by a processor is missed. May
    /// be called once; the log ends with [`release`](Self::release).
    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError>;

    /// Whether devices write to the guest's memory in a way that the dirty log
    /// sees when a page is pinned, but not when the data lands. Asked once, after
    /// [`start_dirty_log`](Self::start_dirty_log). If so, the engine calls
    /// [`drain`](Self::drain) after it has taken the log of some pages and before
    /// it copies them. [`DirtyLog`] has the reason.
    fn needs_drain(&self) -> bool;

    /// Waits until every device write that was under way when this was called
    /// has landed. The processors run on, but may wait where they need the
    /// monitor; new device requests wait until the drain is over. Ends early, with an error, once `cancel` is set.
    ///
    /// A paused guest has no device writes under way: [`pause`](Self::pause)
    /// drains as well.
    fn drain(&mut self, cancel: &Cancel) -> Result<(), GuestError>;

    /// Stops the guest, with everything for saving its device state set up
    /// beforehand; gives the instant at which it stopped. Device writes under way
    /// have landed when this returns.
    ///
    /// On an error the guest runs on (or stays as its owner left it).
    fn pause(&mut self) -> Result<Instant, GuestError>;

    /// Saves the paused guest's device state into `sink`.
    ///
    /// May dirty guest memory: the last [`DirtyLog::take`] comes afterwards.
    ///
    /// Ends soon, with an error, once `give_up` is set: the migration was
    /// cancelled, or the guest has been paused for too long. It must be possible
    /// to [`resume`](Self::resume) the guest then.
    fn save_device_state(
        &mut self,
        sink: &mut dyn Write,
        give_up: &Cancel,
    ) -> Result<(), GuestError>;

    /// Lets a paused guest run again as if nothing had happened.
    ///
    /// Must work at any point: when [`pause`](Self::pause) was never called,
    /// and when `pause` or `save_device_state` failed half-way. A guest that
    /// its owner had paused stays paused.
    fn resume(&mut self) -> Result<(), GuestError>;

    /// Fails if the guest runs, though it was handed over, or may have been: what
    /// it does is no part of what the destination gets. Called before a migration
    /// that another engine has begun is gone on with.
    fn stands_still(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    /// Leaves everything in the guest's process as it is: the guest was handed
    /// over, and may come back, or the destination needs more of its memory.
    /// Another engine will go on from there, with an adapter of its own. Called
    /// instead of [`release`](Self::release).
    fn leave(&mut self) {}

    /// Gives back everything that was taken from the guest's process.
    /// Idempotent.
    fn release(&mut self) -> Result<(), GuestError>;

    /// Whether the machine's process is gone, and the guest with it, if it was
    /// here.
    fn has_ended(&self) -> bool {
        false
    }
}

/// What a thread of a machine's process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadName {
    /// What it is called.
    pub name: String,
    /// Which virtual processor it is, if it is one and only one.
    pub vcpu: Option<u32>,
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
/// use hikkoshi_engine::{Cancel, DestinationGuest, GuestError};
/// use hikkoshi_memory::RamFiles;
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
///     ram: Arc<RamFiles>,
///     /// Where each RAM block is mapped.
///     hosts: Vec<u64>,
///     userfault: Option<Arc<Userfault>>,
/// }
///
/// impl<M: Monitor> DestinationGuest for Adapter<M> {
///     fn describe(&self) -> &GuestDescription {
///         &self.description
///     }
///     fn ram(&self) -> Arc<RamFiles> {
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
///     fn resume(&mut self, running: bool, _: &Cancel) -> Result<Instant, GuestError> {
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
    /// The machine as it is here, to be compared with the source's.
    fn describe(&self) -> &GuestDescription;

    /// The processors that a guest would have here; see
    /// [`SourceGuest::processors`].
    fn processors(&self) -> Processors {
        Processors::default()
    }

    /// What the machine here consists of; see [`SourceGuest::machine`].
    fn machine(&self) -> Machine {
        Machine::default()
    }

    /// The machine's memory, for filling.
    fn ram(&self) -> Arc<RamFiles>;

    /// Readies the machine to be filled: from here on it never runs before
    /// [`resume`](Self::resume) says so.
    fn prepare(&mut self) -> Result<(), GuestError>;

    /// A userfaultfd of the process that holds the machine's memory, and where
    /// each RAM block begins in that process (bytes, one address a block, in
    /// layout order). Nothing is registered yet; but of an adapter for a
    /// migration that is taken up again it is the one that was left inside.
    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError>;

    /// Loads the device state. Touches guest memory: with post-copy, faults
    /// are answered while this runs.
    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError>;

    /// Lets the guest run; gives the instant from which it does.
    ///
    /// With `running == false` the guest stays paused (its owner had paused
    /// it at the source) and the call only settles the machine's state.
    ///
    /// May wait for pages, and ends early, with an error, once `give_up` is
    /// set: the guest runs nevertheless when they come. May be called again,
    /// by another engine with another adapter, for a guest that runs already.
    fn resume(&mut self, running: bool, give_up: &Cancel) -> Result<Instant, GuestError>;

    /// Whether it is sure, after a [`resume`](Self::resume) that has failed, that
    /// the guest has never run here and will not by itself: the monitor refused,
    /// and its state shows it. The source takes the guest back then.
    fn never_ran(&self) -> bool {
        false
    }

    /// The guest runs here, and pages of it may be missing: from now on the machine
    /// is listened to, for why it ends. Must not wait for the machine.
    fn attend(&mut self) {}

    /// Whether a machine that [has ended](Self::has_ended) did so because the guest
    /// has shut itself down, as far as that was heard since
    /// [`attend`](Self::attend).
    fn has_shut_down(&mut self) -> bool {
        false
    }

    /// Ends the machine's process, and the guest with it, for good: its migration
    /// was given up, and pages that it lacks will never come.
    fn kill(&mut self) -> Result<(), GuestError>;

    /// Whether the machine's process is gone, and the guest with it.
    fn has_ended(&self) -> bool {
        false
    }

    /// What a thread of the machine's process is: one that faults. `None` if
    /// there is no such thread (any more).
    ///
    /// Called while pages are missing: must not wait for the machine.
    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        let _ = thread;
        None
    }

    /// The process that holds the machine's memory, and where each RAM block
    /// begins in it (bytes, one address a block, in layout order), if the
    /// adapter can tell: huge pages are rebuilt there on request.
    fn memory_place(&self) -> Option<(Arc<Process>, Vec<u64>)> {
        None
    }

    /// Leaves the userfaultfd inside the guest's process, if there is one, so
    /// that faults wait instead of reading zeros, and forgets it: for a
    /// migration that is to be taken up again.
    fn abandon_userfault(&mut self);

    /// Gives back everything that was taken from the machine's process. Only
    /// called when every page is present or the guest will never run here.
    /// Idempotent.
    fn release(&mut self) -> Result<(), GuestError>;
}
