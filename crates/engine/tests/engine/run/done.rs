//! How a migration ended, and what the next engines make of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationOptions, MigrateControl, MigrateError, ReceiveControl,
    ReceiveError, SourceControl, SourceOptions, give_up_migrate, give_up_receive, resume_migrate,
    resume_receive,
};
use hikkoshi_handover::{DestinationRecord, Outcome, SourceRecord};
use hikkoshi_link::{Address, Listener};
use hikkoshi_userfault::Userfault;

use crate::guests::{Script, TestDestination, TestSource};
use crate::machine::{Machine, Side};

use super::{Notices, Records, uncompressed, watchdog};

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
    pub(super) userfault: Option<Arc<Userfault>>,
    pub source_journal: Arc<Records<SourceRecord>>,
    pub destination_journal: Arc<Records<DestinationRecord>>,
    pub(super) device_bytes: usize,
    pub commits: u32,
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
        let listener = Listener::bind(&Address::Unix(folder.path().join("again"))).unwrap();
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
            let options = uncompressed();
            let moved = resume_migrate(
                &mut source,
                record,
                &remote,
                &options,
                &self.migrate_control(),
            );
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

    fn migrate_control(&self) -> MigrateControl {
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

    /// Abandons the migration at the source, with a guest that `prepare` has changed.
    pub(crate) fn try_to_give_up_source(
        &self,
        prepare: impl Fn(&Script),
    ) -> Result<(), MigrateError> {
        let mut guest = TestSource::new(&self.machine, true, self.device_bytes);
        prepare(&guest.script);
        let record = self.source_journal.last().unwrap();
        give_up_migrate(&mut guest, record, &self.migrate_control())
    }

    /// Resumes the migration at a source whose guest runs.
    #[track_caller]
    pub(crate) fn resume_is_refused_while_it_runs(&self) -> MigrateError {
        let mut source = TestSource::new(&self.machine, true, self.device_bytes);
        source.script.fail("check_paused");
        let record = self.source_journal.last().unwrap();
        // No connection is made.
        let nowhere: Address = "unix:/nowhere/at/all".parse().unwrap();
        let options = uncompressed();
        let result = resume_migrate(
            &mut source,
            record,
            &nowhere.into(),
            &options,
            &self.migrate_control(),
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
        let (migrate_control, receive_control) = (self.migrate_control(), self.receive_control());
        destination.userfault = self.userfault;
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&Address::Unix(folder.path().join("again"))).unwrap();
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
                ..uncompressed()
            };
            let remote = listener.address().clone().into();
            let moved = resume_migrate(
                &mut source,
                source_record,
                &remote,
                &options,
                &migrate_control,
            );
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
