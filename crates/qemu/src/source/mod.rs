//! The guest that is moved away.

pub(crate) mod drain;
pub(crate) mod ram_files;
pub(crate) mod undo;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_dirty::{DirtyError, DirtyLog, PagemapLog, StartError, UnsupportedKernel};
use hikkoshi_engine::{Cancel, GuestError, Mode, SourceGuest};
use hikkoshi_linux::{HostAddr, Process};
use hikkoshi_memory::RamFiles;
use hikkoshi_userfault::{Features, ForeignUserfault, GiveBackError, TakeError, close_remote};
use hikkoshi_wire::{GuestDescription, Machine, Processors};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

use self::undo::{UndoRecord, UndoRecorder};
use crate::attach::exclusive_access::{self, ExclusiveAccess};
use crate::attach::machine;
use crate::attach::preflight::{self, AllowedTypes, MoveInProgress, Refusal, Side};
use crate::attach::process;
use crate::attach::reopen::FileAccess;
use crate::attach::{AttachError, Attached, attach, is_dirty_log};
use crate::identity::{QemuIdentity, ReattachError};
use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::monitor::{self, ConnectTimeouts, MonitorError, connected};
use crate::qmp::{Client, ConnectError, QmpError};
use crate::settings::{self, Settings};
use crate::stream::{self, DeviceStateReader, ReadUntil};

/// How long QEMU may take from `migrate` to the guest's stop. It sends video
/// memory and the like meanwhile, the guest still runs.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for an answer that need not come.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a QEMU that was taken up may take to turn to us: it has to notice
/// first that the killed engine's connection has ended.
pub(crate) const RECONNECT_TIMEOUTS: ConnectTimeouts = ConnectTimeouts {
    unreachable: Duration::from_secs(5),
    silent: Duration::from_secs(20),
};

/// How long QEMU may take from the last byte of the device state to saying
/// that all is well.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// The dirty log could not be started. The guest is as it was.
#[derive(Debug, Error)]
pub enum StartLogError {
    /// The kernel cannot do it.
    #[error(
        "tracking the guest's writes: {0}; post-copy without pre-copy rounds needs no tracking"
    )]
    Kernel(#[from] UnsupportedKernel),
    /// No userfaultfd was to be had.
    #[error("tracking the guest's writes: {0}")]
    Take(#[from] TakeError),
    /// The tracker.
    #[error("tracking the guest's writes: {0}")]
    Start(#[from] StartError),
    /// QEMU could not be asked about its disks.
    #[error("tracking the guest's writes: finding out how its disks are opened: {0}")]
    Disks(#[from] QmpError),
    /// It runs already.
    #[error("tracking the guest's writes: it is being done already")]
    Twice,
}

/// The guest was not stopped for the switchover; it is as it was.
#[derive(Debug, Error)]
pub enum PauseError {
    /// QEMU.
    #[error("stopping the guest for the switchover: {0}")]
    Qmp(#[from] QmpError),
    /// The guest's state has changed since we attached.
    #[error("stopping the guest for the switchover: {0}")]
    Refused(#[from] Refusal),
    /// Something about the socket for the device state.
    #[error("stopping the guest for the switchover: the device state's socket: {0}")]
    Socket(#[from] io::Error),
    /// What there will be to undo could not be written down.
    #[error("stopping the guest for the switchover: writing down how to let it run again: {0}")]
    Record(io::Error),
    /// QEMU's migration came to an end instead.
    #[error(
        "stopping the guest for the switchover: QEMU's migration is {status} instead{}",
        said(error)
    )]
    Ended {
        /// Its status.
        status: String,
        /// QEMU's words.
        error: Option<String>,
    },
    /// It took too long.
    #[error(
        "stopping the guest for the switchover: QEMU has not done so within {} s", SETUP_TIMEOUT.as_secs()
    )]
    TimedOut,
}

/// The device state was not saved whole.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The guest was not stopped for it.
    #[error("saving the device state: the guest has not been stopped for it")]
    NotPaused,
    /// QEMU.
    #[error("saving the device state: {0}")]
    Qmp(#[from] QmpError),
    /// What QEMU wrote could not be read.
    #[error("saving the device state: reading what QEMU writes: {0}")]
    Read(io::Error),
    /// It was to be given up before its end.
    #[error(
        "saving the device state: QEMU has written {bytes} bytes of it so far, and was given no \
         more time"
    )]
    GivenUp {
        /// How much there was.
        bytes: u64,
    },
    /// It could not be passed on.
    #[error("saving the device state: passing it on: {0}")]
    Sink(io::Error),
    /// QEMU says that it failed.
    #[error("saving the device state: QEMU's migration is {status}{}", said(error))]
    Failed {
        /// The migration's status.
        status: String,
        /// QEMU's words.
        error: Option<String>,
    },
    /// QEMU does not say that it went well.
    #[error(
        "saving the device state: QEMU has written it but not said within {} s that all is well",
        COMPLETION_TIMEOUT.as_secs()
    )]
    TimedOut,
}

/// The guest does not run again.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// QEMU.
    #[error(
        "THE GUEST MAY BE STOPPED: resuming it at the source: {0}; resume it by hand (QMP cont)"
    )]
    Qmp(#[from] QmpError),
    /// QEMU's monitor.
    #[error("THE GUEST MAY BE STOPPED: resuming it at the source: {0}")]
    Connect(#[from] ConnectError),
    /// QEMU did as told, to no avail.
    #[error(
        "THE GUEST IS STOPPED: resuming it at the source: its state is {state} still; resume it by \
         hand (QMP cont)"
    )]
    Stopped {
        /// QEMU's name for it.
        state: String,
    },
}

/// Something taken from QEMU could not be given back. The rest was.
#[derive(Debug, Error)]
pub enum ReleaseSourceError {
    /// The dirty log.
    #[error("ending the dirty log: {0}")]
    Log(#[from] DirtyError),
    /// The descriptor inside QEMU.
    #[error(transparent)]
    Userfault(#[from] GiveBackError),
    /// The settings.
    #[error("putting QEMU's migration settings back: {0}")]
    Settings(#[from] MonitorError),
    /// QEMU's save of the device state, of a guest that has moved.
    #[error("letting QEMU end its migration: {0}")]
    Finish(QmpError),
    /// The guest.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

fn said(error: &Option<String>) -> String {
    error
        .as_ref()
        .map_or_else(String::new, |error| format!(": {error}"))
}

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

    fn stop_guest(&mut self) -> Result<Instant, PauseError> {
        let client = connected(&mut self.client)?;
        let state = migration::run_state(client)?;
        if !matches!(state.status.as_str(), "running" | "paused" | "prelaunch") {
            return Err(Refusal::State {
                state: state.status,
                advice: "it has changed while we were at it; see to it and try again",
            }
            .into());
        }
        let under_way = MoveInProgress {
            mode: self.mode,
            rounds: self.log.is_some(),
            drained: self.needs_drain,
        };
        preflight::check_again(client, under_way, &self.allowed)?;
        // The destination has compared its machine with that.
        let now = machine::read(client)?;
        now.fits(&self.machine).map_err(Refusal::Changed)?;
        // Its owner may have paused or resumed it since we attached.
        self.qemu.description.running = state.running;
        let (before, after) = settings::plan(client, Side::Source)?;
        let undo = UndoRecord {
            settings: before,
            stopped: Some(state.running),
        };
        self.journal.write(&undo).map_err(PauseError::Record)?;
        self.undo = undo;
        let outcome = self.stop_with(&after, state.running);
        if outcome.is_err()
            && let Err(error) = self.resume_guest()
        {
            tracing::error!(%error, "after a failed pause");
        }
        outcome
    }

    fn stop_with(&mut self, settings: &Settings, running: bool) -> Result<Instant, PauseError> {
        let client = connected(&mut self.client)?;
        settings::apply(client, settings)?;
        let until = if running {
            ReadUntil::End
        } else {
            // Where it can still be brought back to being paused.
            ReadUntil::Description
        };
        let socket = stream::open(client, until)?;
        self.stage = SwitchoverStage::Pausing;
        self.reader = Some(DeviceStateReader::start(socket, until)?);
        client.forget_events();
        let asked = Instant::now();
        client.execute(
            "migrate",
            json!({ "uri": format!("fd:{}", stream::FD_NAME) }),
        )?;
        let mut stopped = None;
        let status = migration::wait_status(
            client,
            "the guest's stop for the switchover",
            SETUP_TIMEOUT,
            |status| *status == MigrationStatus::PreSwitchover || status.is_over(),
            |event| {
                if event.name == "STOP" {
                    stopped = Some(event.at);
                }
            },
        )?;
        match status {
            Some(MigrationStatus::PreSwitchover) => {
                let now = Instant::now();
                // A guest that did not run stopped, if anything, now.
                let at = stopped.filter(|_| running).map_or(now, |at| at.max(asked));
                tracing::debug!(set_up = ?at - asked, quiet = ?now - at, "the guest is stopped");
                Ok(at)
            }
            Some(status) => Err(PauseError::Ended {
                status: status.to_string(),
                error: migration::query(client)?.error,
            }),
            None => Err(PauseError::TimedOut),
        }
    }

    /// Once `give_up` is set it ends with an error. QEMU is left as it is then:
    /// [`resume`](Self::resume_guest) ends its save.
    fn save(&mut self, sink: &mut dyn Write, give_up: &Cancel) -> Result<(), SaveError> {
        connected(&mut self.client)?.set_cancel(Some(give_up.clone()));
        let saved = self.save_until(sink, give_up);
        connected(&mut self.client)?.set_cancel(None);
        saved
    }

    fn save_until(&mut self, sink: &mut dyn Write, give_up: &Cancel) -> Result<(), SaveError> {
        if self.stage != SwitchoverStage::Pausing {
            return Err(SaveError::NotPaused);
        }
        let client = connected(&mut self.client)?;
        client.forget_events();
        let arguments = json!({ "state": "pre-switchover" });
        if self.undo.stopped == Some(true) {
            client.execute("migrate-continue", arguments)?;
        } else {
            // QEMU may be in the middle of its writing already, where it is to
            // wait for us, and does not come round to answering.
            match client.execute_within("migrate-continue", arguments, CONTINUE_TIMEOUT) {
                Ok(_) | Err(QmpError::TimedOut { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Whatever happens now, the socket is used up: dropping the reader
        // breaks a save that is still going on.
        let reader = self.reader.take().ok_or(SaveError::NotPaused)?;
        let mut bytes = 0u64;
        while let Some(piece) = reader
            .next_chunk(give_up)
            .ok_or(SaveError::GivenUp { bytes })?
        {
            let piece = piece.map_err(SaveError::Read)?;
            sink.write_all(&piece).map_err(SaveError::Sink)?;
            bytes += piece.len() as u64;
        }
        sink.flush().map_err(SaveError::Sink)?;
        if reader.is_writer_waiting() {
            tracing::debug!(bytes, "the device state is saved; QEMU waits");
            self.reader = Some(reader);
            self.stage = SwitchoverStage::Saved;
            return Ok(());
        }
        // The end of the stream alone proves nothing: it ends too when QEMU
        // fails half-way.
        let status = migration::wait_status(
            client,
            "the end of the device state",
            COMPLETION_TIMEOUT,
            MigrationStatus::is_over,
            |_| {},
        )?;
        match status {
            Some(MigrationStatus::Completed) => {
                tracing::debug!(bytes, "the device state is saved");
                self.stage = SwitchoverStage::Saved;
                Ok(())
            }
            Some(status) => Err(SaveError::Failed {
                status: status.to_string(),
                error: migration::query(client)?.error,
            }),
            None => Err(SaveError::TimedOut),
        }
    }

    /// Lets QEMU finish a save that was left before its end: the guest does
    /// not come back.
    fn finish_save(&mut self) -> Result<(), QmpError> {
        let Some(reader) = self.reader.take() else {
            if let Err(error) = self.end_paused_copy() {
                let pid = self.pid();
                tracing::warn!(
                    %error,
                    "the guest is at the destination, and QEMU (process {pid}) still calls the \
                     copy that is left here 'paused': end that QEMU before anybody lets it go on \
                     ('cont'), or there are two"
                );
            }
            return Ok(());
        };
        reader.finish();
        let client = connected(&mut self.client)?;
        let doing = "the end of the migration";
        let status = migration::wait_status(
            client,
            doing,
            COMPLETION_TIMEOUT,
            MigrationStatus::is_over,
            |_| {},
        )?;
        if status.is_none() {
            return Err(QmpError::TimedOut {
                doing: doing.to_owned(),
                after: COMPLETION_TIMEOUT,
            });
        }
        // Whoever is told that this is over may want to do something with QEMU.
        migration::run_state_after_migration(client).map(drop)
    }

    /// A guest that its owner had paused is so again when the engine that saved
    /// it was killed in the middle, with its disks opened again. It is at the
    /// destination: it is saved once more, to the end, and nobody reads that.
    fn end_paused_copy(&mut self) -> Result<(), EndPausedCopyError> {
        if self.undo.stopped != Some(false) || self.has_ended() {
            return Ok(());
        }
        let client = self.monitor()?;
        if migration::run_state_after_migration(client)?.status != "paused" {
            return Ok(());
        }
        // The settings are still those of the engine before.
        self.stop_with(&Settings::default(), true)?;
        Ok(self.save(&mut io::sink(), &Cancel::new())?)
    }

    fn resume_guest(&mut self) -> Result<(), ResumeError> {
        if self.undo.stopped.is_none() {
            return Ok(());
        }
        // QEMU may be blocked in writing to us.
        self.reader = None;
        let ran = self.undo.stopped == Some(true);
        let saved = self.stage == SwitchoverStage::Saved;
        let state = resume(self.monitor()?, ran, saved)?;
        self.stage = SwitchoverStage::NotStarted;
        tracing::info!(state, "the guest is as it was at the source");
        self.stuck_in_postmigrate = state == "postmigrate";
        self.undo.stopped = None;
        if let Err(error) = self.restore_settings() {
            // The guest is well. Tried again, and reported, in the end.
            tracing::warn!(%error, "putting QEMU's migration settings back");
        }
        self.record_undone();
        Ok(())
    }

    /// Puts the settings back, and forgets the descriptor that `migrate` may
    /// not have used.
    fn restore_settings(&mut self) -> Result<(), MonitorError> {
        let settings = self.undo.settings.clone();
        settings::apply(self.monitor()?, &settings)?;
        self.undo.settings = Settings::default();
        Ok(close_fd(self.monitor()?)?)
    }

    /// QEMU's monitor. One that was taken up is connected to now.
    fn monitor(&mut self) -> Result<&mut Client, ConnectError> {
        let (qmp, process) = (&self.identity.qmp, &self.qemu.process);
        monitor::get_or_connect(
            &mut self.client,
            qmp,
            process,
            RECONNECT_TIMEOUTS,
            &Cancel::new(),
        )
    }

    fn release_qemu(&mut self) -> Result<(), ReleaseSourceError> {
        let mut first: Result<(), ReleaseSourceError> = Ok(());
        let mut note = |result: Result<(), ReleaseSourceError>| {
            if let Err(error) = result {
                if first.is_ok() {
                    first = Err(error);
                } else {
                    tracing::warn!(%error, "giving back what was taken from QEMU");
                }
            }
        };
        // The guest first: everything else can wait.
        if self.stage == SwitchoverStage::Pausing {
            // Nobody can have been told to run it: its device state was never whole.
            note(self.resume_guest().map_err(Into::into));
        }
        if self.stage == SwitchoverStage::Saved {
            note(self.finish_save().map_err(ReleaseSourceError::Finish));
        }
        if let Some(log) = &self.log {
            match log.stop() {
                Ok(()) => self.log = None,
                Err(error) => note(Err(error.into())),
            }
        }
        if let Some(userfault) = &self.userfault {
            match userfault.give_back() {
                Ok(()) => self.userfault = None,
                Err(error) => note(Err(error.into())),
            }
        }
        if self.undo.settings != Settings::default() {
            let restored = self.restore_settings();
            if restored.is_ok() {
                // That it was stopped stays: the guest may come back yet.
                if let Err(error) = self.journal.write(&self.undo) {
                    tracing::warn!(%error, "writing down which settings are back");
                }
            }
            note(restored.map_err(Into::into));
        }
        first
    }
}

/// Undoes a switchover that failed: ends QEMU's migration and, if the guest
/// `ran`, makes it run again. Gives its state.
///
/// `announce`: its network addresses may have been announced elsewhere.
pub(crate) fn resume(
    client: &mut crate::qmp::Client,
    ran: bool,
    announce: bool,
) -> Result<String, ResumeError> {
    migration::cancel_and_wait(client)?;
    if !ran {
        return Ok(migration::run_state_after_migration(client)?.status);
    }
    let state = migration::resume_after_migration(client)?;
    // "paused" is its owner's doing, not ours.
    if !state.running && state.status != "paused" {
        return Err(ResumeError::Stopped {
            state: state.status,
        });
    }
    if announce {
        crate::qmp::announce::announce(client);
    }
    Ok(state.status)
}

/// A copy that is left could not be brought to its end.
#[derive(Debug, Error)]
#[error(transparent)]
enum EndPausedCopyError {
    Connect(#[from] ConnectError),
    Qmp(#[from] QmpError),
    Pause(#[from] PauseError),
    Save(#[from] SaveError),
}

/// The guest runs where it was handed over.
#[derive(Debug, Error)]
#[error(
    "the guest runs at the source, though it was handed over, or may have been: somebody has let it \
     go on. Nothing more of it is sent. If the destination has never run it, give the migration up \
     (--give-up); if it has, stop it here at once (QMP command 'stop'): pages that it has written \
     since do not belong to the guest there, which has to be started anew from its disks if it \
     lacks any of them"
)]
struct GuestRunsAtSource;

fn log_query_failure(error: &dyn std::error::Error) -> Result<(), GuestError> {
    tracing::warn!(%error, "asking QEMU whether the guest stands still at the source; it should");
    Ok(())
}

/// Forgets our descriptor in QEMU. That there is none is fine: `migrate` takes
/// it.
pub(crate) fn close_fd(client: &mut crate::qmp::Client) -> Result<(), QmpError> {
    match client.execute("closefd", json!({ "fdname": stream::FD_NAME })) {
        Err(error) if !error.is_refusal() => Err(error),
        _ => Ok(()),
    }
}

impl SourceGuest for QemuSource {
    fn describe(&self) -> &GuestDescription {
        &self.qemu.description
    }

    fn processors(&self) -> Processors {
        self.qemu.processors.clone()
    }

    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn ram(&self) -> Arc<RamFiles> {
        Arc::clone(&self.qemu.ram)
    }

    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
        self.start_log().map_err(GuestError::new)
    }

    fn needs_drain(&self) -> bool {
        self.needs_drain
    }

    fn drain(&mut self, cancel: &Cancel) -> Result<(), GuestError> {
        let client = connected(&mut self.client).map_err(GuestError::new)?;
        drain::drain(client, cancel).map_err(GuestError::new)
    }

    fn pause(&mut self) -> Result<Instant, GuestError> {
        self.stop_guest().map_err(GuestError::new)
    }

    fn save_device_state(
        &mut self,
        sink: &mut dyn Write,
        give_up: &Cancel,
    ) -> Result<(), GuestError> {
        self.save(sink, give_up).map_err(GuestError::new)
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.resume_guest().map_err(GuestError::new)
    }

    fn stands_still(&mut self) -> Result<(), GuestError> {
        if self.has_ended() {
            return Ok(());
        }
        let state = match self.monitor().map(migration::run_state) {
            Ok(Ok(state)) => state,
            // Its memory is all that is needed.
            Ok(Err(error)) => return log_query_failure(&error),
            Err(error) => return log_query_failure(&error),
        };
        if state.running {
            return Err(GuestError::new(GuestRunsAtSource));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.detached = true;
    }

    fn has_ended(&self) -> bool {
        !self.qemu.process.is_alive()
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.release_qemu().map_err(GuestError::new)
    }
}

impl Drop for QemuSource {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        if let Err(error) = self.release_qemu() {
            tracing::error!(%error, "leaving QEMU");
        }
    }
}
