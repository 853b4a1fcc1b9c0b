//! The guest that is moved away.

pub(crate) mod drain;
mod error;
mod guest;
mod pause;
pub(crate) mod ram_files;
mod release;
mod resume;
mod save;
pub(crate) mod undo;
pub(crate) mod undo_record;

use std::io;
use std::path::Path;
use std::sync::Arc;

use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_engine::{Cancel, Mode};
use hikkoshi_linux::{HostAddr, Process};
use hikkoshi_memory::RamFiles;
use hikkoshi_userfault::{Features, ForeignUserfault, close_remote};
use hikkoshi_wire::{GuestDescription, Machine, Processors};
use serde::{Deserialize, Serialize};

pub use self::error::{PauseError, ReleaseSourceError, ResumeError, SaveError, StartLogError};
use self::undo_record::{UndoRecord, UndoRecorder};
use crate::attach::exclusive_access::{self, ExclusiveAccess};
use crate::attach::leftovers::is_dirty_log;
use crate::attach::preflight::{self, AllowedTypes, Side};
use crate::attach::process;
use crate::attach::reopen::FileAccess;
use crate::attach::{AttachError, Attached, attach};
use crate::identity::{QemuIdentity, ReattachError};
use crate::qmp::monitor::{self, connected};
use crate::qmp::{Client, ConnectError};
use crate::stream::DeviceStateReader;

/// How far the switchover has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwitchoverStage {
    /// The guest is not stopped by us.
    NotStarted,
    /// QEMU's migration has been started.
    Pausing,
    /// The whole device state has been handed on. From here on the guest may
    /// come to run elsewhere, and only [`QemuSource::resume`] says that not.
    Saved,
}

/// What another program must know to go on with a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceNotes {
    /// Where it is.
    #[serde(rename = "place")]
    pub identity: QemuIdentity,
    /// What there is to undo.
    pub undo: UndoRecord,
}

/// What is held of a QEMU besides its monitor.
#[derive(Debug)]
struct QemuResources {
    process: Arc<Process>,
    ram: Arc<RamFiles>,
    /// Where each block begins in the process, in layout order.
    addresses: Vec<u64>,
    description: GuestDescription,
    /// As they were when this was attached.
    processors: Processors,
}

/// A running QEMU guest that is to be moved away; see [`SourceGuest`].
#[derive(Debug)]
pub struct QemuSource {
    /// `None` before a QEMU that was taken up has been talked to: what it takes
    /// to send the pages of a guest that has gone is asked of the system.
    client: Option<Client>,
    qemu: QemuResources,
    stage: SwitchoverStage,
    reader: Option<DeviceStateReader>,
    log: Option<Arc<PagemapLog>>,
    /// Whether disks write to memory behind the log.
    needs_drain: bool,
    userfault: Option<ForeignUserfault>,
    identity: QemuIdentity,
    undo: UndoRecord,
    journal: UndoRecorder,
    stuck_in_postmigrate: bool,
    /// What the machine consisted of when it was attached to.
    machine: Machine,
    /// How the guest is to travel, once that is known.
    mode: Option<Mode>,
    allowed: AllowedTypes,
    /// Nothing is given back: another engine goes on.
    detached: bool,
    _lock: ExclusiveAccess,
}

impl QemuSource {
    /// Gets hold of the guest whose QMP socket is at `qmp`, and checks that it
    /// can be moved.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest has not been touched then.
    pub fn attach(qmp: &Path) -> Result<Self, AttachError> {
        Self::attach_allowing(qmp, &AllowedTypes::default())
    }

    /// Like [`attach`](Self::attach), with devices that hikkoshi does not know.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest has not been touched then.
    pub fn attach_allowing(qmp: &Path, allowed: &AllowedTypes) -> Result<Self, AttachError> {
        let qemu = attach(qmp, Side::Source, allowed)?;
        let identity = QemuIdentity::of(qmp, &qemu)?;
        let Attached {
            client,
            process,
            ram,
            addresses,
            description,
            processors,
            lock,
            machine,
        } = qemu;
        Ok(Self {
            client: Some(client),
            qemu: QemuResources {
                process,
                ram,
                addresses,
                description,
                processors,
            },
            stage: SwitchoverStage::NotStarted,
            reader: None,
            log: None,
            needs_drain: false,
            userfault: None,
            identity,
            undo: UndoRecord::default(),
            journal: UndoRecorder::default(),
            stuck_in_postmigrate: false,
            machine,
            mode: None,
            allowed: allowed.clone(),
            detached: false,
            _lock: lock,
        })
    }

    /// Checks whether the guest can be moved by this mode: pre-copy rounds and
    /// post-copy each have their own limits. Looked at again right before the
    /// guest is paused.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest has not been touched.
    pub fn check_mode(&mut self, mode: Mode) -> Result<(), AttachError> {
        self.mode = Some(mode);
        if mode != Mode::Postcopy {
            preflight::check_tracking(self.qemu.ram.layout())?;
        }
        match &mut self.client {
            Some(client) => Ok(preflight::check_mode(client, mode, &self.allowed)?),
            None => Ok(()),
        }
    }

    /// Takes up a guest that another program had handed over, or was about to.
    /// QEMU is not talked to yet. `None` when it is gone: see
    /// [`RamFileSource`](crate::Remains).
    ///
    /// # Errors
    ///
    /// See [`ReattachError`].
    pub fn reattach(notes: &SourceNotes) -> Result<Option<Self>, ReattachError> {
        let identity = &notes.identity;
        let Some(process) = identity.process()? else {
            return Ok(None);
        };
        process::check_right_to_trace(&process)?;
        let lock = exclusive_access::acquire(&process)?;
        let ram = identity.open_ram_files(Some(&process), FileAccess::Read)?;
        for leftover in process::userfaults(&process)? {
            // It holds nobody up, and goes with the next try if this one fails.
            if is_dirty_log(&leftover)
                && let Err(error) = close_remote(&process, leftover.number)
            {
                tracing::warn!(%error, "ending the dirty log of the engine before");
            }
        }
        Ok(Some(Self {
            client: None,
            qemu: QemuResources {
                process,
                ram: Arc::new(ram),
                addresses: identity.addresses(),
                description: identity.description.clone(),
                // They were compared before the guest was moved.
                processors: Processors::default(),
            },
            stage: SwitchoverStage::Saved,
            reader: None,
            log: None,
            needs_drain: false,
            userfault: None,
            identity: identity.clone(),
            undo: notes.undo.clone(),
            journal: UndoRecorder::default(),
            stuck_in_postmigrate: false,
            machine: Machine::default(),
            mode: None,
            allowed: AllowedTypes::default(),
            detached: false,
            _lock: lock,
        }))
    }

    /// What another program must know to go on, as of now.
    pub fn notes(&self) -> SourceNotes {
        SourceNotes {
            identity: self.identity.clone(),
            undo: self.undo.clone(),
        }
    }

    /// What another process needs to know to undo what this one does to QEMU,
    /// as of now. See [`undo`](crate::source::undo()).
    pub fn undo_record(&self) -> &UndoRecord {
        &self.undo
    }

    /// Calls `keep` with the record for [`undo`](crate::source::undo()): now, and from
    /// now on whenever it changes, *before* what it tells of is done. Without
    /// that record the guest is not stopped.
    ///
    /// # Errors
    ///
    /// What `keep` has said.
    pub fn on_undo_record(
        &mut self,
        keep: impl FnMut(&UndoRecord) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        self.journal = UndoRecorder::new(keep);
        self.journal.write(&self.undo)
    }

    /// Tells of something that was undone: at worst it is undone once more.
    fn record_undone(&mut self) {
        if let Err(error) = self.journal.write(&self.undo) {
            tracing::warn!(%error, "writing down that there is nothing left to undo");
        }
    }

    /// The number of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.process.pid()
    }

    /// Whether a guest that its owner had paused was brought back, but to
    /// `postmigrate`: paused, whole, and in a state that QEMU leaves only by
    /// running it (`cont`). QEMU 7.2 does that; 10.0 does not.
    pub fn is_stuck_in_postmigrate(&self) -> bool {
        self.stuck_in_postmigrate
    }

    fn start_log(&mut self) -> Result<Arc<dyn DirtyLog>, StartLogError> {
        if self.log.is_some() {
            return Err(StartLogError::Twice);
        }
        hikkoshi_dirty::support()?;
        self.needs_drain = preflight::needs_drain(connected(&mut self.client)?)?;
        let userfault = ForeignUserfault::take_from(&self.qemu.process, Features::FOR_DIRTY_LOG)?;
        let hosts: Vec<HostAddr> = self.qemu.addresses.iter().copied().map(HostAddr).collect();
        // On an error the userfaultfd is given back by being dropped.
        let log = PagemapLog::start(
            Arc::clone(userfault.userfault()),
            self.qemu.ram.layout(),
            &hosts,
        )?;
        let log = Arc::new(log);
        self.userfault = Some(userfault);
        self.log = Some(Arc::clone(&log));
        Ok(log)
    }

    /// QEMU's monitor. One that was taken up is connected to now.
    fn monitor(&mut self) -> Result<&mut Client, ConnectError> {
        let (qmp, process) = (&self.identity.qmp, &self.qemu.process);
        monitor::get_or_connect(
            &mut self.client,
            qmp,
            process,
            monitor::RECONNECT_TIMEOUTS,
            &Cancel::new(),
        )
    }
}
