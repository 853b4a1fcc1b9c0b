//! The destination's QEMU: [`QemuDestination`].
//!
//! The methods are grouped by phase: preparing QEMU and loading the device state (`load.rs`), the
//! userfaultfd (`userfault.rs`), resuming the guest (`resume_guest.rs`), releasing QEMU
//! (`release.rs`). Disks that the source copies are written by QEMU's NBD server (`disks.rs`) and
//! flushed before the guest runs (`disk_flusher.rs`). They must fit, and others must be the same
//! (`compare_disks/`, `fitting_disks.rs`). Two threads watch QEMU: `exit_watch.rs` before a guest
//! arrives, `shutdown_listener.rs` while the guest runs and pages are missing. A destination whose
//! QEMU has ended is an [`ExitedDestination`](after_exit::ExitedDestination).

pub(crate) mod after_exit;
mod compare_disks;
mod disk_flusher;
pub(crate) mod disks;
mod error;
mod exit_watch;
mod fitting_disks;
mod guest;
mod load;
mod load_timeout;
pub(crate) mod piped;
mod qemu_output;
mod reattach_info;
mod release;
mod resume_guest;
mod shutdown_listener;
mod storage_daemon;
mod userfault;
mod vcpus;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_account::Side;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::{OomKills, Process};
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::RemoteUserfault;
use hikkoshi_wire::{Machine, Processors};

use self::disks::DiskServer;
pub use self::error::UserfaultError;
use self::error::{KillError, LoadError, PrepareError, ReleaseDestinationError, RunError};
use self::exit_watch::ExitWatch;
pub use self::reattach_info::{DestinationReattachInfo, SharedReattachInfo};
use self::shutdown_listener::ShutdownListener;
use self::vcpus::Vcpu;
use crate::attach::Overcommit;
use crate::attach::preflight::Allowed;
use crate::attach::{AttachError, Attached, attach};
use crate::destination::piped::{MachineOwner, PipedStream};
use crate::device_tree::is_tpm;
use crate::identity::{QemuIdentity, ReattachError};
use crate::migration_settings::Settings;
use crate::network::Announcer;
use crate::process;
use crate::process::exclusive_access::{self, ExclusiveAccess};
use crate::process::oom_kills;
use crate::process::reopen::FileAccess;
use crate::qmp::{Client, Monitor, MonitorSocket};

/// A QEMU that waits for an incoming guest; see
/// [`DestinationGuest`](hikkoshi_engine::DestinationGuest).
#[derive(Debug)]
pub struct QemuDestination {
    /// `None` after reattaching, until QEMU is needed: it may not answer before it
    /// gets a page.
    client: Option<Client>,
    monitor: Arc<dyn Monitor>,
    /// How the device state reaches a QEMU whose owner does not lend its monitor before the guest
    /// runs. `None`: by the monitor.
    piped: Option<PipedStream>,
    /// Whether another program began this migration.
    reattached: bool,
    process: Arc<Process>,
    machine: Machine,
    ram: Arc<GuestRam>,
    identity: QemuIdentity,
    /// The processors, read when attaching.
    processors: Processors,
    reattach_info: SharedReattachInfo,
    settings: Settings,
    /// Our end of the socket for the device state. QEMU has the other.
    socket: Option<UnixStream>,
    userfault: Option<RemoteUserfault>,
    /// What serves disks that are copied.
    disk_server: Option<DiskServer>,
    /// Whether a guest has been sent here, even in part.
    prepared: bool,
    loading: bool,
    loaded: bool,
    /// Whether QEMU refused to run the loaded guest, which has never run here.
    never_ran: bool,
    cancel: Option<CancelFlag>,
    /// The thread of each virtual processor.
    vcpus: Vec<Vcpu>,
    exit_watch: Option<ExitWatch>,
    /// Announces the guest when it runs.
    announcer: Option<Announcer>,
    /// The guest runs here, and QEMU has not been asked to announce it, too.
    announce_self: bool,
    /// Used while the guest runs here and pages may be missing.
    listener: Option<ShutdownListener>,
    /// How many processes the kernel had killed when this attached.
    oom_kills: Option<OomKills>,
    _lock: ExclusiveAccess,
}

impl QemuDestination {
    /// Attaches to the QEMU whose QMP socket is at `qmp`, started with
    /// `-incoming defer`.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; QEMU is unchanged.
    pub fn attach(qmp: &Path) -> Result<Self, AttachError> {
        let monitor = Arc::new(MonitorSocket::new(qmp));
        Self::attach_allowing(monitor, &Allowed::default(), Overcommit::default())
    }

    /// Like [`attach`](Self::attach), by any monitor, and also allows these unknown types, and
    /// perhaps too little free memory.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; QEMU is unchanged.
    pub fn attach_allowing(
        monitor: Arc<dyn Monitor>,
        allowed: &Allowed,
        overcommit: Overcommit,
    ) -> Result<Self, AttachError> {
        let qemu = attach(&*monitor, Side::Destination, allowed, None, overcommit)?;
        let identity = QemuIdentity::of_attached(&*monitor, &qemu)?;
        Ok(Self::from_attached(qemu, identity, monitor, None))
    }

    fn from_attached(
        qemu: Attached,
        identity: QemuIdentity,
        monitor: Arc<dyn Monitor>,
        piped: Option<PipedStream>,
    ) -> Self {
        let oom_kills = oom_kills::count(&qemu.process);
        Self {
            client: qemu.client,
            monitor,
            piped,
            reattached: false,
            process: qemu.process,
            machine: qemu.machine,
            ram: qemu.ram,
            processors: qemu.processors,
            reattach_info: SharedReattachInfo::new(DestinationReattachInfo {
                identity: identity.clone(),
                settings: Settings::default(),
                userfault: None,
                pipe: None,
                oom_kills: oom_kills::counts(oom_kills.as_ref()),
            }),
            oom_kills,
            identity,
            settings: Settings::default(),
            socket: None,
            userfault: None,
            disk_server: None,
            prepared: false,
            loading: false,
            loaded: false,
            never_ran: false,
            cancel: None,
            vcpus: Vec::new(),
            exit_watch: None,
            announcer: None,
            announce_self: false,
            listener: None,
            _lock: qemu.lock,
        }
    }

    /// Reattaches to the QEMU of a migration whose program has ended. The QEMU has a
    /// guest, or would soon have had one. `monitor` is that of the identity; no session is opened
    /// yet. `owner` returns what continues to create the machine from a pipe. `None` if QEMU has
    /// ended.
    ///
    /// # Errors
    ///
    /// See [`ReattachError`]. The guest continues to wait for its pages.
    pub fn reattach(
        reattach_info: &DestinationReattachInfo,
        monitor: Arc<dyn Monitor>,
        owner: impl FnOnce(&Path) -> Option<Box<dyn MachineOwner>>,
    ) -> Result<Option<Self>, ReattachError> {
        let identity = &reattach_info.identity;
        let Some(process) = identity.process()? else {
            return Ok(None);
        };
        process::check_right_to_trace(&process)?;
        let lock = exclusive_access::acquire(&process)?;
        let ram = identity.open_ram(Some(&process), FileAccess::Write)?;
        let userfault = match reattach_info.userfault {
            None => None,
            Some(number) => {
                let left = process::userfaults(&process)?;
                // It was closed when no page was missing any more. Otherwise
                // `userfault` needs it and fails if it does not exist.
                let there = left.iter().any(|stale| stale.number == number);
                there
                    .then(|| RemoteUserfault::adopt(&process, number))
                    .transpose()?
            }
        };
        if let Some(userfault) = &userfault {
            userfault.leave_open_on_drop();
        }
        let pipe = reattach_info.pipe.as_deref();
        let owner = pipe.and_then(|path| Some((path, owner(path)?)));
        let piped = owner.and_then(|(path, owner)| PipedStream::reopen(path, &process, owner));
        let qemu = identity.reattached(process, ram, lock);
        let mut destination = Self::from_attached(qemu, identity.clone(), monitor, piped);
        destination.reattached = true;
        (
            destination.prepared,
            destination.loading,
            destination.loaded,
        ) = (true, true, true);
        destination.reattach_info = SharedReattachInfo::new(DestinationReattachInfo {
            // Those before have not ended it.
            oom_kills: oom_kills::counts(destination.oom_kills.as_ref()),
            ..reattach_info.clone()
        });
        destination.settings = reattach_info.settings.clone();
        destination.userfault = userfault;
        Ok(Some(destination))
    }

    /// What another program needs to know to reattach. Stays up to date.
    pub fn reattach_info(&self) -> SharedReattachInfo {
        self.reattach_info.clone()
    }

    /// Makes loading the device state fail once `cancel` is set. (It is the only step
    /// that waits for the source: for pages.)
    pub fn cancel_load_with(&mut self, cancel: CancelFlag) {
        self.cancel = Some(cancel);
    }

    /// Sets `cancel` if QEMU ends while it waits for a guest, which would otherwise not
    /// be noticed. While a guest is being received, the other methods fail then.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn cancel_on_exit(&mut self, cancel: CancelFlag) -> io::Result<()> {
        self.exit_watch = Some(ExitWatch::start(&self.process, cancel)?);
        Ok(())
    }

    /// Whether QEMU has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_lost_memory()
    }

    /// Whether this QEMU can receive another guest: nothing has arrived here. (Pages of
    /// an earlier guest would not be dropped where the next guest has none.)
    pub fn is_unused(&self) -> bool {
        !self.prepared && !self.has_ended()
    }

    fn has_tpm(&self) -> bool {
        let mut devices = self.machine.devices.iter();
        devices.any(|device| is_tpm(&device.kind))
    }

    /// The number of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
