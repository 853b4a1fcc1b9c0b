//! Both sides of a migration in one process.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::link::Listener;
use hikkoshi_engine::{
    Account, Cancel, DestinationOptions, MigrateError, Mode, Observer, Outcome, ReceiveError,
    ReceiveWatch, SourceOptions, Watch, migrate, receive,
};
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::Limits;
use tempfile::TempDir;

use crate::guests::{Script, TestDestination, TestSource};
use crate::machine::{Machine, Side};
use crate::memory::{MIB, Memory, SMALL, layout};
use crate::relay::{Fate, Passing, Policy, Relay};

/// A test that takes longer than this hangs: the process ends, with a word.
const HANGS: Duration = Duration::from_secs(180);

/// Ends the process if it is not dropped in time.
#[derive(Debug)]
pub struct Watchdog(#[allow(dead_code)] mpsc::Sender<()>);

pub fn watchdog() -> Watchdog {
    let (sender, receiver) = mpsc::channel::<()>();
    let test = thread::current().name().unwrap_or("a test").to_owned();
    thread::spawn(move || {
        if receiver.recv_timeout(HANGS) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not by a macro: the test harness would keep it to itself.
            let _ = writeln!(io::stderr(), "{test} hangs: ending all tests");
            std::process::abort();
        }
    });
    Watchdog(sender)
}

/// Remembers what an operator would read.
#[derive(Debug, Default)]
pub struct Notices(Mutex<Vec<String>>);

impl Notices {
    pub fn all(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Observer for Notices {
    fn progress(&self, _: &hikkoshi_engine::stats::Progress) {}

    fn notice(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// A migration about to happen.
pub struct Setup {
    pub machine: Arc<Machine>,
    pub source: TestSource,
    pub destination: TestDestination,
    pub options: SourceOptions,
    pub receive_options: DestinationOptions,
    pub source_cancel: Cancel,
    pub destination_cancel: Cancel,
    policy: Option<Box<Policy>>,
    pub point_of_no_return: Box<dyn FnMut() -> io::Result<()>>,
    folder: TempDir,
}

/// What became of it.
#[derive(Debug)]
pub struct Done {
    pub source: Result<Account, MigrateError>,
    pub destination: Result<Account, ReceiveError>,
    pub machine: Arc<Machine>,
    pub source_calls: Arc<Script>,
    pub destination_calls: Arc<Script>,
    pub notices: Arc<Notices>,
    pub abandoned: bool,
    pub commits: u32,
}

impl Setup {
    /// A running guest of 3 MiB in two blocks.
    pub fn new(mode: Mode) -> Self {
        let layout = layout(&[(MIB, SMALL), (2 * MIB, SMALL)]);
        Self::with(mode, &layout, &layout, true)
    }

    pub fn with(mode: Mode, source: &RamLayout, destination: &RamLayout, running: bool) -> Self {
        let memories = [source, destination].map(|layout| Arc::new(Memory::new(layout)));
        let machine = Arc::new(Machine::new(&memories[0], &memories[1]));
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
            source_cancel: Cancel::new(),
            destination_cancel: Cancel::new(),
            policy: None,
            point_of_no_return: Box::new(|| Ok(())),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Puts a relay between the two sides.
    pub fn relay(&mut self, policy: impl Fn(&Passing) -> Fate + Send + Sync + 'static) {
        self.policy = Some(Box::new(policy));
    }

    /// Runs both sides to their ends. A destination that goes on waiting for
    /// another source is told to stop.
    pub fn run(self) -> Done {
        let _watchdog = watchdog();
        let Self {
            machine,
            mut source,
            mut destination,
            options,
            receive_options,
            source_cancel,
            destination_cancel,
            policy,
            mut point_of_no_return,
            folder,
        } = self;
        let address = format!("unix:{}", folder.path().join("listen").display());
        let listener = Listener::bind(&address.parse().unwrap()).unwrap();
        let limits = Limits::from(machine.memory(Side::Source).layout());
        let relay =
            policy.map(|policy| Relay::new(folder.path(), listener.address(), limits, policy));
        let address = relay
            .as_ref()
            .map_or_else(|| listener.address().clone(), Relay::address);
        let notices = Arc::new(Notices::default());
        let commits = AtomicU32::new(0);
        let (source_calls, destination_calls) =
            (Arc::clone(&source.script), Arc::clone(&destination.script));
        let receive_watch = ReceiveWatch {
            cancel: destination_cancel.clone(),
            observer: Arc::<Notices>::clone(&notices),
        };
        let result = thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                receive(
                    &mut destination,
                    &listener,
                    &receive_options,
                    &receive_watch,
                )
            });
            let mut counted = || {
                commits.fetch_add(1, Ordering::Relaxed);
                point_of_no_return()
            };
            let mut watch = Watch {
                cancel: source_cancel,
                observer: Arc::<Notices>::clone(&notices),
                point_of_no_return: &mut counted,
            };
            let migrated = migrate(&mut source, &address, &options, &mut watch);
            if let Err(error) = &migrated
                && error.cause.to_string().contains("refuses")
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
            commits: commits.into_inner(),
            machine,
        }
    }
}

impl Done {
    /// The guest runs at the destination (or is paused there, if its owner had
    /// paused it), and its memory is what it was.
    #[track_caller]
    pub fn moved(self, running: bool) -> (Account, Account) {
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
            // It goes on without anything missing.
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

    /// The guest runs on at the source, undamaged, and both sides say so.
    /// Gives both errors' texts.
    #[track_caller]
    pub fn at_source(&self) -> (String, String) {
        let (source, destination) = self.errors();
        assert_eq!(
            (source.0, destination.0),
            (Outcome::AtSource, Outcome::AtSource),
            "{source:?}\n{destination:?}"
        );
        self.runs_on_at_source();
        (source.1, destination.1)
    }

    /// The guest runs on at the source, whatever the destination knows.
    #[track_caller]
    pub fn runs_on_at_source(&self) {
        assert_eq!(self.machine.runs(), Some(Side::Source));
        self.machine.work(200);
        self.machine.check(Side::Source);
        let released = self.source_calls.calls();
        assert_eq!(released.last(), Some(&"release"), "{released:?}");
        assert_eq!(self.source_calls.count("release"), 1);
        assert_eq!(self.destination_calls.count("resume"), 0);
    }

    /// The guest runs nowhere, and both sides say so. Gives both errors' texts.
    #[track_caller]
    pub fn paused(&self) -> (String, String) {
        let (source, destination) = self.errors();
        for outcome in [source.0, destination.0] {
            assert_ne!(outcome, Outcome::AtSource, "{source:?}\n{destination:?}");
        }
        assert_eq!(self.machine.runs(), None);
        assert_eq!(self.source_calls.count("resume"), 0);
        assert_eq!(self.source_calls.count("release"), 1);
        // Pages may be missing: letting go would turn them into zeros.
        assert_eq!(self.destination_calls.count("release"), 0);
        assert_eq!(self.destination_calls.count("stop"), 1);
        self.machine.undamaged();
        (source.1, destination.1)
    }

    #[track_caller]
    pub fn errors(&self) -> ((Outcome, String), (Outcome, String)) {
        let (Err(source), Err(destination)) = (&self.source, &self.destination) else {
            panic!("it should have failed: {:?}", self);
        };
        (
            (source.outcome, source.to_string()),
            (destination.outcome, destination.to_string()),
        )
    }
}
