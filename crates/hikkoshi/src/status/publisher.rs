//! One run of `migrate` or `receive`, as it is shown and recorded.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use error_reporter::Report;
use hikkoshi_account::Statistics;
use hikkoshi_control::{ControlFolder, ControlServer};
use hikkoshi_engine::report::Live;
use hikkoshi_engine::{Observer, Priority, PriorityClass, SourceControl};
use hikkoshi_estimate::WorkingSet;
use hikkoshi_qemu::qmp::MonitorAddress;
use hikkoshi_status::{
    End, Migration, Recorder, Recording, StatusFolder, StatusRecord, StatusServer,
};

use super::control;
use super::renewal::Renewal;
use super::report_file::write_report_of;
use super::run_info::RunInfo;
use super::sampler::{Sampler, migration};
use super::stored_file::StoredFile;
use crate::args::OutputOptions;
use crate::output::exit::{self, Exit, ExitStatus};
use crate::output::progress::Display;
use crate::output::streams;
use crate::output::units::mib;

/// How often a state is taken.
const PERIOD: Duration = Duration::from_millis(100);

/// Notices that wait to be recorded. More are not recorded, but counted.
const NOTICES: usize = 256;

/// Shows, records and serves the migration of one run. Created before the engine, and ended with
/// the result of the run.
#[derive(Debug)]
pub(crate) struct RunPublisher {
    output: OutputOptions,
    shared: Arc<Shared>,
}

/// What the publisher and its observer share.
#[derive(Debug)]
struct Shared {
    itself: Weak<Shared>,
    info: Mutex<RunInfo>,
    /// What clients of the control socket change: at the source.
    control: Mutex<Option<SourceControl>>,
    folder: StatusFolder,
    control_folder: ControlFolder,
    display: Arc<Display>,
    recording: Mutex<Option<RecordingThread>>,
    account: Mutex<Option<Statistics>>,
    /// What is moved, when a migration has begun.
    migration: Mutex<Option<Migration>>,
    /// When the engine that this one replaces had its last sign of the other side.
    last_sign: Mutex<Option<SystemTime>>,
}

/// The thread that takes states.
#[derive(Debug)]
struct RecordingThread {
    begun: Instant,
    events: SyncSender<Event>,
    /// Notices for which there was no room.
    dropped: Arc<AtomicU64>,
    thread: JoinHandle<Recording>,
}

/// What the thread is sent.
#[derive(Debug)]
enum Event {
    /// A notice, and when it was made.
    Notice(u64, String),
    /// The run ends.
    End(End),
}

impl RunPublisher {
    /// A publisher with the display that `output` asks for.
    pub(crate) fn new(output: &OutputOptions, run_folder: &Path, info: RunInfo) -> Self {
        Self {
            output: output.clone(),
            shared: Arc::new_cyclic(|itself| Shared {
                itself: Weak::clone(itself),
                info: Mutex::new(info),
                control: Mutex::default(),
                folder: StatusFolder::in_run_folder(run_folder),
                control_folder: ControlFolder::in_run_folder(run_folder),
                display: Arc::new(Display::new(output.progress)),
                recording: Mutex::default(),
                account: Mutex::default(),
                migration: Mutex::default(),
                last_sign: Mutex::default(),
            }),
        }
    }

    /// The options of the run.
    pub(crate) fn options(&self) -> &OutputOptions {
        &self.output
    }

    /// The guest's name, if the command line does not have it.
    pub(crate) fn set_guest(&self, guest: &str) {
        guest.clone_into(&mut lock(&self.shared.info).guest);
    }

    /// How the monitor of the guest's QEMU is reached.
    pub(crate) fn set_monitor(&self, monitor: &MonitorAddress) {
        lock(&self.shared.info).qmp = match monitor {
            MonitorAddress::Socket(path) => Some(path.clone()),
            MonitorAddress::Domain { .. } => None,
        };
    }

    /// What the guest writes, as it was measured.
    pub(crate) fn set_working_set(&self, measured: WorkingSet) {
        lock(&self.shared.info).working_set = Some(measured);
    }

    /// Lets clients of the control socket change the migration that begins next.
    pub(crate) fn set_control(&self, control: &SourceControl) {
        *lock(&self.shared.control) = Some(control.clone());
    }

    /// The observer for the engine.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::<Shared>::clone(&self.shared)
    }

    /// No progress is drawn any more: a result follows.
    pub(crate) fn end_display(&self) {
        self.shared.display.clear();
    }

    /// The statistics of the migration, as `--json` has them.
    pub(crate) fn set_account(&self, account: Statistics) {
        *lock(&self.shared.account) = Some(account);
    }

    /// What is moved, from where to where. `None`: no migration has begun.
    pub(crate) fn migration(&self) -> Option<Migration> {
        lock(&self.shared.migration).clone()
    }

    /// Ends the publisher with the result of the run. The recording stays in the status folder. The
    /// report is written, if it was requested.
    pub(crate) fn end(self, result: &Result<ExitStatus, Exit>) {
        self.end_display();
        let recording = self.end_recording(result);
        if let (Some(recording), Err(exit)) = (&recording, result)
            && exit.status() == ExitStatus::Unfinished
            && let Some(owed) = owed(recording)
        {
            streams::notice(&owed);
        }
        let Some(path) = &self.output.result.report else {
            return;
        };
        match recording {
            Some(recording) => write_report_of(recording, &self.shared.folder, path),
            None => streams::notice(&format!(
                "no report was written to {}: no migration had begun",
                path.display()
            )),
        }
    }

    /// The whole recording; `None`: no migration had begun.
    fn end_recording(&self, result: &Result<ExitStatus, Exit>) -> Option<Recording> {
        let recording = lock(&self.shared.recording).take()?;
        let account = lock(&self.shared.account).take();
        let event = Event::End(end(result, recording.at_ms(), account));
        // A thread that has panicked does not receive it; the panic was reported.
        let _ = recording.events.send(event);
        recording.thread.join().ok()
    }
}

impl RecordingThread {
    /// Milliseconds since the migration began.
    fn at_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Observer for Shared {
    fn begin(&self, live: &Arc<Live>) {
        let migration = migration(live, &lock(&self.info));
        *lock(&self.migration) = Some(migration.clone());
        let control = lock(&self.control).clone();
        let control_server = control
            .as_ref()
            .and_then(|control| self.serve_control(&migration.entry_name(), control));
        let recorder = Recorder::new(migration);
        let sampler = Sampler::new(live, &lock(&self.info), control);
        let display = Arc::clone(&self.display);
        let (sender, events) = sync_channel(NOTICES);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let (folder, side) = (self.folder.clone(), lock(&self.info).side);
        *lock(&self.last_sign) = live
            .is_resumed()
            .then(|| folder.last_sign(side, &live.name()))
            .flatten();
        let started = thread::Builder::new().name("status".into()).spawn(move || {
            Priority::ON.apply(PriorityClass::Background);
            let mut recorded = Recorded::begin(sampler, recorder, control_server, display, folder);
            let end = recorded.until_end(&events, &counted);
            recorded.finish(end)
        });
        match started {
            Ok(thread) => {
                *lock(&self.recording) = Some(RecordingThread {
                    begun: live.begun(),
                    events: sender,
                    dropped,
                    thread,
                });
            }
            Err(error) => tracing::warn!(
                error = %Report::new(&error),
                "starting the thread that shows and records the migration"
            ),
        }
    }

    fn last_sign_before(&self, _: &Live) -> Option<SystemTime> {
        *lock(&self.last_sign)
    }

    fn notice(&self, text: &str) {
        streams::notice(text);
        if let Some(recording) = &*lock(&self.recording) {
            let notice = Event::Notice(recording.at_ms(), text.to_owned());
            // A thread of the engine may be here, which does not wait.
            if recording.events.try_send(notice).is_err() {
                recording.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Shared {
    /// Serves the control socket of the migration with this name.
    fn serve_control(&self, name: &str, control: &SourceControl) -> Option<ControlServer> {
        let (control, itself) = (control.clone(), Weak::clone(&self.itself));
        let handle = move |command| {
            control::handle(command, &control, &|text| {
                // It is gone when the publisher has ended.
                if let Some(observer) = itself.upgrade() {
                    observer.notice(text);
                }
            })
        };
        ControlServer::start(&self.control_folder, name, handle)
            .inspect_err(|error| {
                tracing::warn!(
                    error = %Report::new(error),
                    "`hikkoshi set`, `switch` and `cancel` cannot reach this migration"
                );
            })
            .ok()
    }
}

/// What the thread works with.
struct Recorded {
    sampler: Sampler,
    recorder: Recorder,
    /// `None`: the status folder cannot be used.
    server: Option<StatusServer>,
    control_server: Option<ControlServer>,
    display: Arc<Display>,
    folder: StatusFolder,
    renewal: Renewal,
    stored: StoredFile,
    /// A warning was logged that the recording cannot be stored.
    has_warned: bool,
}

impl Recorded {
    /// Makes the socket and the file.
    fn begin(
        sampler: Sampler,
        recorder: Recorder,
        control_server: Option<ControlServer>,
        display: Arc<Display>,
        folder: StatusFolder,
    ) -> Self {
        let server = StatusServer::start(&folder, &recorder)
            .inspect_err(|error| {
                tracing::warn!(
                    error = %Report::new(error),
                    "a dashboard will not show this migration"
                );
            })
            .ok();
        let mut recorded = Self {
            sampler,
            recorder,
            server,
            control_server,
            display,
            folder,
            renewal: Renewal::default(),
            stored: StoredFile::default(),
            has_warned: false,
        };
        recorded.store();
        recorded
    }

    /// Takes a state every [`PERIOD`]. `None`: the publisher was dropped.
    fn until_end(&mut self, events: &Receiver<Event>, dropped: &AtomicU64) -> Option<End> {
        let mut next = Instant::now();
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            match events.recv_timeout(wait) {
                Ok(Event::Notice(at_ms, text)) => {
                    self.notice(at_ms, &text);
                    let dropped = dropped.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        let text = format!("{dropped} messages were not recorded here");
                        self.notice(at_ms, &text);
                    }
                }
                Ok(Event::End(end)) => return Some(end),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    // Late ticks are left out: the thread has a low priority.
                    next = (next + PERIOD).max(Instant::now());
                    self.take();
                    self.renew();
                }
            }
        }
    }

    fn notice(&mut self, at_ms: u64, text: &str) {
        let notice = self.recorder.notice(at_ms, text);
        self.publish(&StatusRecord::Notice(notice));
    }

    /// Takes the present state.
    fn take(&mut self) {
        let state = self.sampler.state();
        let guest = &self.recorder.recording().migration.guest;
        self.display.state(guest, &state);
        if let Some(server) = &mut self.server {
            server.accept(&self.recorder);
            server.publish(&StatusRecord::State(Box::new(state.clone())));
        }
        self.stored.note(&state);
        self.recorder.add(state);
    }

    /// Stores the recording if it is time to. If the engine is killed, that is what is left of it.
    fn renew(&mut self) {
        let begun = Instant::now();
        let Some(state) = &self.recorder.recording().state else {
            return;
        };
        if !self.renewal.is_due(state, begun) {
            return;
        }
        self.store();
        if let Some(state) = &self.recorder.recording().state {
            self.renewal.stored(state, begun, Instant::now());
        }
    }

    fn store(&mut self) {
        if self.server.is_none() {
            return;
        }
        match self.folder.store(self.recorder.recording()) {
            Ok(path) => self.stored.open(&path),
            Err(error) if !std::mem::replace(&mut self.has_warned, true) => tracing::warn!(
                error = %Report::new(&error),
                "a dashboard will not show this migration after its end"
            ),
            Err(_) => {}
        }
    }

    fn publish(&mut self, record: &StatusRecord) {
        if let Some(server) = &mut self.server {
            server.publish(record);
        }
    }

    /// The last state, and the end.
    fn finish(mut self, end: Option<End>) -> Recording {
        drop(self.control_server.take());
        self.take();
        if let Some(end) = end {
            self.recorder.end(end.clone());
            self.publish(&StatusRecord::End(end));
        }
        // The file is there before the socket is gone.
        self.has_warned = false;
        self.store();
        if let Some(server) = self.server {
            server.finish();
        }
        self.recorder.into_recording()
    }
}

/// How much of the guest's memory is not at the destination yet, if that is known.
fn owed(recording: &Recording) -> Option<String> {
    let missing @ 1.. = recording.state.as_ref()?.missing_pages? else {
        return None;
    };
    let bytes = missing.saturating_mul(recording.migration.memory.page_bytes);
    let guest = &recording.migration.guest;
    Some(format!(
        "{guest}: {missing} pages ({}) are owed",
        mib(bytes)
    ))
}

/// How the run ended.
fn end(result: &Result<ExitStatus, Exit>, at_ms: u64, account: Option<Statistics>) -> End {
    let end = match result {
        Ok(ExitStatus::ShutDown) => exit::End::SHUT_DOWN,
        Ok(_) => exit::End::MOVED,
        Err(exit) => exit::End::from(exit),
    };
    End {
        at_ms,
        exit_status: end.exit_status,
        reason: end.reason.code().to_owned(),
        message: end.message.to_owned(),
        next: end.next.map(ToOwned::to_owned),
        account: account.map(Box::new),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
