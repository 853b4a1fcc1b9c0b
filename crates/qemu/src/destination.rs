//! The machine that takes a guest in.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_engine::{Cancel, DestinationGuest, GuestError, RamFiles, ThreadName};
use hikkoshi_faults::{Features, ForeignUserfault, GiveBackError, Process, TakeError, Userfault};
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_wire::GuestDescription;
use serde_json::json;
use thiserror::Error;

use crate::announce;
use crate::attach::{AttachError, Attached, attach};
use crate::device_state::{self, Feed, Until};
use crate::hugetmpfs;
use crate::migration::{self, MigrationStatus};
use crate::preflight::Side;
use crate::qmp::{COMMAND_TIMEOUT, QmpError, Version};
use crate::settings::{self, Settings};
use crate::source::close_descriptor;
use crate::vcpus::{self, Vcpu};
use crate::vigil::Vigil;

/// How long loading the device state may take. QEMU reads guest memory while
/// it loads; with post-copy each page may have to come over the network first,
/// and QMP is silent meanwhile.
const LOAD: Duration = Duration::from_secs(300);

/// How long `cont` may take: storage is opened, and pages may be missing.
const CONT: Duration = Duration::from_secs(120);

/// How long to wait for `RESUME` once `cont` has been accepted.
const RESUMED: Duration = Duration::from_secs(10);

/// How long to try to stop a guest as the last resort.
const STOP: Duration = Duration::from_secs(3);

/// From this version on QEMU can be told to survive a bad stream, and so to
/// say what was wrong with it (`exit-on-error`).
const SURVIVES: Version = Version::new(9, 1, 0);

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
pub enum CatchError {
    /// No userfaultfd was to be had.
    #[error(transparent)]
    Take(#[from] TakeError),
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
    #[error("loading the device state: QEMU has not done so within {} s", LOAD.as_secs())]
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

/// Something taken from QEMU could not be given back. The rest was.
#[derive(Debug, Error)]
pub enum GiveUpError {
    /// The descriptor inside QEMU.
    #[error(transparent)]
    Userfault(#[from] GiveBackError),
    /// The settings.
    #[error("putting QEMU's migration settings back: {0}")]
    Settings(#[from] QmpError),
}

fn words(error: &Option<String>) -> String {
    error.as_ref().map_or_else(
        || " and has exited: its log or standard error says why".to_owned(),
        |error| format!(" ({error})"),
    )
}

/// A QEMU that waits for a guest; see [`DestinationGuest`].
#[derive(Debug)]
pub struct QemuDestination {
    qemu: Attached,
    settings: Settings,
    /// For the device state: our end, QEMU has the other already.
    socket: Option<UnixStream>,
    userfault: Option<ForeignUserfault>,
    loading: bool,
    loaded: bool,
    cancel: Option<Cancel>,
    /// Which thread runs which virtual processor.
    vcpus: Vec<Vcpu>,
    vigil: Option<Vigil>,
}

impl QemuDestination {
    /// Gets hold of the QEMU whose QMP socket is at `qmp`, started with
    /// `-incoming defer`.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; QEMU has not been touched then.
    pub fn attach(qmp: &Path) -> Result<Self, AttachError> {
        Ok(Self {
            qemu: attach(qmp, Side::Destination)?,
            settings: Settings::default(),
            socket: None,
            userfault: None,
            loading: false,
            loaded: false,
            cancel: None,
            vcpus: Vec::new(),
            vigil: None,
        })
    }

    /// Makes loading the device state end early, with an error, once `cancel`
    /// is set. (It is the one step that waits for the other side: for pages.)
    pub fn give_up_when(&mut self, cancel: Cancel) {
        self.cancel = Some(cancel);
    }

    /// Sets `cancel` when QEMU ends while it waits for a guest: nobody else
    /// would notice. With a guest on its way the calls for it fail.
    ///
    /// # Errors
    ///
    /// When there is no room for a thread.
    pub fn cancel_when_gone(&mut self, cancel: Cancel) -> io::Result<()> {
        self.vigil = Some(Vigil::start(&self.qemu.process, cancel)?);
        Ok(())
    }

    /// Whether QEMU is gone.
    pub fn has_ended(&self) -> bool {
        !self.qemu.process.is_alive()
    }

    /// The number of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.process.pid()
    }

    fn ready(&mut self) -> Result<(), PrepareError> {
        if let Some(vigil) = &self.vigil {
            vigil.look_away();
        }
        let client = &mut self.qemu.client;
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
            self.settings = before;
            settings::apply(client, &after)?;
        }
        if self.socket.is_none() {
            // Now, not when the source's guest is stopped and everybody waits.
            self.socket = Some(device_state::open(client, Until::End)?);
        }
        // Later QMP may be silent: QEMU may wait for a page itself.
        self.vcpus = vcpus::query(client)?;
        Ok(())
    }

    fn userfault(&mut self) -> Result<Arc<Userfault>, CatchError> {
        self.check_page_size()?;
        let taken = match self.userfault.take() {
            Some(taken) => taken,
            None => ForeignUserfault::take_from(&self.qemu.process, Features::FOR_MISSING)?,
        };
        Ok(Arc::clone(self.userfault.insert(taken).userfault()))
    }

    /// Pages of a tmpfs must come and go one by one.
    fn check_page_size(&self) -> Result<(), CatchError> {
        let ram = &self.qemu.ram;
        for ((block, _), file) in ram.layout().blocks().zip(ram.files()) {
            let id = || block.id.clone();
            if block.host_page != PAGE_BYTES {
                continue; // hugetlbfs: pages of one size, all of them.
            }
            let cause = hugetmpfs::cause(&self.qemu.process, file.as_fd())
                .map_err(|source| CatchError::Look { id: id(), source })?;
            if let Some(cause) = cause {
                return Err(CatchError::HugePages { id: id(), cause });
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
        self.qemu.client.set_cancel(cancel);
        self.qemu.client.set_timeout(LOAD);
        let outcome = self.load_within(state);
        self.qemu.client.set_cancel(None);
        self.qemu.client.set_timeout(COMMAND_TIMEOUT);
        self.loaded = outcome.is_ok();
        outcome
    }

    fn load_within(&mut self, state: Vec<u8>) -> Result<(), LoadError> {
        let client = &mut self.qemu.client;
        let began = Instant::now();
        let bytes = state.len();
        let socket = self.socket.take().ok_or(LoadError::NotPrepared)?;
        // Dropped at the end, which breaks a load that is still going on.
        let _feed = Feed::start(socket, state)?;
        client.forget_events();
        let mut ran = false;
        let uri = format!("fd:{}", device_state::NAME);
        let mut arguments = json!({ "uri": uri });
        if client.version() >= SURVIVES {
            arguments["exit-on-error"] = false.into();
        }
        client.execute("migrate-incoming", arguments)?;
        let status = migration::wait_status(
            client,
            "the device state to be loaded",
            LOAD,
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

    fn run(&mut self, running: bool) -> Result<Instant, RunError> {
        if !self.loaded {
            return Err(RunError::NotLoaded);
        }
        if !running {
            return Ok(Instant::now());
        }
        let client = &mut self.qemu.client;
        client.forget_events();
        let asked = Instant::now();
        client.execute_within("cont", json!({}), CONT)?;
        let resumed = client.wait_event("the guest to run", asked + CONT + RESUMED, |event| {
            (event.name == "RESUME").then_some(event.at)
        });
        let at = match resumed? {
            Some(at) => at.max(asked),
            None => {
                let state = migration::run_state(client)?;
                if !state.running {
                    return Err(RunError::Stopped {
                        state: state.status,
                    });
                }
                Instant::now()
            }
        };
        announce::announce_like(client, &self.settings.parameters);
        Ok(at)
    }

    fn give_back(&mut self) -> Result<(), GiveUpError> {
        let mut first: Result<(), GiveUpError> = Ok(());
        if let Some(userfault) = &self.userfault {
            match userfault.give_back() {
                Ok(()) => self.userfault = None,
                Err(error) => first = Err(error.into()),
            }
        }
        self.socket = None;
        if self.settings != Settings::default() {
            let client = &mut self.qemu.client;
            let restored =
                settings::apply(client, &self.settings).and_then(|()| close_descriptor(client));
            match restored {
                // A QEMU that has exited needs nothing back.
                Ok(()) => self.settings = Settings::default(),
                Err(error) if error.is_closed() => self.settings = Settings::default(),
                Err(error) if first.is_ok() => first = Err(error.into()),
                Err(error) => tracing::warn!(%error, "putting QEMU's migration settings back"),
            }
        }
        if let Some(vigil) = &self.vigil {
            vigil.look();
        }
        first
    }
}

impl DestinationGuest for QemuDestination {
    fn describe(&self) -> &GuestDescription {
        &self.qemu.description
    }

    fn ram(&self) -> Arc<RamFiles> {
        Arc::clone(&self.qemu.ram)
    }

    fn prepare(&mut self) -> Result<(), GuestError> {
        self.ready().map_err(GuestError::new)
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        let userfault = self.userfault().map_err(GuestError::new)?;
        Ok((userfault, self.qemu.addresses.clone()))
    }

    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError> {
        self.load(state).map_err(GuestError::new)
    }

    fn resume(&mut self, running: bool) -> Result<Instant, GuestError> {
        self.run(running).map_err(GuestError::new)
    }

    fn stop(&mut self) -> Result<(), GuestError> {
        let stopped = self.qemu.client.execute_within("stop", json!({}), STOP);
        match stopped {
            Ok(_) => Ok(()),
            // A QEMU that has exited runs no guest.
            Err(error) if error.is_closed() => Ok(()),
            Err(error) => Err(GuestError::new(error)),
        }
    }

    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        vcpus::name(&self.qemu.process, &self.vcpus, thread)
    }

    fn memory_place(&self) -> Option<(Arc<Process>, Vec<u64>)> {
        Some((Arc::clone(&self.qemu.process), self.qemu.addresses.clone()))
    }

    fn abandon_userfault(&mut self) {
        // QEMU's main loop may wait for a page that will not come now. What is
        // still to be said to it must not take long.
        self.qemu.client.set_timeout(STOP);
        if let Some(userfault) = self.userfault.take() {
            userfault.keep_inside();
        }
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.give_back().map_err(GuestError::new)
    }
}

impl Drop for QemuDestination {
    fn drop(&mut self) {
        if self.loading
            && let Some(userfault) = self.userfault.take()
        {
            // Not released: pages may be missing, and closing it would turn
            // them into zeros without a word.
            tracing::warn!(
                pid = self.qemu.process.pid(),
                number = userfault.remote(),
                "leaving the userfaultfd in QEMU, pages may be missing"
            );
            userfault.keep_inside();
        }
        if let Err(error) = self.give_back() {
            tracing::warn!(%error, "leaving QEMU");
        }
    }
}
