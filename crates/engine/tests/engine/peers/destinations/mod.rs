//! Destinations that break the protocol, with a real source.

mod after_commit;
mod before_commit;
mod page_requests;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{
    Account, CancelFlag, MigrateControl, MigrateError, Mode, SourceOptions, migrate,
};
use hikkoshi_handover::Outcome;
use hikkoshi_link::{AcceptedLink, LinkReader, LinkWriter, Listener, Stream, split};
use hikkoshi_wire::{Frame, Limits, RequestSummary, Role, ToDestination, ToSource};
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_now};

use crate::guests::{Script, TestSource};
use crate::machine::{Machine, Side};
use crate::memory::{MIB, SMALL, layout};
use crate::run::{migrate_control, watchdog};

use super::{listen, machine};

/// A destination that sends what a test scripts.
pub(super) struct Destination<'a> {
    pub(super) machine: Arc<Machine>,
    listener: &'a Listener,
    incoming: Receiver<AcceptedLink>,
    waiting: Vec<AcceptedLink>,
    limits: Limits,
    streams: Vec<Arc<Stream>>,
}

pub(super) type Ends = (LinkReader, LinkWriter);

impl Destination<'_> {
    /// The link of that role; they may arrive in any order.
    pub(super) fn link(&mut self, role: Role) -> Ends {
        let known = self.waiting.iter().position(|link| link.role == role);
        let AcceptedLink { stream, id, .. } = match known {
            Some(at) => self.waiting.remove(at),
            None => loop {
                let link = self.incoming.recv().unwrap();
                if link.role == role {
                    break link;
                }
                self.waiting.push(link);
            },
        };
        self.listener.set_migration(Some(id));
        let stream = Arc::new(stream);
        self.streams.push(Arc::clone(&stream));
        split(&stream, self.limits, &CancelFlag::new()).unwrap()
    }

    /// Whether the source has closed a link.
    pub(super) fn is_disconnected(&self) -> bool {
        let ended = |stream: &Arc<Stream>| {
            let mut poll = [PollFd::new(&**stream, PollFlags::RDHUP)];
            let now = Timespec::default();
            matches!(poll_now(&mut poll, Some(&now)), Ok(1))
        };
        self.streams.iter().any(ended)
    }

    /// Closes all links.
    fn close_links(&mut self) {
        for stream in self.streams.drain(..) {
            stream.shutdown();
        }
    }

    /// The control link of a source that reconnects; `None` if it does not.
    fn reconnected(&mut self) -> Option<Ends> {
        let link = self.incoming.recv().ok()?;
        assert_eq!(link.role, Role::Control);
        let stream = Arc::new(link.stream);
        let mut control = split(&stream, self.limits, &CancelFlag::new()).unwrap();
        let here: ToDestination = control.0.control().ok()?;
        assert!(
            matches!(here, ToDestination::ResumeRequest { .. }),
            "{here:?}"
        );
        Some(control)
    }

    pub(super) fn background(&mut self) -> Ends {
        self.link(Role::Background { index: 0 })
    }

    /// The control link, after the offer was received.
    pub(super) fn control(&mut self) -> Ends {
        let mut control = self.link(Role::Control);
        let offer: ToDestination = control.0.control().unwrap();
        assert!(matches!(offer, ToDestination::Offer { .. }), "{offer:?}");
        control
    }

    /// All three links, with the guest accepted: control, background, urgent.
    pub(super) fn accept(&mut self) -> (Ends, Ends, Ends) {
        let mut control = self.control();
        let host_pages = vec![SMALL, SMALL];
        control
            .1
            .control(&ToSource::Accept {
                host_pages,
                marks_holes: false,
            })
            .unwrap();
        let background = self.background();
        let urgent = self.link(Role::Urgent);
        (control, background, urgent)
    }
}

/// *Complete* of a destination that has requested nothing.
fn complete() -> ToSource {
    ToSource::Complete {
        requests: RequestSummary::default(),
        faults: Box::default(),
    }
}

/// Receives messages until `last`.
pub(super) fn read_until(control: &mut Ends, last: &str) {
    loop {
        let message: ToDestination = control.0.control().unwrap();
        if format!("{message:?}").starts_with(last) {
            return;
        }
    }
}

/// Applies background pages as a destination would, in another thread.
pub(super) fn apply(mut background: Ends) {
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(frame) = background.0.frame() {
            if background
                .0
                .payload(&mut buffer[..frame.payload_len()])
                .is_err()
            {
                return;
            }
            let bytes = background.0.received();
            let _ = background.1.frame(Frame::Ack { bytes });
        }
    });
}

/// The result of a migration: the result, the machine, the calls to it.
pub(super) type Migrated = (
    Result<Account, MigrateError>,
    Arc<Machine>,
    Vec<&'static str>,
);

/// Sends a real guest to a scripted destination.
fn migrated(
    mode: Mode,
    cancel: &CancelFlag,
    script: impl FnOnce(&mut Destination<'_>) + Send,
) -> Migrated {
    let options = SourceOptions {
        mode,
        ..SourceOptions::default()
    };
    migrated_with(&options, cancel, script)
}

/// Migrates with these options, as [`migrated`] does.
pub(super) fn migrated_with(
    options: &SourceOptions,
    cancel: &CancelFlag,
    script: impl FnOnce(&mut Destination<'_>) + Send,
) -> Migrated {
    migrated_from(options, cancel, |_| (), script)
}

/// Migrates with these options; `prepare` gets the source's script.
fn migrated_from(
    options: &SourceOptions,
    cancel: &CancelFlag,
    prepare: impl FnOnce(&Script),
    script: impl FnOnce(&mut Destination<'_>) + Send,
) -> Migrated {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL), (7 * MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut source = TestSource::new(&machine, true, 1_200_000);
    prepare(&source.script);
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let stop = CancelFlag::new();
    let result = thread::scope(|scope| {
        let (sender, incoming) = sync_channel(4);
        scope.spawn(|| {
            let sender = sender;
            listener.serve(&sender, &stop).unwrap();
        });
        let (limits, listener) = (Limits::from(&layout), &listener);
        let (kept, end) = sync_channel(0);
        let knows = Arc::clone(&machine);
        scope.spawn(move || {
            let mut destination = Destination {
                machine: knows,
                listener,
                incoming,
                waiting: Vec::new(),
                limits,
                streams: Vec::new(),
            };
            script(&mut destination);
            // Its connections stay open: a silent peer, not a broken link.
            let _ = end.recv();
            drop(destination);
        });
        let control = MigrateControl {
            cancel: cancel.clone(),
            ..migrate_control(&Arc::default())
        };
        let remote = listener.address().clone().into();
        let result = migrate(&mut source, &remote, options, &control);
        stop.cancel();
        let _: Result<(), _> = kept.try_send(());
        drop(kept);
        result
    });
    let calls = source.script.calls();
    let may_be_needed = result.as_ref().is_err_and(|error| {
        let outcome = error.outcome;
        matches!(
            outcome,
            Outcome::Paused | Outcome::AtDestination | Outcome::Stopped
        )
    });
    let last = if may_be_needed { "leave" } else { "release" };
    assert_eq!(calls.last(), Some(&last), "{result:?}");
    (result, machine, calls)
}

/// A migration that must leave the guest at the source.
#[track_caller]
fn rejected(mode: Mode, expected: &str, script: impl FnOnce(&mut Destination<'_>) + Send) {
    let (result, machine, _) = migrated(mode, &CancelFlag::new(), script);
    let error = result.unwrap_err();
    assert!(
        Report::new(&error).to_string().contains(expected),
        "{error}"
    );
    assert_eq!(error.outcome, Outcome::AtSource, "{error}");
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.work(100);
    machine.check(Side::Source);
}

/// Exchanges the messages up to *Switch*; returns the links.
pub(super) fn until_switch(destination: &mut Destination<'_>) -> (Ends, Ends, Ends) {
    let (mut control, background, urgent) = destination.accept();
    discarded(&mut control);
    read_until(&mut control, "Switch");
    (control, background, urgent)
}

/// Reports that all stale pages are dropped, when the source has listed them.
fn discarded(control: &mut Ends) {
    read_until(control, "DiscardEnd");
    control.1.control(&ToSource::Discarded).unwrap();
}

/// Exchanges the messages up to *GuestResumed*; returns the links.
fn until_it_runs(destination: &mut Destination<'_>) -> (Ends, Ends, Ends) {
    let (mut control, background, urgent) = until_switch(destination);
    control.1.control(&ToSource::Ready).unwrap();
    read_until(&mut control, "Commit");
    (control, background, urgent)
}

/// Receives the switch; returns the number of pages owed.
fn read_owed_pages(control: &mut Ends) -> u64 {
    loop {
        if let ToDestination::Switch { owed_pages, .. } = control.0.control().unwrap() {
            return owed_pages;
        }
    }
}

/// Receives `count` pages on the urgent link.
fn receive_urgent(urgent: &mut Ends, count: u64) {
    let mut buffer = vec![0; 1 << 20];
    let mut received = 0;
    while received < count {
        let frame = urgent.0.frame().unwrap();
        let content = &mut buffer[..frame.payload_len()];
        urgent.0.payload(content).unwrap();
        let (Frame::Pages { range } | Frame::Zeros { range }) = frame else {
            panic!("{frame:?}")
        };
        received += range.len();
    }
}
