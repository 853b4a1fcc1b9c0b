//! Runs both sides of a migration in one process.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::report::Live;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationOptions, MigrateControl, MigrateError, Mode, Observer,
    ReceiveControl, ReceiveError, SourceControl, SourceOptions, give_up_migrate, give_up_receive,
    migrate, receive, resume_migrate, resume_receive,
};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::{DestinationRecord, Journal, SourceRecord, SourceStage};
use hikkoshi_link::tls::{TlsClient, TlsServer};
use hikkoshi_link::{Address, HandshakeError, Listener, Remote, Stream};
use hikkoshi_pages::RamLayout;
use hikkoshi_userfault::Userfault;
use hikkoshi_wire::{Hello, Limits};
use tempfile::TempDir;

use crate::direct_io_device::DirectDevice;
use crate::guests::{Script, TestDestination, TestSource};
use crate::machine::{Machine, Side};
use crate::memory::{MIB, Memory, SMALL, layout};
use crate::relay::{Fate, Passing, Policy, Relay};
use crate::tampering_proxy::TamperingProxy;

/// A test that takes longer than this hangs, even on a slow machine: the process prints a message
/// and aborts.
const TEST_TIMEOUT: Duration = Duration::from_secs(400);

/// Ends the process if it is not dropped in time.
#[derive(Debug)]
pub(crate) struct Watchdog(#[allow(dead_code)] mpsc::Sender<()>);

pub(crate) fn watchdog() -> Watchdog {
    let (sender, receiver) = mpsc::channel::<()>();
    let test = thread::current().name().unwrap_or("a test").to_owned();
    thread::spawn(move || {
        if receiver.recv_timeout(TEST_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not with a macro: the test harness would capture the output.
            let _ = writeln!(io::stderr(), "{test} hangs: aborting all tests");
            std::process::abort();
        }
    });
    Watchdog(sender)
}

/// Records the messages for the operator.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Vec<String>>);

impl Notices {
    pub(crate) fn all(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Observer for Notices {
    fn begin(&self, _: &Arc<Live>) {}

    fn notice(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// The state of one side, as soon as its migration has begun.
pub(crate) type LiveState = Arc<OnceLock<Arc<Live>>>;

/// The observer of one side: records its messages, and keeps its state.
#[derive(Debug)]
struct RecordingObserver {
    notices: Arc<Notices>,
    live: LiveState,
}

impl Observer for RecordingObserver {
    fn begin(&self, live: &Arc<Live>) {
        self.live.set(Arc::clone(live)).unwrap();
    }

    fn notice(&self, text: &str) {
        self.notices.notice(text);
    }
}

/// A migration that is about to start.
pub(crate) struct Setup {
    pub machine: Arc<Machine>,
    pub source: TestSource,
    pub destination: TestDestination,
    pub options: SourceOptions,
    pub receive_options: DestinationOptions,
    pub source_cancel: CancelFlag,
    pub source_control: SourceControl,
    pub destination_cancel: CancelFlag,
    policy: Option<Box<Policy>>,
    pub source_journal: Arc<Records<SourceRecord>>,
    pub destination_journal: Arc<Records<DestinationRecord>>,
    /// What both sides protect their links with.
    pub tls: Option<(TlsClient, TlsServer)>,
    /// Carries every byte between the two sides, if set.
    pub proxy: Option<Arc<TamperingProxy>>,
    /// The state of the source, and of the destination.
    pub live: [LiveState; 2],
    folder: TempDir,
}

/// The journal of an engine, kept in memory for the next engine.
pub(crate) struct Records<R> {
    last: Mutex<Option<R>>,
    /// Called before each record.
    before: Mutex<Box<BeforeRecord<R>>>,
    closed: AtomicBool,
}

type BeforeRecord<R> = dyn FnMut(&R) -> io::Result<()> + Send;

impl<R> Default for Records<R> {
    fn default() -> Self {
        Self {
            last: Mutex::new(None),
            before: Mutex::new(Box::new(|_| Ok(()))),
            closed: AtomicBool::new(false),
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for Records<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Records").field(&self.last).finish()
    }
}

impl<R: Clone> Records<R> {
    pub(crate) fn before(&self, hook: impl FnMut(&R) -> io::Result<()> + Send + 'static) {
        *self.before.lock().unwrap() = Box::new(hook);
    }

    pub(crate) fn last(&self) -> Option<R> {
        self.last.lock().unwrap().clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl<R: Clone + fmt::Debug + Send> Journal<R> for Records<R> {
    fn record(&self, record: &R) -> io::Result<()> {
        assert!(
            !self.is_closed(),
            "{record:?} recorded after the journal was closed"
        );
        (self.before.lock().unwrap())(record)?;
        *self.last.lock().unwrap() = Some(record.clone());
        Ok(())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// The result of a migration.
#[derive(Debug)]
pub(crate) struct Done {
    pub source: Result<Account, MigrateError>,
    pub destination: Result<Account, ReceiveError>,
    pub machine: Arc<Machine>,
    pub source_calls: Arc<Script>,
    pub destination_calls: Arc<Script>,
    pub notices: Arc<Notices>,
    pub abandoned: bool,
    /// Left in the destination's process.
    userfault: Option<Arc<Userfault>>,
    pub source_journal: Arc<Records<SourceRecord>>,
    pub destination_journal: Arc<Records<DestinationRecord>>,
    device_bytes: usize,
    pub commits: u32,
}

impl Setup {
    /// However fast a round is, the guest writes some pages in it before each take of the log. And
    /// if the log is read because pre-copy seems to have converged, some page is dirty.
    pub(crate) fn write_in_each_round(&self) {
        for call in ["take", "count"] {
            let machine = Arc::clone(&self.machine);
            self.source.script.at(call, move || {
                machine.work(50);
                Ok(())
            });
        }
    }

    /// A running guest of 3 MiB in two blocks.
    pub(crate) fn new(mode: Mode) -> Self {
        let layout = layout(&[(MIB, SMALL), (2 * MIB, SMALL)]);
        Self::with(mode, &layout, &layout, true)
    }

    pub(crate) fn with(
        mode: Mode,
        source: &RamLayout,
        destination: &RamLayout,
        running: bool,
    ) -> Self {
        Self::with_device(mode, [source, destination], running, 0)
    }

    /// A running guest with a device that writes by direct I/O into this many pages at the end of
    /// its memory.
    pub(crate) fn with_direct_io(mode: Mode, layout: &RamLayout, pages: u64) -> Self {
        let mut setup = Self::with_device(mode, [layout; 2], true, pages);
        setup.source.device = Some(DirectDevice::new(&setup.machine, pages));
        setup
    }

    /// A running guest in this memory.
    pub(crate) fn in_memory(mode: Mode, source: Memory, destination: Memory) -> Self {
        Self::with_memory(mode, [source, destination].map(Arc::new), true, 0)
    }

    fn with_device(mode: Mode, layouts: [&RamLayout; 2], running: bool, device_pages: u64) -> Self {
        let memory = layouts.map(|layout| Arc::new(Memory::new(layout)));
        Self::with_memory(mode, memory, running, device_pages)
    }

    fn with_memory(
        mode: Mode,
        [source, destination]: [Arc<Memory>; 2],
        running: bool,
        device_pages: u64,
    ) -> Self {
        let machine = Machine::with_device_pages(&source, &destination, device_pages);
        let machine = Arc::new(machine);
        if running {
            machine.run(Side::Source);
            machine.work(100);
        }
        let device_bytes = 1_200_000;
        Self {
            source: TestSource::new(&machine, running, device_bytes),
            destination: TestDestination::new(&machine, device_bytes),
            machine,
            options: SourceOptions {
                mode,
                ..SourceOptions::default()
            },
            receive_options: DestinationOptions::default(),
            source_cancel: CancelFlag::new(),
            source_control: SourceControl::new(),
            destination_cancel: CancelFlag::new(),
            policy: None,
            source_journal: Arc::default(),
            destination_journal: Arc::default(),
            tls: None,
            proxy: None,
            live: Default::default(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Puts a relay between the two sides.
    pub(crate) fn relay(&mut self, policy: impl Fn(&Passing) -> Fate + Send + Sync + 'static) {
        self.policy = Some(Box::new(policy));
    }

    /// Runs both sides until they end. A destination that keeps waiting for another source is
    /// cancelled.
    pub(crate) fn run(self) -> Done {
        let (ended, _) = mpsc::sync_channel(0);
        self.run_until(ended)
    }

    /// The same; `ended` is dropped once the source has ended.
    pub(crate) fn run_until(self, ended: mpsc::SyncSender<()>) -> Done {
        let _watchdog = watchdog();
        let Self {
            machine,
            mut source,
            mut destination,
            options,
            receive_options,
            source_cancel,
            source_control,
            destination_cancel,
            policy,
            source_journal,
            destination_journal,
            tls,
            proxy,
            live,
            folder,
        } = self;
        let address = format!("unix:{}", folder.path().join("listen").display());
        let mut listener = Listener::bind(&address.parse().unwrap()).unwrap();
        let (client, server) = tls.unzip();
        if let Some(server) = server {
            listener = listener.with_tls(server);
        }
        let limits = Limits::from(machine.memory(Side::Source).layout());
        let relay =
            policy.map(|policy| Relay::new(folder.path(), listener.address(), limits, policy));
        let address = relay
            .as_ref()
            .map_or_else(|| listener.address().clone(), Relay::address);
        let address = proxy.map_or(address.clone(), |proxy| {
            proxy.before(&address, folder.path())
        });
        let remote = Remote {
            loopback_only: false,
            address,
            tls: client,
        };
        let notices = Arc::new(Notices::default());
        let (source_calls, destination_calls) =
            (Arc::clone(&source.script), Arc::clone(&destination.script));
        let [here, there] = live.map(|live| {
            Arc::new(RecordingObserver {
                notices: Arc::clone(&notices),
                live,
            })
        });
        let receive_control = ReceiveControl {
            cancel: destination_cancel.clone(),
            observer: there,
            journal: Arc::<Records<_>>::clone(&destination_journal),
        };
        let result = thread::scope(|scope| {
            let (destination, options_there) = (&mut destination, &receive_options);
            let (listener, receive_control) = (listener, &receive_control);
            // Nothing listens once it has ended, as with a program.
            let receiving = scope
                .spawn(move || receive(destination, &listener, options_there, receive_control));
            let watch = MigrateControl {
                cancel: source_cancel,
                control: source_control,
                observer: here,
                journal: Arc::<Records<_>>::clone(&source_journal),
            };
            let migrated = migrate(&mut source, &remote, &options, &watch);
            drop(ended);
            if let Err(error) = &migrated
                && Report::new(&error.cause).to_string().contains("refuses")
            {
                destination_cancel.cancel();
            }
            (migrated, receiving.join().unwrap())
        });
        Done {
            source: result.0,
            destination: result.1,
            source_calls,
            destination_calls,
            notices,
            abandoned: destination.abandoned,
            userfault: destination.userfault.take(),
            commits: u32::from(
                source_journal
                    .last()
                    .is_some_and(|record| record.stage != SourceStage::Owned),
            ),
            source_journal,
            destination_journal,
            device_bytes: source.device_bytes,
            machine,
        }
    }
}

impl Done {
    /// Asserts that the guest runs at the destination (or is paused there, if its owner had paused
    /// it), and that its memory is unchanged.
    #[track_caller]
    pub(crate) fn moved(self, running: bool) -> (Account, Account) {
        let (source, destination) = match (self.source, self.destination) {
            (Ok(source), Ok(destination)) => (source, destination),
            (source, destination) => panic!(
                "source: {:?}\ndestination: {:?}",
                source.map_err(|e| e.to_string()),
                destination.map_err(|e| e.to_string())
            ),
        };
        assert_eq!(self.machine.runs(), running.then_some(Side::Destination));
        if running {
            // It continues with no page missing.
            self.machine.work(500);
        }
        self.machine.check(Side::Destination);
        assert_eq!(self.source_calls.count("resume"), 0, "at the source");
        assert_eq!(self.source_calls.count("release"), 1);
        assert_eq!(self.destination_calls.count("resume"), 1);
        assert_eq!(self.destination_calls.count("release"), 1);
        assert_eq!(self.commits, 1);
        (source, destination)
    }

    /// Asserts that the guest runs at the source, undamaged, and that both sides report this.
    /// Returns both errors' texts.
    #[track_caller]
    pub(crate) fn at_source(&self) -> (String, String) {
        let (source, destination) = self.errors();
        assert_eq!(
            (source.0, destination.0),
            (Outcome::AtSource, Outcome::AtSource),
            "{source:?}\n{destination:?}"
        );
        self.runs_at_source();
        (source.1, destination.1)
    }

    /// Asserts that the guest runs at the source, whatever the destination reports.
    #[track_caller]
    pub(crate) fn runs_at_source(&self) {
        assert_eq!(self.machine.runs(), Some(Side::Source));
        self.machine.work(200);
        self.machine.check(Side::Source);
        let released = self.source_calls.calls();
        assert_eq!(released.last(), Some(&"release"), "{released:?}");
        assert_eq!(self.source_calls.count("release"), 1);
        assert_eq!(self.destination_calls.count("resume"), 0);
    }

    /// Asserts that both engines left the guest as it is, and report this; nothing was released.
    /// Returns both errors' texts.
    #[track_caller]
    pub(crate) fn interrupted(&self) -> (String, String) {
        let (source, destination) = self.errors();
        for outcome in [source.0, destination.0] {
            assert_ne!(outcome, Outcome::AtSource, "{source:?}\n{destination:?}");
        }
        assert_ne!(self.machine.runs(), Some(Side::Source));
        assert_eq!(self.source_calls.count("resume"), 0);
        // Pages may be missing: after a release they would read as zeros.
        assert_eq!(self.destination_calls.count("release"), 0);
        assert!(!self.source_journal.is_closed() && !self.destination_journal.is_closed());
        self.machine.undamaged();
        (source.1, destination.1)
    }

    /// Starts new engines at both sides: the source resumes its guest, and both sides report it. A
    /// destination without a record has ended.
    #[track_caller]
    pub(crate) fn returned_to_source(self) {
        let _watchdog = watchdog();
        let folder = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", folder.path().join("again").display());
        let listener = Listener::bind(&address.parse().unwrap()).unwrap();
        let record = self
            .destination_journal
            .last()
            .filter(|_| !self.destination_journal.is_closed());
        let progress = record.is_some();
        let mut destination = TestDestination::new(&self.machine, self.device_bytes);
        destination.ended.store(true, Ordering::Relaxed);
        let mut source = TestSource::new(&self.machine, true, self.device_bytes);
        let receive_control = self.receive_control();
        let (there, here) = thread::scope(|scope| {
            let receiving = record.map(|record| {
                scope.spawn(|| {
                    let options = DestinationOptions::default();
                    resume_receive(
                        &mut destination,
                        record,
                        &listener,
                        &options,
                        &receive_control,
                    )
                })
            });
            let record = self.source_journal.last().unwrap();
            let remote = listener.address().clone().into();
            let options = SourceOptions::default();
            let moved = resume_migrate(&mut source, record, &remote, &options, &self.watch());
            (moved, receiving.map(|receiving| receiving.join().unwrap()))
        });
        assert_eq!(there.unwrap_err().outcome, Outcome::AtSource);
        assert!(self.source_journal.is_closed());
        if let Some(here) = here {
            assert_eq!(here.unwrap_err().outcome, Outcome::AtSource);
        }
        assert_eq!(self.destination_journal.is_closed(), progress);
        assert_eq!(self.machine.runs(), Some(Side::Source));
        self.machine.work(200);
        self.machine.check(Side::Source);
    }

    fn watch(&self) -> MigrateControl {
        MigrateControl {
            cancel: CancelFlag::new(),
            control: SourceControl::new(),
            observer: Arc::<Notices>::clone(&self.notices),
            journal: Arc::<Records<_>>::clone(&self.source_journal),
        }
    }

    fn receive_control(&self) -> ReceiveControl {
        ReceiveControl {
            cancel: CancelFlag::new(),
            observer: Arc::<Notices>::clone(&self.notices),
            journal: Arc::<Records<_>>::clone(&self.destination_journal),
        }
    }

    /// Abandons the migration at the destination. Returns the calls to its adapter.
    pub(crate) fn give_up_destination(&self) -> Arc<Script> {
        let mut guest = TestDestination::new(&self.machine, self.device_bytes);
        let record = self.destination_journal.last().unwrap();
        give_up_receive(&mut guest, record, &self.receive_control()).unwrap();
        guest.script
    }

    /// Abandons the migration at the source.
    #[track_caller]
    pub(crate) fn give_up_source(&self) {
        self.try_to_give_up_source(|_| ()).unwrap();
    }

    /// The same with a guest that `prepare` has changed.
    pub(crate) fn try_to_give_up_source(
        &self,
        prepare: impl Fn(&Script),
    ) -> Result<(), MigrateError> {
        let mut guest = TestSource::new(&self.machine, true, self.device_bytes);
        prepare(&guest.script);
        let record = self.source_journal.last().unwrap();
        give_up_migrate(&mut guest, record, &self.watch())
    }

    /// Resumes the migration at a source whose guest runs.
    #[track_caller]
    pub(crate) fn resume_is_refused_while_it_runs(&self) -> MigrateError {
        let mut source = TestSource::new(&self.machine, true, self.device_bytes);
        source.script.fail("check_paused");
        let record = self.source_journal.last().unwrap();
        // No connection is made.
        let nowhere: Address = "unix:/nowhere/at/all".parse().unwrap();
        let options = SourceOptions::default();
        let result = resume_migrate(
            &mut source,
            record,
            &nowhere.into(),
            &options,
            &self.watch(),
        );
        assert_eq!(source.script.calls(), ["check_paused", "leave"]);
        assert!(!self.source_journal.is_closed());
        result.unwrap_err()
    }

    /// New engines resume the migration from the records of the earlier ones, with new adapters:
    /// every page arrives, undamaged.
    #[track_caller]
    pub(crate) fn resumed(self, what: &str) {
        let _watchdog = watchdog();
        let machine = &self.machine;
        let source_record = self.source_journal.last().unwrap();
        let record = self.destination_journal.last().unwrap();
        let running = record.running;
        // The guest was paused at the destination to check its memory.
        let memory_checked = self.destination.is_ok();
        if memory_checked {
            machine.run(Side::Destination);
        }
        let mut source = TestSource::new(machine, true, self.device_bytes);
        let mut destination = TestDestination::new(machine, self.device_bytes);
        destination.userfault = self.userfault;
        let folder = tempfile::tempdir().unwrap();
        let address = format!("unix:{}", folder.path().join("again").display());
        let listener = Listener::bind(&address.parse().unwrap()).unwrap();
        let watch = MigrateControl {
            cancel: CancelFlag::new(),
            control: SourceControl::new(),
            observer: Arc::<Notices>::clone(&self.notices),
            journal: Arc::<Records<_>>::clone(&self.source_journal),
        };
        let receive_control = ReceiveControl {
            cancel: CancelFlag::new(),
            observer: Arc::<Notices>::clone(&self.notices),
            journal: Arc::<Records<_>>::clone(&self.destination_journal),
        };
        let (there, here) = thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let options = DestinationOptions::default();
                resume_receive(
                    &mut destination,
                    record,
                    &listener,
                    &options,
                    &receive_control,
                )
            });
            let options = SourceOptions {
                // A different number than before.
                links: 3,
                ..SourceOptions::default()
            };
            let remote = listener.address().clone().into();
            let moved = resume_migrate(&mut source, source_record, &remote, &options, &watch);
            (moved, receiving.join().unwrap())
        });
        if let Err(error) = &there {
            panic!("{what}: source: {error}; destination: {here:?}");
        }
        here.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            machine.runs(),
            running.then_some(Side::Destination),
            "{what}"
        );
        let starts = u32::from(running) + u32::from(memory_checked);
        assert_eq!(machine.starts(Side::Destination), starts, "{what}");
        machine.work(500);
        machine.check(Side::Destination);
        assert_eq!(source.script.count("resume"), 0);
        let calls = source.script.calls();
        assert_eq!(calls, ["check_paused", "release"], "{what}");
        assert_eq!(destination.script.count("release"), 1, "{what}");
        assert!(self.source_journal.is_closed() && self.destination_journal.is_closed());
    }

    #[track_caller]
    pub(crate) fn errors(&self) -> ((Outcome, String), (Outcome, String)) {
        let (Err(source), Err(destination)) = (&self.source, &self.destination) else {
            panic!("both sides should have failed: {:?}", self);
        };
        (
            (source.outcome, Report::new(source).to_string()),
            (destination.outcome, Report::new(destination).to_string()),
        )
    }
}

/// Connects to `remote` and sends `hello`; there is no time limit.
pub(crate) fn open(remote: &Remote, hello: &Hello) -> Result<Stream, HandshakeError> {
    let opened = hikkoshi_link::open(remote, hello, &CancelFlag::new());
    opened.map(|(stream, _)| stream)
}
