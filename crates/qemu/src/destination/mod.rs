//! The machine that takes a guest in.

mod error;
mod exit_watch;
pub(crate) mod exited;
mod guest;
mod huge_tmpfs;
mod load;
mod notes;
mod release;
mod run;
mod shutdown_listener;
mod userfault;
mod vcpus;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_engine::Cancel;
use hikkoshi_linux::Process;
use hikkoshi_memory::RamFiles;
use hikkoshi_userfault::ForeignUserfault;
use hikkoshi_wire::{Machine, Processors};

pub use self::error::{
    KillError, LoadError, PrepareError, ReleaseDestinationError, RunError, UserfaultError,
};
use self::exit_watch::ExitWatch;
pub use self::notes::{DestinationNotes, SharedNotes};
use self::shutdown_listener::ShutdownListener;
use self::vcpus::Vcpu;
use crate::attach::exclusive_access::{self, ExclusiveAccess};
use crate::attach::preflight::{AllowedTypes, Side};
use crate::attach::process;
use crate::attach::reopen::FileAccess;
use crate::attach::{AttachError, attach};
use crate::identity::{QemuIdentity, ReattachError};
use crate::qmp::Client;
use crate::settings::Settings;

/// A QEMU that waits for a guest; see [`DestinationGuest`].
#[derive(Debug)]
pub struct QemuDestination {
    /// `None` before a QEMU that was taken up has been talked to: it may say
    /// nothing before it gets a page.
    client: Option<Client>,
    /// Another program had begun this.
    reattached: bool,
    process: Arc<Process>,
    machine: Machine,
    ram: Arc<RamFiles>,
    identity: QemuIdentity,
    /// As they were when this was attached.
    processors: Processors,
    noted: SharedNotes,
    settings: Settings,
    /// For the device state: our end, QEMU has the other already.
    socket: Option<UnixStream>,
    userfault: Option<ForeignUserfault>,
    /// A guest was on its way here, at least.
    prepared: bool,
    loading: bool,
    loaded: bool,
    /// QEMU refused to run the guest that was loaded here, and never did.
    never_ran: bool,
    cancel: Option<Cancel>,
    /// Which thread runs which virtual processor.
    vcpus: Vec<Vcpu>,
    exit_watch: Option<ExitWatch>,
    /// While the guest runs here and pages may be missing.
    listener: Option<ShutdownListener>,
    _lock: ExclusiveAccess,
}

impl QemuDestination {
    /// Gets hold of the QEMU whose QMP socket is at `qmp`, started with
    /// `-incoming defer`.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; QEMU has not been touched then.
    pub fn attach(qmp: &Path) -> Result<Self, AttachError> {
        Self::attach_allowing(qmp, &AllowedTypes::default())
    }

    /// Like [`attach`](Self::attach), with devices that hikkoshi does not know.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; QEMU has not been touched then.
    pub fn attach_allowing(qmp: &Path, allowed: &AllowedTypes) -> Result<Self, AttachError> {
        let qemu = attach(qmp, Side::Destination, allowed)?;
        let identity = QemuIdentity::of(qmp, &qemu)?;
        Ok(Self {
            client: Some(qemu.client),
            reattached: false,
            process: qemu.process,
            machine: qemu.machine,
            ram: qemu.ram,
            processors: qemu.processors,
            noted: SharedNotes::new(DestinationNotes {
                identity: identity.clone(),
                settings: Settings::default(),
                userfault: None,
            }),
            identity,
            settings: Settings::default(),
            socket: None,
            userfault: None,
            prepared: false,
            loading: false,
            loaded: false,
            never_ran: false,
            cancel: None,
            vcpus: Vec::new(),
            exit_watch: None,
            listener: None,
            _lock: qemu.lock,
        })
    }

    /// Takes up a QEMU that has a guest, or would have one soon, when the program
    /// that took it in ended. QEMU is not talked to yet. `None` when it is gone.
    ///
    /// # Errors
    ///
    /// See [`ReattachError`]. The guest goes on waiting for its pages.
    pub fn reattach(notes: &DestinationNotes) -> Result<Option<Self>, ReattachError> {
        let identity = &notes.identity;
        let Some(process) = identity.process()? else {
            return Ok(None);
        };
        process::check_right_to_trace(&process)?;
        let lock = exclusive_access::acquire(&process)?;
        let ram = identity.open_ram_files(Some(&process), FileAccess::Write)?;
        let userfault = match notes.userfault {
            None => None,
            Some(number) => {
                let left = process::userfaults(&process)?;
                // Closed once everything was here. While something is missing
                // it is asked for (`userfault`), and must be there.
                let there = left.iter().any(|leftover| leftover.number == number);
                there
                    .then(|| ForeignUserfault::adopt(&process, number))
                    .transpose()?
            }
        };
        if let Some(userfault) = &userfault {
            userfault.keep_inside();
        }
        Ok(Some(Self {
            client: None,
            reattached: true,
            machine: Machine::default(),
            process,
            ram: Arc::new(ram),
            identity: identity.clone(),
            // They were compared before the guest was moved.
            processors: Processors::default(),
            noted: SharedNotes::new(notes.clone()),
            settings: notes.settings.clone(),
            socket: None,
            userfault,
            prepared: true,
            loading: true,
            loaded: true,
            never_ran: false,
            cancel: None,
            vcpus: Vec::new(),
            exit_watch: None,
            listener: None,
            _lock: lock,
        }))
    }

    /// What another program must know to go on, as of whenever it is looked at.
    pub fn noted(&self) -> SharedNotes {
        self.noted.clone()
    }

    /// Makes loading the device state end early, with an error, once `cancel`
    /// is set. (It is the one step that waits for the other side: for pages.)
    pub fn cancel_load_with(&mut self, cancel: Cancel) {
        self.cancel = Some(cancel);
    }

    /// Sets `cancel` when QEMU ends while it waits for a guest: nobody else
    /// would notice. With a guest on its way the calls for it fail.
    ///
    /// # Errors
    ///
    /// When there is no room for a thread.
    pub fn cancel_on_exit(&mut self, cancel: Cancel) -> io::Result<()> {
        self.exit_watch = Some(ExitWatch::start(&self.process, cancel)?);
        Ok(())
    }

    /// Whether QEMU is gone.
    pub fn has_ended(&self) -> bool {
        self.process.has_lost_memory()
    }

    /// Whether it can take another guest in as it is: nothing has arrived here. (Pages
    /// that were left by another guest would not be dropped where the next one has
    /// none.)
    pub fn is_unused(&self) -> bool {
        !self.prepared && !self.has_ended()
    }

    /// The number of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
