//! The machine that takes a guest in.

mod exit_watch;
mod huge_tmpfs;
mod shutdown_listener;
mod vcpus;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hikkoshi_engine::{Cancel, DestinationGuest, GuestError, ThreadName};
use hikkoshi_linux::Process;
use hikkoshi_memory::RamFiles;
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_userfault::{Features, ForeignUserfault, GiveBackError, TakeError, Userfault};
use hikkoshi_wire::{GuestDescription, Machine, Processors};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

use self::exit_watch::ExitWatch;
use self::shutdown_listener::ShutdownListener;
use self::vcpus::Vcpu;
use crate::attach::exclusive_access::{self, ExclusiveAccess};
use crate::attach::preflight::{AllowedTypes, Side};
use crate::attach::process;
use crate::attach::reopen::FileAccess;
use crate::attach::{AttachError, attach};
use crate::identity::{QemuIdentity, ReattachError};
use crate::qmp::announce;
use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::monitor::{self, ConnectTimeouts, MonitorError, NO_TIMEOUT, connected};
use crate::qmp::{COMMAND_TIMEOUT, Client, ConnectError, QmpError, Version};
use crate::settings::{self, Settings};
use crate::source::close_fd;
use crate::stream::{self, DeviceStateWriter, ReadUntil};

/// How long loading the device state may take. QEMU reads guest memory while
/// it loads; with post-copy each page may have to come over the network first,
/// and QMP is silent meanwhile.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);

/// How long to try to get through to a QEMU whose socket is not as it should be,
/// before it is made to run. One that just says nothing is waited for as long as
/// anybody wants it to run: it may wait for a page itself.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for `RESUME` once `cont` has been accepted.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

/// From this version on QEMU can be told to survive a bad stream, and so to
/// say what was wrong with it (`exit-on-error`).
const EXIT_ON_ERROR_SINCE: Version = Version::new(9, 1, 0);

/// The machine could not be readied.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// QEMU.
    #[error("readying QEMU to take in a guest: {0}")]
    Qmp(#[from] QmpError),
    /// It has changed since we attached.
    #[error(
        "readying QEMU to take in a guest: its state is {state}, no longer inmigrate; start it afresh"
    )]
    State {
        /// QEMU's name for it.
        state: String,
    },
}

/// The pages that will be missing cannot be caught.
#[derive(Debug, Error)]
pub enum UserfaultError {
    /// No userfaultfd was to be had.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// What the engine before left inside is not there any more.
    #[error(
        "taking over the userfaultfd that the engine before left in QEMU (process {pid}{}): it is \
         not there any more. Since somebody has closed it, pages that had not arrived read as \
         zeros, so what is in this QEMU must not be trusted. If the guest has never run here, end \
         this QEMU and go on with 'hikkoshi receive --resume': then its source takes it back",
        numbered(*number)
    )]
    Lost {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: Option<i32>,
    },
    /// The RAM file is on the wrong tmpfs.
    #[error(
        "post-copy drops and fills the pages of a RAM file one by one, but the kernel puts huge \
         pages into the tmpfs of the guest's memory \"{id}\" here ({cause}): mount it with \
         huge=never, or move the guest with --mode precopy"
    )]
    HugePages {
        /// The backend.
        id: String,
        /// What makes it do so.
        cause: String,
    },
    /// Which tmpfs it is on could not be found out.
    #[error("looking how the tmpfs of the guest's memory \"{id}\" is mounted: {source}")]
    Look {
        /// The backend.
        id: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The device state could not be loaded. The guest does not run here.
#[derive(Debug, Error)]
pub enum LoadError {
    /// QEMU.
    #[error("loading the device state: {0}")]
    Qmp(#[from] QmpError),
    /// The socket or thread for it.
    #[error("loading the device state: its socket: {0}")]
    Socket(#[from] io::Error),
    /// QEMU does not like it.
    #[error(
        "loading the device state: QEMU refused it{}; start QEMU here with the same options as at the source",
        words(error)
    )]
    Refused {
        /// QEMU's words, if it said any.
        error: Option<String>,
    },
    /// The machine has not been readied.
    #[error("loading the device state: QEMU has not been readied for it")]
    NotPrepared,
    /// It takes too long.
    #[error("loading the device state: QEMU has not done so within {} s", LOAD_TIMEOUT.as_secs())]
    TimedOut,
    /// The guest runs although it must not yet.
    #[error(
        "loading the device state: the guest began to run by itself; another program has told QEMU \
         so (QMP cont). It has been told to stop"
    )]
    Ran,
}

/// The guest was not made to run.
#[derive(Debug, Error)]
pub enum RunError {
    /// QEMU.
    #[error("resuming the guest at the destination: {0}")]
    Qmp(#[from] QmpError),
    /// QEMU's monitor.
    #[error("resuming the guest at the destination: {0}")]
    Connect(#[from] ConnectError),
    /// QEMU refused, and the guest has never run there.
    #[error(
        "resuming the guest at the destination: {source}. Its QEMU (process {pid}) was ended: it may \
         have taken some of the guest's images, and the source needs them all"
    )]
    Refused {
        /// QEMU's process.
        pid: u32,
        /// What it said.
        source: QmpError,
    },
    /// The same, but it may hold images still.
    #[error(
        "resuming the guest at the destination: {source}. Its QEMU (process {pid}) may have taken \
         some of the guest's images, which the source needs, and could not be ended: {kill}. End it \
         by hand, then go on"
    )]
    NotEnded {
        /// QEMU's process.
        pid: u32,
        /// What it said.
        source: QmpError,
        /// Why it was not ended.
        kill: io::Error,
    },
    /// QEMU did as told, to no avail.
    #[error(
        "resuming the guest at the destination: QEMU was told to, but its state is {state}; resume \
         it by hand (QMP cont), here and not at the source"
    )]
    Stopped {
        /// QEMU's name for it.
        state: String,
    },
    /// There is no guest.
    #[error("resuming the guest at the destination: its device state has not been loaded")]
    NotLoaded,
}

/// QEMU could not be ended.
#[derive(Debug, Error)]
#[error("ending QEMU (process {pid}), whose guest was given up: {source}; end it by hand")]
pub struct KillError {
    pid: u32,
    source: io::Error,
}

/// Something taken from QEMU could not be given back. The rest was.
#[derive(Debug, Error)]
pub enum ReleaseDestinationError {
    /// The descriptor inside QEMU.
    #[error(transparent)]
    Userfault(#[from] GiveBackError),
    /// The settings.
    #[error("putting QEMU's migration settings back: {0}")]
    Settings(#[from] MonitorError),
}

fn numbered(number: Option<i32>) -> String {
    number.map_or_else(String::new, |number| format!(", descriptor {number}"))
}

fn words(error: &Option<String>) -> String {
    error.as_ref().map_or_else(
        || " and has exited: its log or standard error says why".to_owned(),
        |error| format!(" ({error})"),
    )
}

/// What another program must know to go on with a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DestinationNotes {
    /// Where it is.
    #[serde(rename = "place")]
    pub identity: QemuIdentity,
    /// QEMU's settings that were changed, as they were.
    pub settings: Settings,
    /// The userfaultfd's number inside QEMU, if one was taken.
    pub userfault: Option<i32>,
}

/// The notes as of now, wherever they are looked at from.
#[derive(Debug, Clone)]
pub struct SharedNotes(Arc<Mutex<DestinationNotes>>);

impl SharedNotes {
    /// These, to begin with.
    pub fn new(notes: DestinationNotes) -> Self {
        Self(Arc::new(Mutex::new(notes)))
    }

    /// The notes.
    pub fn get(&self) -> DestinationNotes {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn change(&self, change: impl FnOnce(&mut DestinationNotes)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

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

    fn ready(&mut self) -> Result<(), PrepareError> {
        self.prepared = true;
        if let Some(exit_watch) = &self.exit_watch {
            exit_watch.disable();
        }
        let client = connected(&mut self.client)?;
        let state = migration::run_state(client)?.status;
        if state != "inmigrate" {
            return Err(PrepareError::State { state });
        }
        // In this state `stop` does not stop anything: it makes QEMU not start
        // the guest by itself at the end of the load, whether it was started
        // with -S or not (tried with 7.2 and 10.0).
        client.execute("stop", json!({}))?;
        if self.settings == Settings::default() {
            let (before, after) = settings::plan(client, Side::Destination)?;
            self.noted.change(|notes| notes.settings = before.clone());
            self.settings = before;
            settings::apply(client, &after)?;
        }
        if self.socket.is_none() {
            // Now, not when the source's guest is stopped and everybody waits.
            self.socket = Some(stream::open(client, ReadUntil::End)?);
        }
        // Later QMP may be silent: QEMU may wait for a page itself.
        self.vcpus = vcpus::query(client)?;
        Ok(())
    }

    /// Whether the userfaultfd that the engine before has left, of a QEMU that was
    /// taken up in post-copy, is there.
    ///
    /// # Errors
    ///
    /// [`UserfaultError::Lost`].
    pub fn check_userfault(&self) -> Result<(), UserfaultError> {
        if self.reattached && self.userfault.is_none() {
            return Err(UserfaultError::Lost {
                pid: self.process.pid(),
                number: self.noted.get().userfault,
            });
        }
        Ok(())
    }

    fn userfault(&mut self) -> Result<Arc<Userfault>, UserfaultError> {
        self.check_page_size()?;
        self.check_userfault()?;
        let taken = match self.userfault.take() {
            Some(taken) => taken,
            None => ForeignUserfault::take_from(&self.process, Features::FOR_MISSING)?,
        };
        let number = taken.remote();
        self.noted.change(|notes| notes.userfault = Some(number));
        Ok(Arc::clone(self.userfault.insert(taken).userfault()))
    }

    /// Pages of a tmpfs must come and go one by one.
    fn check_page_size(&self) -> Result<(), UserfaultError> {
        let ram = &self.ram;
        for ((block, _), file) in ram.layout().blocks().zip(ram.files()) {
            let id = || block.id.clone();
            if block.host_page != PAGE_BYTES {
                continue; // hugetlbfs: pages of one size, all of them.
            }
            let cause = huge_tmpfs::cause(&self.process, file.as_fd())
                .map_err(|source| UserfaultError::Look { id: id(), source })?;
            if let Some(cause) = cause {
                return Err(UserfaultError::HugePages { id: id(), cause });
            }
        }
        Ok(())
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), LoadError> {
        if let Some(userfault) = &self.userfault {
            // From here on pages may be waited for. Should we die, or be
            // dropped without a word, they must not read as zeros.
            userfault.keep_inside();
        }
        self.loading = true;
        let cancel = self.cancel.clone();
        let client = connected(&mut self.client)?;
        client.set_cancel(cancel);
        client.set_timeout(LOAD_TIMEOUT);
        let outcome = self.load_within(state);
        let client = connected(&mut self.client)?;
        client.set_cancel(None);
        client.set_timeout(COMMAND_TIMEOUT);
        self.loaded = outcome.is_ok();
        outcome
    }

    fn load_within(&mut self, state: Vec<u8>) -> Result<(), LoadError> {
        let began = Instant::now();
        let bytes = state.len();
        let socket = self.socket.take().ok_or(LoadError::NotPrepared)?;
        let client = connected(&mut self.client)?;
        // Dropped at the end, which breaks a load that is still going on.
        let _feed = DeviceStateWriter::start(socket, state)?;
        client.forget_events();
        let mut ran = false;
        let uri = format!("fd:{}", stream::FD_NAME);
        let mut arguments = json!({ "uri": uri });
        if client.version() >= EXIT_ON_ERROR_SINCE {
            arguments["exit-on-error"] = false.into();
        }
        client.execute("migrate-incoming", arguments)?;
        let status = migration::wait_status(
            client,
            "the device state to be loaded",
            LOAD_TIMEOUT,
            MigrationStatus::is_over,
            |event| ran |= event.name == "RESUME",
        );
        match status {
            Ok(Some(MigrationStatus::Completed)) => {}
            Ok(Some(_)) => {
                // Old versions exit right after saying so.
                let error = migration::query(client).ok().and_then(|info| info.error);
                return Err(LoadError::Refused { error });
            }
            Ok(None) => return Err(LoadError::TimedOut),
            Err(error) if error.is_closed() => return Err(LoadError::Refused { error: None }),
            Err(error) => return Err(error.into()),
        }
        // A guest that starts by itself does so before QEMU says "completed";
        // asking would cost another answer while everybody waits.
        if ran {
            client.execute("stop", json!({}))?;
            return Err(LoadError::Ran);
        }
        tracing::debug!(bytes, took = ?began.elapsed(), "the device state is loaded");
        Ok(())
    }

    fn run(&mut self, running: bool, give_up: &Cancel) -> Result<Instant, RunError> {
        if !self.loaded {
            return Err(RunError::NotLoaded);
        }
        if !running {
            return Ok(Instant::now());
        }
        self.stop_listening();
        let timeouts = ConnectTimeouts {
            unreachable: CONNECT_TIMEOUT,
            silent: NO_TIMEOUT,
        };
        let (qmp, process) = (&self.identity.qmp, &self.process);
        let client = monitor::get_or_connect(&mut self.client, qmp, process, timeouts, give_up)?;
        client.set_cancel(Some(give_up.clone()));
        client.set_timeout(NO_TIMEOUT);
        let outcome = run(client, self.reattached);
        client.set_timeout(COMMAND_TIMEOUT);
        // Of one that was taken up nobody knows what it did before.
        let never_ran = !self.reattached && is_refused(&outcome) && has_never_run(client);
        client.set_cancel(None);
        let outcome = match outcome {
            Err(RunError::Qmp(source)) if never_ran => Err(self.decline(source)),
            outcome => outcome,
        };
        let at = outcome?;
        let client = connected(&mut self.client)?;
        announce::announce_with(client, &self.settings.parameters);
        Ok(at)
    }

    /// QEMU has one monitor for us: it is taken back from who listens to it.
    fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.client = listener.stop();
        }
    }

    /// QEMU has refused to run the guest, which has never run here: its source can
    /// have it back. `cont` takes the images one after the other, and QEMU keeps
    /// those that it took before one failed (7.2 and 10.0): they are free once it
    /// is gone. It is of no use any more, with a guest that is not to run in it.
    fn decline(&mut self, source: QmpError) -> RunError {
        let pid = self.process.pid();
        match self.process.kill() {
            Ok(()) => {
                self.never_ran = true;
                RunError::Refused { pid, source }
            }
            Err(kill) => RunError::NotEnded { pid, source, kill },
        }
    }

    fn restore_settings(&mut self) -> Result<(), MonitorError> {
        self.stop_listening();
        let timeouts = ConnectTimeouts {
            unreachable: COMMAND_TIMEOUT,
            silent: COMMAND_TIMEOUT,
        };
        let (qmp, process) = (&self.identity.qmp, &self.process);
        let never = Cancel::new();
        let client = monitor::get_or_connect(&mut self.client, qmp, process, timeouts, &never)?;
        settings::apply(client, &self.settings)?;
        Ok(close_fd(client)?)
    }

    fn release_qemu(&mut self) -> Result<(), ReleaseDestinationError> {
        let mut first: Result<(), ReleaseDestinationError> = Ok(());
        if let Some(userfault) = &self.userfault {
            match userfault.give_back() {
                Ok(()) => self.userfault = None,
                Err(error) => first = Err(error.into()),
            }
        }
        self.socket = None;
        if self.settings != Settings::default() && self.process.is_alive() {
            match self.restore_settings() {
                // A QEMU that has exited needs nothing back.
                Ok(()) => self.settings = Settings::default(),
                Err(MonitorError::Qmp(error)) if error.is_closed() => {
                    self.settings = Settings::default();
                }
                Err(error) if first.is_ok() => first = Err(error.into()),
                Err(error) => tracing::warn!(%error, "putting QEMU's migration settings back"),
            }
        }
        if let Some(exit_watch) = &self.exit_watch {
            exit_watch.enable();
        }
        first
    }
}

/// Makes the guest run; `reattached`: it may run already. As long as the client
/// waits: storage is opened, and pages may be missing.
fn run(client: &mut Client, reattached: bool) -> Result<Instant, RunError> {
    let asked = Instant::now();
    if reattached && migration::run_state(client)?.running {
        return Ok(asked);
    }
    client.execute("cont", json!({}))?;
    let until = Instant::now() + RESUME_TIMEOUT;
    let resumed = client.wait_event("the guest to run", until, |event| {
        (event.name == "RESUME").then_some(event.at)
    });
    match resumed? {
        Some(at) => Ok(at.max(asked)),
        None => {
            let state = migration::run_state(client)?;
            if !state.running {
                return Err(RunError::Stopped {
                    state: state.status,
                });
            }
            Ok(Instant::now())
        }
    }
}

fn is_refused(outcome: &Result<Instant, RunError>) -> bool {
    matches!(outcome, Err(RunError::Qmp(error)) if error.is_refusal())
}

/// Whether a guest that this program has loaded, and that QEMU has just refused
/// to run (its storage, mostly), stands as it was loaded.
fn has_never_run(client: &mut Client) -> bool {
    let state = migration::run_state(client);
    // Nobody else has run it meanwhile, either: events come before answers.
    let resumed = client.has_event("RESUME");
    tracing::debug!(?state, resumed, "after QEMU has refused to run the guest");
    !resumed && state.is_ok_and(|state| !state.running)
}

impl DestinationGuest for QemuDestination {
    fn describe(&self) -> &GuestDescription {
        &self.identity.description
    }

    fn processors(&self) -> Processors {
        self.processors.clone()
    }

    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn ram(&self) -> Arc<RamFiles> {
        Arc::clone(&self.ram)
    }

    fn prepare(&mut self) -> Result<(), GuestError> {
        self.ready().map_err(GuestError::new)
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        let userfault = self.userfault().map_err(GuestError::new)?;
        Ok((userfault, self.identity.addresses()))
    }

    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError> {
        self.load(state).map_err(GuestError::new)
    }

    fn resume(&mut self, running: bool, give_up: &Cancel) -> Result<Instant, GuestError> {
        self.run(running, give_up).map_err(GuestError::new)
    }

    fn never_ran(&self) -> bool {
        self.never_ran
    }

    fn attend(&mut self) {
        if self.listener.is_some() {
            return;
        }
        let (qmp, process) = (self.identity.qmp.clone(), Arc::clone(&self.process));
        match ShutdownListener::start(self.client.take(), qmp, process) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => tracing::warn!(
                %error,
                "listening to QEMU: a guest that shuts itself down will look like one that is lost"
            ),
        }
    }

    fn has_shut_down(&mut self) -> bool {
        let listener = self.listener.as_ref();
        listener.is_some_and(ShutdownListener::has_shut_down)
    }

    fn kill(&mut self) -> Result<(), GuestError> {
        let pid = self.process.pid();
        self.process
            .kill()
            .map_err(|source| GuestError::new(KillError { pid, source }))
    }

    fn has_ended(&self) -> bool {
        Self::has_ended(self)
    }

    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        vcpus::name(&self.process, &self.vcpus, thread)
    }

    fn memory_place(&self) -> Option<(Arc<Process>, Vec<u64>)> {
        Some((Arc::clone(&self.process), self.identity.addresses()))
    }

    fn abandon_userfault(&mut self) {
        // Another engine goes on, and finds everything as it is: the settings,
        // too, which cannot be put back while QEMU waits for a page.
        self.settings = Settings::default();
        if let Some(userfault) = self.userfault.take() {
            tracing::debug!(
                pid = self.process.pid(),
                number = userfault.remote(),
                "leaving the userfaultfd in QEMU, pages may be missing"
            );
            userfault.keep_inside();
        }
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.release_qemu().map_err(GuestError::new)
    }
}

impl Drop for QemuDestination {
    fn drop(&mut self) {
        if self.loading {
            // Neither released nor, perhaps, abandoned: pages may be missing, and
            // closing the userfaultfd would turn them into zeros without a word.
            return self.abandon_userfault();
        }
        if let Err(error) = self.release_qemu() {
            tracing::warn!(%error, "leaving QEMU");
        }
    }
}
