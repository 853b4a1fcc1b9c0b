//! Runs both sides of a migration in one process.

mod done;
mod observer;
mod records;

use std::io::{self, Write};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{
    CancelFlag, Compression, DestinationOptions, MigrateControl, Mode, ReceiveControl,
    SourceControl, SourceOptions, migrate, receive,
};
use hikkoshi_handover::{DestinationRecord, SourceRecord, SourceStage, Unrecorded};
use hikkoshi_lab::relay::{Carries, Fate, Message, Relay, RelayPolicy};
use hikkoshi_link::tls::{TlsClient, TlsServer};
use hikkoshi_link::{Address, HandshakeError, Listener, Remote, Stream};
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{Features, Hello};
use tempfile::TempDir;

use crate::direct_io_device::DirectDevice;
use crate::guests::{TestDestination, TestSource};
use crate::machine::{Machine, Side};
use crate::memory::{MIB, Memory, SMALL, layout};
use crate::message_policy::{Decide, MessagePolicy};

use observer::RecordingObserver;

pub(crate) use done::Done;
pub(crate) use observer::{LiveState, Notices};
pub(crate) use records::Records;

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
    decide: Option<Box<Decide>>,
    /// What a relay of messages passes of the destination's features.
    pub features: Features,
    pub source_journal: Arc<Records<SourceRecord>>,
    pub destination_journal: Arc<Records<DestinationRecord>>,
    /// What both sides protect their links with.
    pub tls: Option<(TlsClient, TlsServer)>,
    /// What happens to the bytes between the two sides, if set.
    pub bytes: Option<Arc<dyn RelayPolicy>>,
    /// The state of the source, and of the destination.
    pub live: [LiveState; 2],
    /// The destination is cancelled when the source has ended: it may never have been reached.
    pub stops: bool,
    folder: TempDir,
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
                ..uncompressed()
            },
            receive_options: DestinationOptions::default(),
            source_cancel: CancelFlag::new(),
            source_control: SourceControl::new(),
            destination_cancel: CancelFlag::new(),
            decide: None,
            features: Features::SUPPORTED,
            source_journal: Arc::default(),
            destination_journal: Arc::default(),
            tls: None,
            bytes: None,
            live: Default::default(),
            stops: false,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Both sides connect again for this long after links were lost.
    pub(crate) fn retry_for(&mut self, time: Duration) {
        self.options.retry_for = time.into();
        self.receive_options.retry_for = time.into();
    }

    /// Puts a relay between the two sides, which decides about each message.
    pub(crate) fn relay(&mut self, decide: impl Fn(&Message) -> Fate + Send + Sync + 'static) {
        self.decide = Some(Box::new(decide));
    }

    /// Runs both sides until they end. A destination that keeps waiting for another source is
    /// cancelled.
    pub(crate) fn run(self) -> Done {
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
            decide,
            features,
            source_journal,
            destination_journal,
            tls,
            bytes,
            live,
            stops,
            folder,
        } = self;
        let address = Address::Unix(folder.path().join("listen"));
        let mut listener = Listener::bind(&address).unwrap();
        let (client, server) = tls.unzip();
        if let Some(server) = server {
            listener = listener.with_tls(server);
        }
        let policy = match (decide, bytes) {
            (Some(decide), None) => {
                let policy: Arc<dyn RelayPolicy> = Arc::new(MessagePolicy { decide, features });
                Some((Carries::Messages, policy))
            }
            (None, bytes) => bytes.map(|policy| (Carries::BYTES, policy)),
            (Some(_), Some(_)) => panic!("one relay"),
        };
        let relay = policy.map(|(carries, policy)| {
            let at = format!("unix:{}", folder.path().join("relay").display());
            Relay::between(&at, &listener.address().to_string(), carries, policy).unwrap()
        });
        let address = match &relay {
            Some(relay) => relay.address().parse().unwrap(),
            None => listener.address().clone(),
        };
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
            let control = MigrateControl {
                cancel: source_cancel,
                control: source_control,
                observer: here,
                journal: Arc::<Records<_>>::clone(&source_journal),
            };
            let migrated = migrate(&mut source, &remote, &options, &control);
            let is_waiting = migrated.as_ref().is_err_and(|error| {
                let cause = Report::new(&error.cause).to_string();
                // Or the source has not connected to it.
                cause.contains("refuses") || cause.contains("limiting the bandwidth")
            });
            if stops || is_waiting {
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

/// Pages travel as they are: relays read frames, and tests count them.
pub(crate) fn uncompressed() -> SourceOptions {
    SourceOptions {
        compression: Compression::Off,
        ..SourceOptions::default()
    }
}

/// The control of a source that keeps no record, and is never changed.
pub(crate) fn migrate_control(observer: &Arc<Notices>) -> MigrateControl {
    MigrateControl {
        cancel: CancelFlag::new(),
        control: SourceControl::new(),
        observer: Arc::<Notices>::clone(observer),
        journal: Arc::new(Unrecorded),
    }
}

/// The control of a destination that keeps no record.
pub(crate) fn receive_control(observer: &Arc<Notices>) -> ReceiveControl {
    ReceiveControl {
        cancel: CancelFlag::new(),
        observer: Arc::<Notices>::clone(observer),
        journal: Arc::new(Unrecorded),
    }
}

/// Connects to `remote` and sends `hello`; there is no time limit.
pub(crate) fn open(remote: &Remote, hello: &Hello) -> Result<Stream, HandshakeError> {
    let opened = hikkoshi_link::open(remote, hello, &CancelFlag::new());
    opened.map(|(stream, _)| stream)
}
