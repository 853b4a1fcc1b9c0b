//! Destinations that break the protocol, with a real source.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{
    Account, CancelFlag, MigrateControl, MigrateError, Mode, SourceControl, SourceOptions, migrate,
};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::{AcceptedLink, LinkReader, LinkWriter, Listener, Stream, split};
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{
    DestinationStage, Frame, Limits, RequestSummary, Role, ToDestination, ToSource,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_now};

use crate::guests::{Script, TestSource};
use crate::machine::{Machine, Side};
use crate::memory::{MIB, SMALL, layout};
use crate::run::{Notices, watchdog};

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
        let first: ToDestination = control.0.control().unwrap();
        let is_first = matches!(first, ToDestination::Processors { .. });
        assert!(is_first, "{first:?}");
        let offer: ToDestination = control.0.control().unwrap();
        assert!(matches!(offer, ToDestination::Begin { .. }), "{offer:?}");
        control
    }

    /// All three links, with the guest accepted: control, background, urgent.
    pub(super) fn accept(&mut self) -> (Ends, Ends, Ends) {
        let mut control = self.control();
        let host_pages = vec![SMALL, SMALL];
        control.1.control(&ToSource::Accept { host_pages }).unwrap();
        let background = self.background();
        let urgent = self.link(Role::Urgent);
        (control, background, urgent)
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

/// As [`migrated`].
pub(super) fn migrated_with(
    options: &SourceOptions,
    cancel: &CancelFlag,
    script: impl FnOnce(&mut Destination<'_>) + Send,
) -> Migrated {
    migrated_from(options, cancel, |_| (), script)
}

/// As [`migrated_with`]; `prepare` gets the source's script.
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
        let watch = MigrateControl {
            cancel: cancel.clone(),
            control: SourceControl::new(),
            observer: Arc::new(Notices::default()),
            journal: Arc::new(Unrecorded),
        };
        let remote = listener.address().clone().into();
        let result = migrate(&mut source, &remote, options, &watch);
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

/// As [`migrated`], for migrations that must leave the guest at the source.
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

#[test]
fn answers_out_of_order() {
    rejected(Mode::Hybrid, "unexpected message Ready", |destination| {
        destination.control().1.control(&ToSource::Ready).unwrap();
    });
    for host_pages in [vec![], vec![SMALL], vec![SMALL, 5000], vec![SMALL, 1 << 30]] {
        rejected(Mode::Hybrid, "unexpected message [", move |destination| {
            let mut control = destination.control();
            control.1.control(&ToSource::Accept { host_pages }).unwrap();
        });
    }
    let early = "waiting for the destination to drop stale pages: the peer broke the protocol: \
                 unexpected message Ready";
    rejected(Mode::Postcopy, early, |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        control.1.control(&ToSource::Ready).unwrap();
    });
    let resumed = "waiting for the destination to get ready: the peer broke the protocol: \
                   unexpected message GuestResumed";
    rejected(Mode::Postcopy, resumed, |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        read_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        read_until(&mut control, "Switch");
        control.1.control(&ToSource::GuestResumed).unwrap();
    });
    rejected(Mode::Hybrid, "the destination failed: no", |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        let reason = "no".into();
        control.1.control(&ToSource::Failed { reason }).unwrap();
        destination
            .streams
            .iter()
            .for_each(|stream| stream.shutdown());
    });
}

#[test]
fn acknowledgements_of_unsent_bytes() {
    let expected = "on a background link, ";
    rejected(Mode::Precopy, expected, |destination| {
        let mut control = destination.control();
        let host_pages = vec![SMALL, SMALL];
        control.1.control(&ToSource::Accept { host_pages }).unwrap();
        let mut background = destination.background();
        let bytes = 1 << 40;
        background.1.frame(Frame::Ack { bytes }).unwrap();
        // Reads the messages, so that the source processes the acknowledgement.
        let mut buffer = vec![0; 1 << 20];
        while let Ok(frame) = background.0.frame() {
            let _ = background.0.payload(&mut buffer[..frame.payload_len()]);
        }
    });
}

#[test]
fn invalid_messages_on_the_urgent_link() {
    for (frame, expected) in [
        (
            Frame::Zeros {
                range: PageRange::one(Page::new(0)),
            },
            "on the urgent link",
        ),
        (
            Frame::Request {
                range: PageRange::from_len(Page::new(2047), 2),
            },
            "malformed message",
        ),
    ] {
        rejected(Mode::Postcopy, expected, move |destination| {
            let (mut control, _background, mut urgent) = destination.accept();
            read_until(&mut control, "DiscardEnd");
            control.1.control(&ToSource::Discarded).unwrap();
            read_until(&mut control, "Switch");
            urgent.1.frame(frame).unwrap();
        });
    }
}

#[test]
fn requests_for_pages_not_owed_get_no_answer() {
    // A hole, then everything twice: each page arrives once.
    let pages = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&pages);
    let cancel = CancelFlag::new();
    let enough = cancel.clone();
    let (result, machine, _) = migrated(Mode::Postcopy, &cancel, move |destination| {
        let (mut control, _background, mut urgent) = destination.accept();
        read_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        read_until(&mut control, "Switch");
        for (from, len) in [(0, 64), (64, 128), (0, 256), (64, 1)] {
            let range = PageRange::from_len(Page::new(from), len);
            urgent.1.frame(Frame::Request { range }).unwrap();
        }
        let mut buffer = vec![0; 1 << 20];
        while counted.lock().unwrap().len() < 192 {
            let frame = urgent.0.frame().unwrap();
            urgent
                .0
                .payload(&mut buffer[..frame.payload_len()])
                .unwrap();
            let (Frame::Pages { range } | Frame::Zeros { range }) = frame else {
                panic!("{frame:?}")
            };
            counted.lock().unwrap().extend(range);
        }
        enough.cancel();
    });
    assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    let mut pages = pages.lock().unwrap().clone();
    pages.sort();
    // Pages 0 to 63 were never touched, unless the guest has done so since.
    pages.retain(|page| page.index() >= 64);
    assert!(pages.len() <= 192);
    let len = pages.len();
    pages.dedup();
    assert_eq!(pages.len(), len, "a page arrived twice");
    assert_eq!(machine.runs(), Some(Side::Source));
}

/// A large request delays the next one by no more than a piece of 16 pages, and more of them than
/// are answered at once cause no error.
#[test]
fn large_requests_are_interleaved() {
    for (number, pages) in [(1, 192), (3, 192), (100, 17)] {
        let cancel = CancelFlag::new();
        let enough = cancel.clone();
        let (result, _, _) = migrated(Mode::Postcopy, &cancel, move |destination| {
            let (mut control, _background, mut urgent) = destination.accept();
            read_until(&mut control, "DiscardEnd");
            control.1.control(&ToSource::Discarded).unwrap();
            read_until(&mut control, "Switch");
            // Page 100 is owed, and in none of the large requests. All of them are sent at once.
            let wanted = PageRange::one(Page::new(100));
            let large = |nth| PageRange::from_len(Page::new(128 + nth * pages), pages);
            let requests: Vec<_> = (0..number)
                .map(large)
                .chain([wanted])
                .flat_map(|range| Frame::Request { range }.encode())
                .collect();
            urgent.1.frames(&requests).unwrap();
            let mut buffer = vec![0; 1 << 20];
            let mut before = 0;
            loop {
                let frame = urgent.0.frame().unwrap();
                urgent
                    .0
                    .payload(&mut buffer[..frame.payload_len()])
                    .unwrap();
                match frame {
                    Frame::Pages { range } | Frame::Zeros { range } if range == wanted => break,
                    Frame::Pages { range } | Frame::Zeros { range } => before += range.len(),
                    other => panic!("{other:?}"),
                }
            }
            assert!(before > 0, "the first was requested before");
            assert!(before <= 16 * number, "{before} pages arrived first");
            enough.cancel();
        });
        assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    }
}

/// Time for a source to fill the buffers in front of it. If it is too short, the test checks less,
/// but does not fail.
const TIME_TO_BLOCK: Duration = Duration::from_millis(300);

/// The guest is paused and the destination does not read: after a cancellation the guest resumes at
/// the source.
#[test]
fn a_source_blocked_by_its_destination_can_be_cancelled() {
    // On the background link, with the guest running.
    let cancel = CancelFlag::new();
    let asked = cancel.clone();
    let (result, machine, calls) = migrated(Mode::Precopy, &cancel, move |destination| {
        let mut control = destination.control();
        let host_pages = vec![SMALL, SMALL];
        control.1.control(&ToSource::Accept { host_pages }).unwrap();
        let _background = destination.background();
        thread::sleep(TIME_TO_BLOCK);
        asked.cancel();
    });
    assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    assert!(!calls.contains(&"pause"));
    assert_eq!(machine.runs(), Some(Side::Source));

    // On the control link, with the guest paused: the device state does not fit into the socket's
    // buffers.
    let cancel = CancelFlag::new();
    let asked = cancel.clone();
    let options = SourceOptions {
        mode: Mode::Postcopy,
        ..SourceOptions::default()
    };
    let while_it_saves = move |script: &Script| {
        script.at("save_device_state", move || {
            let asked = asked.clone();
            thread::spawn(move || {
                thread::sleep(TIME_TO_BLOCK);
                asked.cancel();
            });
            Ok(())
        });
    };
    let accepts = |destination: &mut Destination<'_>| {
        let (mut control, _background, _urgent) = destination.accept();
        read_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
    };
    let (result, machine, calls) = migrated_from(&options, &cancel, while_it_saves, accepts);
    let error = result.unwrap_err();
    assert_eq!(Report::new(&error).to_string(), "cancelled");
    assert_eq!(error.outcome, Outcome::AtSource);
    assert!(calls.contains(&"pause"));
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.work(100);
    machine.check(Side::Source);
}

/// Exchanges the messages up to *GuestResumed*; returns the links.
fn until_it_runs(destination: &mut Destination<'_>) -> (Ends, Ends, Ends) {
    let (mut control, background, urgent) = destination.accept();
    read_until(&mut control, "DiscardEnd");
    control.1.control(&ToSource::Discarded).unwrap();
    read_until(&mut control, "Switch");
    control.1.control(&ToSource::Ready).unwrap();
    read_until(&mut control, "Commit");
    (control, background, urgent)
}

/// The guest's process at the destination has ended: if the guest has run there, the source does
/// not reconnect.
#[test]
fn a_destination_that_reports_the_guest_lost() {
    for heard_to_run in [true, false] {
        let (result, machine, _) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
            let (mut control, _background, _urgent) = until_it_runs(destination);
            if heard_to_run {
                control.1.control(&ToSource::GuestResumed).unwrap();
            }
            let reason = "a power cut".to_owned();
            control.1.control(&ToSource::GuestLost { reason }).unwrap();
        });
        let error = result.unwrap_err();
        let text = Report::new(&error).to_string();
        if heard_to_run {
            assert_eq!(error.outcome, Outcome::Lost);
            assert_eq!(text, "the guest has ended at the destination: a power cut");
        } else {
            assert_eq!(error.outcome, Outcome::Paused);
            assert_eq!(text, "the destination failed: a power cut");
        }
        // The source does not resume its stale copy of the guest: only its owner may decide that.
        assert_eq!(machine.runs(), None);
    }
}

/// It reports that it runs the guest, and then that it never will.
#[test]
fn a_destination_that_declines_a_running_guest() {
    let declined = || ToSource::Declined {
        reason: "it is mine".into(),
    };
    let options = SourceOptions {
        mode: Mode::Postcopy,
        ..SourceOptions::default()
    };
    let asked = SourceOptions {
        retry_for: Duration::from_secs(2).into(),
        ..options.clone()
    };
    let never = CancelFlag::new();
    let reported = migrated_with(&options, &never, |destination| {
        let (mut control, _background, _urgent) = until_it_runs(destination);
        control.1.control(&ToSource::GuestResumed).unwrap();
        control.1.control(&declined()).unwrap();
    });
    let answered = migrated_with(&asked, &never, |destination| {
        let mut ends = until_it_runs(destination);
        ends.0.1.control(&ToSource::GuestResumed).unwrap();
        destination.close_links();
        while let Some(mut control) = destination.reconnected() {
            let _ = control.1.control(&resume_reply(DestinationStage::Declined));
            while control.0.control::<ToDestination>().is_ok() {}
        }
    });
    for (result, machine, calls) in [reported, answered] {
        let error = result.unwrap_err();
        assert_eq!(error.outcome, Outcome::AtDestination, "{error}");
        let text = Report::new(&error).to_string();
        assert!(text.contains("after it reported that it runs it"), "{text}");
        assert!(!calls.contains(&"resume"));
        assert_eq!(machine.runs(), None);
        machine.check(Side::Source);
    }
}

fn resume_reply(stage: DestinationStage) -> ToSource {
    ToSource::ResumeReply {
        stage,
        host_pages: vec![SMALL, SMALL],
        background_links: 1,
    }
}

#[test]
fn a_destination_that_claims_to_have_every_page() {
    let (result, machine, calls) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
        let (mut control, _background, _urgent) = until_it_runs(destination);
        control.1.control(&ToSource::GuestResumed).unwrap();
        let requests = RequestSummary::default();
        control.1.control(&ToSource::Complete { requests }).unwrap();
    });
    let error = result.unwrap_err();
    assert_eq!(error.outcome, Outcome::AtDestination);
    assert!(
        Report::new(&error).to_string().starts_with(
            "sending pages to the running guest: the peer broke the protocol: the destination \
             reports that it has every page, but "
        ),
        "{error}"
    );
    assert!(!calls.contains(&"resume"));
    assert_eq!(machine.runs(), None);
    machine.check(Side::Source);
}

/// On a new connection it reports that no page is missing, although some pages were never sent.
#[test]
fn a_destination_that_claims_to_have_every_page_after_a_reconnect() {
    let nothing_missing = [
        resume_reply(DestinationStage::Running),
        ToSource::MissingEnd { pages: 0 },
    ];
    for messages in [
        &[resume_reply(DestinationStage::Complete)][..],
        &nothing_missing,
    ] {
        let options = SourceOptions {
            mode: Mode::Postcopy,
            retry_for: Duration::from_secs(2).into(),
            ..SourceOptions::default()
        };
        let (result, machine, calls) = migrated_with(&options, &CancelFlag::new(), |destination| {
            let mut ends = until_it_runs(destination);
            ends.0.1.control(&ToSource::GuestResumed).unwrap();
            destination.close_links();
            while let Some(mut control) = destination.reconnected() {
                for message in messages {
                    let _ = control.1.control(message);
                }
                while control.0.control::<ToDestination>().is_ok() {}
            }
        });
        let error = result.unwrap_err();
        assert_eq!(error.outcome, Outcome::AtDestination, "{error}");
        let text = Report::new(&error).to_string();
        assert!(
            text.contains("the destination reports that it has every page, but "),
            "{text}"
        );
        assert!(!calls.contains(&"resume"));
        assert_eq!(machine.runs(), None);
        machine.check(Side::Source);
    }
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

/// Small or large, a request that arrives after its pages were sent is counted; one with any page
/// left to send is not.
#[test]
fn requests_for_pages_already_sent_are_counted() {
    let (result, _, _) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
        let (mut control, background, mut urgent) = destination.accept();
        apply(background);
        read_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        let owed = read_owed_pages(&mut control);
        let mut ask = |from, len, answer| {
            let range = PageRange::from_len(Page::new(from), len);
            urgent.1.frame(Frame::Request { range }).unwrap();
            receive_urgent(&mut urgent, answer);
        };
        // Nothing is pushed before *Commit*.
        ask(64, 100, 100);
        ask(70, 1, 0);
        ask(80, 50, 0);
        ask(0, 2048, owed - 100);
        control.1.control(&ToSource::Ready).unwrap();
        read_until(&mut control, "Commit");
        control.1.control(&ToSource::GuestResumed).unwrap();
        let requests = RequestSummary::default();
        control.1.control(&ToSource::Complete { requests }).unwrap();
        read_until(&mut control, "Goodbye");
    });
    assert_eq!(result.unwrap().requests.requests_under_way, Some(2));
}

/// The guest has moved, and the destination keeps sending: the source ends nevertheless.
#[test]
fn a_destination_that_sends_endlessly() {
    let (result, _, calls) = migrated(Mode::Postcopy, &CancelFlag::new(), |destination| {
        let (mut control, background, mut urgent) = destination.accept();
        apply(background);
        read_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        let owed = read_owed_pages(&mut control);
        // Everything is requested before *Commit*, and nothing is pushed.
        let range = PageRange::from_len(Page::new(0), 2048);
        urgent.1.frame(Frame::Request { range }).unwrap();
        receive_urgent(&mut urgent, owed);
        control.1.control(&ToSource::Ready).unwrap();
        read_until(&mut control, "Commit");
        control.1.control(&ToSource::GuestResumed).unwrap();
        let requests = RequestSummary::default();
        control.1.control(&ToSource::Complete { requests }).unwrap();
        for _ in 0..1000 {
            if control.1.control(&ToSource::Discarded).is_err() {
                return;
            }
        }
    });
    result.unwrap();
    assert!(!calls.contains(&"resume"));
}
