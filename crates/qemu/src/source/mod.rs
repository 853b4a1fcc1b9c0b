//! The source's QEMU: [`QemuSource`].
//!
//! The methods are grouped by phase: starting the dirty log (`start_log.rs`), pausing (`pause.rs`),
//! saving the device state (`save.rs`), resuming after a failed migration (`resume_guest.rs`),
//! releasing QEMU (`release.rs`). A source whose QEMU has ended is a
//! [`RamFileSource`](ram_files::RamFileSource). Another process can undo the changes of a killed
//! engine (`undo.rs`).

mod disks;
pub(crate) mod drain;
mod error;
mod guest;
pub(crate) mod guest_now;
mod handed_over;
mod pause;
pub(crate) mod quit;
pub(crate) mod ram_files;
mod release;
mod resume_guest;
mod save;
mod start_log;
pub(crate) mod undo;
pub(crate) mod undo_record;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use error_reporter::Report;
use hikkoshi_account::Side;
use hikkoshi_dirty::PagemapLog;
use hikkoshi_engine::{CancelFlag, Mode};
use hikkoshi_linux::{OomKillCount, OomKills, Process};
use hikkoshi_memory::GuestRam;
use hikkoshi_userfault::{RemoteUserfault, close_remote};
use hikkoshi_wire::{Domain, GuestDescription, Machine, Processors};

use self::disks::DiskCopies;
use self::error::{PauseError, ReleaseSourceError, SaveError};
use self::pause::{PreparedPause, Saving};
use self::undo_record::{UndoRecord, UndoRecorder};
use crate::attach::Overcommit;
use crate::attach::preflight::{self, Allowed, Refusal};
use crate::attach::stale_userfaultfds::is_dirty_log;
use crate::attach::{AttachError, Attached, attach};
use crate::disks::OfferedDisks;
use crate::disks::move_lock::MoveLock;
use crate::identity::{QemuIdentity, ReattachError};
use crate::network::vlans_lost;
use crate::process;
use crate::process::exclusive_access::{self, ExclusiveAccess};
use crate::process::oom_kills;
use crate::process::reopen::FileAccess;
use crate::qmp::pause_mark;
use crate::qmp::reconnect::{self, MonitorError, connected};
use crate::qmp::{Client, ConnectError, Monitor, MonitorSocket, QmpError, Submitted};
use crate::ram::blocks::RamBlockInfo;

/// The progress of the switchover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwitchoverStage {
    /// We have not paused the guest.
    NotStarted,
    /// Everything is prepared for pausing it.
    Prepared,
    /// The guest is being paused, or is paused.
    Pausing,
    /// The whole device state has been passed to the engine. From here on the guest
    /// may run elsewhere, unless [`resume`](hikkoshi_engine::SourceGuest::resume) is called.
    Saved,
    /// It does, and everything here was released.
    HandedOver,
}

/// What another program needs to know to reattach to a source.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceReattachInfo {
    /// The QEMU process and its guest's memory.
    pub identity: QemuIdentity,
    /// What has to be undone.
    pub undo: UndoRecord,
    /// How many processes the kernel had killed for lack of memory.
    pub oom_kills: Vec<OomKillCount>,
}

impl SourceReattachInfo {
    /// Why a QEMU that has ended since then probably did so, if that can be seen; for people.
    pub fn why_ended(&self) -> Option<String> {
        oom_kills::since_counted(&self.oom_kills)
    }
}

/// The process, the memory and the description of a QEMU.
#[derive(Debug)]
struct QemuResources {
    process: Arc<Process>,
    ram: Arc<GuestRam>,
    /// Where each block begins in the process's address space, in layout order.
    addresses: Vec<u64>,
    description: GuestDescription,
    /// The processors, read when attaching.
    processors: Processors,
}

/// A running QEMU guest that is moved away; see [`SourceGuest`](hikkoshi_engine::SourceGuest).
#[derive(Debug)]
pub struct QemuSource {
    /// `None` after reattaching, until QEMU is needed: sending pages of a guest
    /// that was handed over does not need QEMU.
    client: Option<Client>,
    monitor: Arc<dyn Monitor>,
    qemu: QemuResources,
    stage: SwitchoverStage,
    /// What the pause needs, once it is prepared.
    prepared: Option<PreparedPause>,
    /// The save in progress.
    saving: Option<Saving>,
    /// The RAM blocks before the pause, and the list after the save whose answer was not read yet.
    unchecked: Option<(Submitted, Vec<RamBlockInfo>)>,
    /// What `xen-save-devices-state` wrote.
    saved: Option<Vec<u8>>,
    /// When the guest was paused for the move.
    paused_at: Option<SystemTime>,
    /// What QEMU itself refuses meanwhile, if others can use its monitor.
    move_lock: Option<MoveLock>,
    /// The block node of the lock may be in QEMU: it was added, or the answer to that was lost.
    node_may_exist: bool,
    log: Option<Arc<PagemapLog>>,
    /// Whether disks write to memory, which the dirty log does not track.
    needs_drain: bool,
    /// See [`Attached::drains`].
    drains: bool,
    userfault: Option<RemoteUserfault>,
    identity: QemuIdentity,
    undo: UndoRecord,
    undo_recorder: UndoRecorder,
    /// The disks, as the destination is told.
    offered_disks: OfferedDisks,
    /// The disks that are copied.
    copies: DiskCopies,
    /// The machine's devices, read when attaching.
    machine: Machine,
    /// What the destination's daemon needs, read when attaching.
    domain: Option<Domain>,
    /// The mode of the move, once it is known.
    mode: Option<Mode>,
    allowed: Allowed,
    /// The guest was handed over, but QEMU may still hold its images.
    holds_images: bool,
    /// Nothing is restored: another engine continues.
    detached: bool,
    /// How many processes the kernel had killed when this attached.
    oom_kills: Option<OomKills>,
    _lock: ExclusiveAccess,
}

impl QemuSource {
    /// Attaches to the guest whose QMP socket is at `qmp`, and checks that it can be
    /// moved.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest is unchanged.
    pub fn attach(qmp: &Path) -> Result<Self, AttachError> {
        Self::attach_allowing(qmp, &Allowed::default())
    }

    /// Like [`attach`](Self::attach), and also allows these unknown types.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest is unchanged.
    pub fn attach_allowing(qmp: &Path, allowed: &Allowed) -> Result<Self, AttachError> {
        Self::attach_by(Arc::new(MonitorSocket::new(qmp)), allowed, None)
    }

    /// Like [`attach_allowing`](Self::attach_allowing), by any monitor, for a move by this mode
    /// ([`SourceOptions::phases`](hikkoshi_engine::SourceOptions::phases)). The error names
    /// every obstacle, with those of the mode.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest is unchanged.
    pub fn attach_for(
        monitor: Arc<dyn Monitor>,
        allowed: &Allowed,
        mode: Mode,
    ) -> Result<Self, AttachError> {
        Self::attach_by(monitor, allowed, Some(mode))
    }

    fn attach_by(
        monitor: Arc<dyn Monitor>,
        allowed: &Allowed,
        mode: Option<Mode>,
    ) -> Result<Self, AttachError> {
        monitor.check_unchanged(None).map_err(Refusal::Qmp)?;
        let qemu = attach(&*monitor, Side::Source, allowed, mode, Overcommit::Refuse)?;
        let identity = QemuIdentity::of_attached(&*monitor, &qemu)?;
        let domain = monitor.domain().map_err(Refusal::Qmp)?;
        let mut source = Self::from_attached(qemu, identity, monitor, SwitchoverStage::NotStarted);
        source.domain = domain;
        source.mode = mode;
        source.allowed = allowed.clone();
        Ok(source)
    }

    fn from_attached(
        qemu: Attached,
        identity: QemuIdentity,
        monitor: Arc<dyn Monitor>,
        stage: SwitchoverStage,
    ) -> Self {
        Self {
            oom_kills: oom_kills::count(&qemu.process),
            client: qemu.client,
            monitor,
            qemu: QemuResources {
                process: qemu.process,
                ram: qemu.ram,
                addresses: qemu.addresses,
                description: qemu.description,
                processors: qemu.processors,
            },
            stage,
            prepared: None,
            saving: None,
            unchecked: None,
            saved: None,
            paused_at: None,
            move_lock: None,
            node_may_exist: false,
            log: None,
            needs_drain: false,
            drains: qemu.drains,
            userfault: None,
            identity,
            undo: UndoRecord::default(),
            undo_recorder: UndoRecorder::default(),
            offered_disks: OfferedDisks::default(),
            copies: DiskCopies::default(),
            machine: qemu.machine,
            domain: None,
            mode: None,
            allowed: Allowed::default(),
            holds_images: false,
            detached: false,
            _lock: qemu.lock,
        }
    }

    /// Checks that the guest can be moved in this mode: pre-copy rounds and
    /// post-copy have different limits. The check is repeated right before the
    /// guest is paused.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; the guest is unchanged.
    pub fn check_mode(&mut self, mode: Mode) -> Result<(), AttachError> {
        self.mode = Some(mode);
        let mut found = preflight::check_tracking(self.qemu.ram.layout());
        found.retain(|refusal| refusal.excludes().includes(mode));
        if let Some(client) = &mut self.client {
            let more = preflight::check_mode(client, mode, &self.allowed, &mut self.drains);
            found.extend(more.map_err(Refusal::Qmp)?);
        }
        if found.is_empty() {
            return Ok(());
        }
        Err(AttachError::from_obstacles(
            found.into_iter().map(Into::into).collect(),
        ))
    }

    /// What the guest's owner should know about its VLANs; for people.
    pub fn vlan_note(&mut self) -> Option<String> {
        self.client.as_mut().and_then(vlans_lost::note)
    }

    /// Reattaches to a guest that another program handed over, or was about to hand
    /// over. `monitor` is that of the identity; no session is opened yet. `None` if QEMU has ended:
    /// see [`RamFileSource`](crate::RamFileSource).
    ///
    /// # Errors
    ///
    /// See [`ReattachError`].
    pub fn reattach(
        reattach_info: &SourceReattachInfo,
        monitor: Arc<dyn Monitor>,
    ) -> Result<Option<Self>, ReattachError> {
        let identity = &reattach_info.identity;
        let Some(process) = identity.process()? else {
            return Ok(None);
        };
        process::check_right_to_trace(&process)?;
        let lock = exclusive_access::acquire(&process)?;
        let ram = identity.open_ram(Some(&process), FileAccess::Read)?;
        // By an engine that was killed when it was about to end QEMU (`Monitor::end`).
        if monitor.is_shared() && process.is_stopped() && !process.is_asked_to_end() {
            tracing::warn!(
                pid = process.pid(),
                "QEMU's process was stopped: it continues"
            );
            if let Err(error) = process.continue_stopped() {
                tracing::warn!(%error, "letting QEMU's process continue");
            }
        }
        for stale in process::userfaults(&process)? {
            // It blocks no thread. If this fails, the next attempt closes it.
            if is_dirty_log(&stale)
                && let Err(error) = close_remote(&process, stale.number)
            {
                tracing::warn!(error = %Report::new(&error), "closing the dirty log of the previous engine");
            }
        }
        let qemu = identity.reattached(process, ram, lock);
        let mut source =
            Self::from_attached(qemu, identity.clone(), monitor, SwitchoverStage::Saved);
        source.undo = reattach_info.undo.clone();
        Ok(Some(source))
    }

    /// What another program needs to know to reattach, as of now.
    pub fn reattach_info(&self) -> SourceReattachInfo {
        SourceReattachInfo {
            identity: self.identity.clone(),
            undo: self.undo.clone(),
            oom_kills: oom_kills::counts(self.oom_kills.as_ref()),
        }
    }

    /// Calls `keep` with the record for [`undo`](crate::undo()): now, and then before
    /// every change that the record describes. If `keep` fails, the guest is not
    /// paused.
    ///
    /// # Errors
    ///
    /// The error of `keep`.
    pub fn on_undo_record(
        &mut self,
        keep: impl FnMut(&UndoRecord) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        self.undo_recorder = UndoRecorder::new(keep);
        self.undo_recorder.write(&self.undo)
    }

    /// Writes the record after something was undone. If this fails, it is undone once
    /// more, which is harmless.
    fn record_undone(&mut self) {
        if let Err(error) = self.undo_recorder.write(&self.undo) {
            tracing::warn!(error = %Report::new(&error), "writing the undo record after everything was undone");
        }
    }

    /// Notes in QEMU that the guest has moved, and that its destination needs nothing more from
    /// here. A failure is only logged: then it is not known here any more whether it has.
    pub fn note_moved(&mut self) {
        if self.has_exited() {
            return;
        }
        let noted = self
            .session()
            .map_err(MonitorError::from)
            .and_then(|client| Ok(pause_mark::set_moved(client)?));
        if let Err(error) = noted {
            tracing::warn!(error = %Report::new(&error), "noting in QEMU that its guest has moved");
        }
    }

    /// Whether QEMU has ended, or is exiting: its memory is gone.
    fn has_exited(&self) -> bool {
        self.qemu.process.has_lost_memory()
    }

    /// The number of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.process.pid()
    }

    /// Begins to watch what others do to the guest, if they can use its monitor, and lets QEMU
    /// refuse what it can refuse. Only once.
    fn begin_move(&mut self) -> Result<(), QmpError> {
        if self.move_lock.is_some() {
            return Ok(());
        }
        self.monitor.watch_owner();
        self.node_may_exist = true;
        match MoveLock::add(connected(&mut self.client)?) {
            Ok(lock) => {
                if !lock.refuses_migration() {
                    tracing::warn!(
                        "this QEMU does not have the format vdi, and cannot be made to refuse that \
                         others save or migrate the guest meanwhile: do neither until it has moved"
                    );
                }
                self.move_lock = Some(lock);
            }
            Err(error) if error.is_refusal() => tracing::warn!(
                error = %Report::new(&error),
                "QEMU cannot be made to refuse what others ask of it meanwhile: do not save, resume or \
                 migrate the guest until it has moved"
            ),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The session on QEMU's monitor. After reattaching, opens it now.
    fn session(&mut self) -> Result<&mut Client, ConnectError> {
        reconnect::get_or_connect(
            &mut self.client,
            &*self.monitor,
            &self.qemu.process,
            reconnect::reconnect_timeouts(&*self.monitor),
            &CancelFlag::new(),
        )
    }
}
