//! Sources that violate the protocol, with a real destination.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationOptions, ReceiveControl, ReceiveError, receive};
use hikkoshi_handover::Outcome;
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::{Address, LinkReader, LinkWriter, Stream, hello, split};
use hikkoshi_pages::{MAX_GUEST_RANGES, PAGE_SIZE, Page, PageRange, RamLayout};
use hikkoshi_wire::{
    DeviceStateDigest, Frame, GuestDescription, GuestRangeDescription, Limits, MAX_DEVICE_CHUNK,
    MAX_LINKS, MigrationId, PageRanges, Processors, Role, ToDestination, ToSource, encode_control,
};

use crate::guests::{TestDestination, device_state};
use crate::machine::{Machine, Side};
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::{Notices, open, watchdog};

use super::{listen, machine};

/// A source that sends what a test scripts.
pub(super) struct Source {
    pub(super) control: (LinkReader, LinkWriter),
    pub(super) background: (LinkReader, LinkWriter),
    pub(super) urgent: Option<(LinkReader, LinkWriter)>,
    id: MigrationId,
    description: GuestDescription,
    /// Its sockets stay open until it is dropped.
    _streams: Vec<Arc<Stream>>,
}

const ID: [u8; 16] = *b"the right number";

fn begin(description: &GuestDescription, may_postcopy: bool) -> ToDestination {
    ToDestination::Begin {
        description: description.clone(),
        mode: hikkoshi_wire::Mode::Hybrid,
        may_postcopy,
        background_links: 1,
    }
}

/// The message before [`begin`].
fn processors() -> ToDestination {
    ToDestination::Processors {
        processors: Processors::default(),
        allow_mismatch: false,
    }
}

impl Source {
    pub(super) fn connect(
        address: &Address,
        limits: Limits,
        description: &GuestDescription,
        may_postcopy: bool,
    ) -> Self {
        let id = MigrationId::from_bytes(ID);
        let mut streams = Vec::new();
        let mut link = |role| {
            let stream = Arc::new(open(&address.clone().into(), &hello(role, id)).unwrap());
            streams.push(Arc::clone(&stream));
            split(&stream, limits, &CancelFlag::new()).unwrap()
        };
        let mut control = link(Role::Control);
        control.1.control(&processors()).unwrap();
        control
            .1
            .control(&begin(description, may_postcopy))
            .unwrap();
        let answer: ToSource = control.0.control().unwrap();
        assert!(matches!(answer, ToSource::Accept { .. }), "{answer:?}");
        let background = link(Role::Background { index: 0 });
        let urgent = may_postcopy.then(|| link(Role::Urgent));
        Self {
            control,
            background,
            urgent,
            id,
            description: description.clone(),
            _streams: streams,
        }
    }

    pub(super) fn send(&mut self, message: &ToDestination) {
        // The destination may close the link before everything was sent.
        let _ = self.control.1.control(message);
    }

    pub(super) fn discard(&mut self, from: u64, pages: u64) {
        let range = PageRange::from_len(Page::new(from), pages);
        for ranges in PageRanges::batches([range]).collect::<Vec<_>>() {
            self.send(&ToDestination::Discard { ranges });
        }
    }

    /// Sends device state and the switch.
    pub(super) fn switch(&mut self, owed_pages: u64, postcopy: bool) {
        let mut digest = DeviceStateDigest::new();
        for chunk in device_state(1000).chunks(400) {
            digest.update(chunk).unwrap();
            let bytes = chunk.to_vec();
            self.send(&ToDestination::DeviceStateChunk { bytes });
        }
        self.send(&ToDestination::Switch {
            device_bytes: digest.bytes(),
            device_crc32c: digest.crc32c(),
            owed_pages,
            postcopy,
            running: true,
        });
    }

    /// The largest possible offer.
    pub(super) fn large_begin(&self) -> ToDestination {
        let mut description = self.description.clone();
        let piece = GuestRangeDescription {
            gpa: 0,
            offset: 0,
            bytes: 1,
        };
        let block = description.blocks.first_mut().unwrap();
        block.guest = vec![piece; MAX_GUEST_RANGES];
        let block = block.clone();
        // As many as fit.
        while encode_control(&begin(&description, true)).is_ok() {
            description.blocks.push(block.clone());
        }
        description.blocks.pop();
        begin(&description, true)
    }

    /// The last message of the destination.
    pub(super) fn last_message(&mut self) -> Option<ToSource> {
        let mut last = None;
        while let Ok(message) = self.control.0.control() {
            last = Some(message);
        }
        last
    }
}

/// Runs a scripted source against a real destination.
fn received(
    destination: &RamLayout,
    may_postcopy: bool,
    script: impl FnOnce(&mut Source, &Address) + Send,
) -> (Outcome, String, TestDestination) {
    let small = layout(
        &destination
            .blocks()
            .map(|(block, _)| (block.bytes, SMALL))
            .collect::<Vec<_>>(),
    );
    received_into(&machine(&small, destination), may_postcopy, script)
}

/// As [`received`], into the destination of `machine`.
fn received_into(
    machine: &Arc<Machine>,
    may_postcopy: bool,
    script: impl FnOnce(&mut Source, &Address) + Send,
) -> (Outcome, String, TestDestination) {
    let _watchdog = watchdog();
    let destination = machine.memory(Side::Destination).layout();
    let mut guest = TestDestination::new(machine, 1000);
    // No scripted source sends the content that a guest would check.
    guest.checks = false;
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let watch = ReceiveControl {
        cancel: CancelFlag::new(),
        observer: Arc::new(Notices::default()),
        journal: Arc::new(Unrecorded),
    };
    let limits = Limits::from(destination);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let mut source =
                Source::connect(listener.address(), limits, &description, may_postcopy);
            script(&mut source, listener.address());
            let last = source.last_message();
            assert!(
                matches!(last, Some(ToSource::Failed { .. })),
                "the source gets no reason: {last:?}"
            );
        });
        receive(
            &mut guest,
            &listener,
            &DestinationOptions::default(),
            &watch,
        )
    });
    let ReceiveError { cause, outcome } = result.unwrap_err();
    assert_eq!(guest.script.count("resume"), 0);
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.undamaged();
    (outcome, Report::new(&cause).to_string(), guest)
}

/// As [`received`], for errors that must be found before the guest is loaded.
#[track_caller]
pub(super) fn refused(may_postcopy: bool, expected: &str, script: impl FnOnce(&mut Source) + Send) {
    let layout = layout(&[(MIB, SMALL), (MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, may_postcopy, |source, _| script(source));
    assert!(text.contains(expected), "{text}");
    assert_eq!(outcome, Outcome::AtSource);
    assert_eq!(guest.script.count("release"), 1);
    assert_eq!(guest.script.count("load_device_state"), 0, "{text}");
}

#[test]
fn messages_out_of_order() {
    for (message, name) in [
        (ToDestination::Commit, "Commit"),
        (ToDestination::Goodbye, "Goodbye"),
    ] {
        let expected =
            format!("receiving the guest: the peer broke the protocol: unexpected message {name}");
        refused(true, &expected, |source| source.send(&message));
    }
    let twice = "receiving the guest: the peer broke the protocol: unexpected message Begin";
    let description = TestDestination::new(
        &machine(&layout(&[(MIB, SMALL)]), &layout(&[(MIB, SMALL)])),
        0,
    )
    .description;
    refused(true, twice, |source| {
        source.send(&begin(&description, true))
    });
}

#[test]
fn frames_on_the_wrong_link() {
    let range = PageRange::from_len(Page::new(3), 1);
    let on_control = "on the control link";
    refused(true, on_control, |source| {
        source.control.1.frame(Frame::Zeros { range }).unwrap();
    });
    for frame in [Frame::Request { range }, Frame::Ack { bytes: 1 }] {
        let expected = "receiving background pages: the peer broke the protocol: unexpected";
        refused(true, expected, move |source| {
            source.background.1.frame(frame).unwrap();
        });
    }
    refused(true, "malformed message", |source| {
        let range = PageRange::from_len(Page::new(511), 2);
        let content = vec![1; 2 * PAGE_SIZE];
        source.background.1.pages(range, &content).unwrap();
    });
}

/// Each background link has its own receiver thread; more links than the limit are refused with a
/// reason.
#[test]
fn the_number_of_background_links_is_limited() {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let watch = ReceiveControl {
        cancel: CancelFlag::new(),
        observer: Arc::new(Notices::default()),
        journal: Arc::new(Unrecorded),
    };
    let limits = Limits::from(&layout);
    let offer = |background_links| {
        let ToDestination::Begin {
            description, mode, ..
        } = begin(&description, false)
        else {
            panic!()
        };
        ToDestination::Begin {
            description,
            mode,
            may_postcopy: false,
            background_links,
        }
    };
    let result = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let options = DestinationOptions::default();
            receive(&mut guest, &listener, &options, &watch)
        });
        let mut streams = Vec::new();
        let mut link = |role, id| {
            let stream =
                Arc::new(open(&listener.address().clone().into(), &hello(role, id)).unwrap());
            streams.push(Arc::clone(&stream));
            split(&stream, limits, &CancelFlag::new()).unwrap()
        };
        for (attempt, links) in [0, MAX_LINKS + 1, u16::MAX].into_iter().enumerate() {
            let id = MigrationId::from_bytes([u8::try_from(attempt).unwrap(); 16]);
            let mut control = link(Role::Control, id);
            control.1.control(&processors()).unwrap();
            control.1.control(&offer(links)).unwrap();
            let ToSource::Refuse { reason } = control.0.control().unwrap() else {
                panic!("{links} links accepted")
            };
            let expected = format!(
                "the source requests {links} background links, and 1 to {MAX_LINKS} are possible"
            );
            assert_eq!(reason, expected);
        }
        let id = MigrationId::from_bytes(ID);
        let mut control = link(Role::Control, id);
        control.1.control(&processors()).unwrap();
        control.1.control(&offer(MAX_LINKS)).unwrap();
        let answer: ToSource = control.0.control().unwrap();
        assert!(matches!(answer, ToSource::Accept { .. }), "{answer:?}");
        // In any order; each acknowledges only its own bytes.
        let mut links: Vec<_> = (0..MAX_LINKS)
            .map(|index| (index * 7) % MAX_LINKS)
            .map(|index| (index, link(Role::Background { index }, id)))
            .collect();
        for (index, (_, writer)) in &mut links {
            let page = Page::new(u64::from(*index));
            let content = vec![u8::try_from(*index).unwrap() + 1; PAGE_SIZE];
            writer.pages(PageRange::one(page), &content).unwrap();
        }
        for (_, (reader, writer)) in &mut links {
            let Frame::Ack { bytes } = reader.frame().unwrap() else {
                panic!("no acknowledgement")
            };
            assert_eq!(bytes, writer.sent());
        }
        let reason = "enough".into();
        control
            .1
            .control(&ToDestination::Cancel { reason })
            .unwrap();
        receiving.join().unwrap()
    });
    assert_eq!(
        Report::new(&result.unwrap_err()).to_string(),
        "cancelled at the source: enough"
    );
    let memory = machine.memory(Side::Destination);
    for index in 0..MAX_LINKS {
        let content = memory.load(u64::from(index));
        assert_eq!(content, [u8::try_from(index).unwrap() + 1; PAGE_SIZE]);
    }
}

#[test]
fn a_switch_with_wrong_totals() {
    refused(false, "the device state arrived damaged: ", |source| {
        source.send(&ToDestination::DeviceStateChunk { bytes: vec![1; 10] });
        source.send(&ToDestination::Switch {
            device_bytes: 10,
            device_crc32c: 0,
            owed_pages: 0,
            postcopy: false,
            running: true,
        });
    });
    refused(false, "the device state arrived damaged: ", |source| {
        source.send(&ToDestination::Switch {
            device_bytes: 10,
            device_crc32c: 0,
            owed_pages: 0,
            postcopy: false,
            running: true,
        });
    });
    refused(true, "a switch with 3 pages owed (here: 2)", |source| {
        source.discard(5, 2);
        source.switch(3, true);
    });
    // The owed pages would never arrive, and would read as zeros.
    refused(true, "2 pages owed (here: 2), post-copy: false", |source| {
        source.discard(5, 2);
        source.switch(2, false);
    });
    refused(false, "0 pages owed (here: 0), post-copy: true", |source| {
        source.switch(0, true);
    });
    // Accesses to the memory would fault, and nobody would answer.
    refused(true, "0 pages owed (here: 0), post-copy: false", |source| {
        source.send(&ToDestination::DiscardEnd);
        source.switch(0, false);
    });
}

/// A page that came too early waits for the switch, and so does a thread of the guest's process.
#[test]
fn a_source_that_cancels_before_the_switch_keeps_nobody_waiting() {
    let layout = layout(&[(MIB, SMALL), (MIB, SMALL)]);
    let pages = Limits::from(&layout).pages;
    let machine = machine(&layout, &layout);
    let memory = Arc::clone(machine.memory(Side::Destination));
    let script = |source: &mut Source, _: &Address| {
        source.discard(0, pages);
        source.send(&ToDestination::DiscardEnd);
        let discarded: ToSource = source.control.0.control().unwrap();
        assert_eq!(discarded, ToSource::Discarded);
        let reader = thread::spawn(move || memory.read_all());
        let range = PageRange::from_len(Page::new(3), 1);
        source.background.1.pages(range, &[1; PAGE_SIZE]).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished(), "it reads missing pages");
        source.send(&ToDestination::Cancel {
            reason: "enough".into(),
        });
        reader.join().unwrap();
    };
    let (outcome, text, guest) = received_into(&machine, true, script);
    assert!(text.contains("enough"), "{text}");
    assert_eq!(outcome, Outcome::AtSource);
    assert_eq!(guest.script.count("load_device_state"), 0);
    assert_eq!(guest.script.count("release"), 1);
}

#[test]
fn invalid_discards() {
    refused(false, "dropping stale pages: the peer broke", |source| {
        source.discard(0, 1);
    });
    refused(true, "dropping stale pages: the peer broke", |source| {
        source.discard(511, 2);
    });
    let Some(_pages) = HugePages::reserve(1) else {
        return;
    };
    let layout = layout(&[(HUGE, HUGE)]);
    let (outcome, text, _) = received(&layout, true, |source, _| source.discard(8, 16));
    assert_eq!(outcome, Outcome::AtSource);
    assert!(
        text.contains("dropping stale pages: the peer broke"),
        "{text}"
    );
    assert!(text.contains("PageRange(8..24)"), "{text}");
}

#[test]
fn an_endless_device_state() {
    refused(false, "the device state arrived damaged: ", |source| {
        let bytes = vec![7; MAX_DEVICE_CHUNK];
        let chunk = ToDestination::DeviceStateChunk { bytes };
        for _ in 0..=512 {
            source.send(&chunk);
        }
    });
}

#[test]
fn an_invalid_message_before_commit() {
    let layout = layout(&[(MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, false, |source, _| {
        source.switch(0, false);
        let ready: ToSource = source.control.0.control().unwrap();
        assert!(matches!(ready, ToSource::Ready), "{ready:?}");
        source.discard(0, 1);
        source.send(&ToDestination::Commit);
    });
    // A source that sends this may have sent *Commit*, too.
    assert_eq!(outcome, Outcome::Paused);
    assert!(
        text.starts_with("waiting for the source: the peer broke"),
        "{text}"
    );
    assert_eq!(guest.script.count("release"), 0);
}

/// The destination's main thread ends although the source keeps sending: no thread waits for a
/// queue that no thread reads.
#[test]
fn a_source_that_sends_endlessly() {
    let layout = layout(&[(MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, true, |source, _| {
        source.discard(0, 256);
        source.switch(256, true);
        let (requests, _) = source.urgent.as_mut().unwrap();
        let asked = requests.frame().unwrap();
        assert!(matches!(asked, Frame::Request { .. }), "{asked:?}");
        for _ in 0..1000 {
            source.send(&ToDestination::DiscardEnd);
        }
    });
    assert_eq!(outcome, Outcome::AtSource);
    assert!(
        text.starts_with("loading the device state: the peer"),
        "{text}"
    );
    assert_eq!(guest.script.count("release"), 1);
}

/// A source that sends requests and never reads the answers cannot block the destination.
#[test]
fn a_destination_blocked_by_its_source_can_be_cancelled() {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let cancel = CancelFlag::new();
    let watch = ReceiveControl {
        cancel: cancel.clone(),
        observer: Arc::new(Notices::default()),
        journal: Arc::new(Unrecorded),
    };
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let mut source = Source::connect(
                listener.address(),
                Limits::from(&layout),
                &description,
                true,
            );
            // Each requires an answer, and none is read; they are more than any socket buffers.
            // This blocks once the destination does.
            let (done, finished) = sync_channel::<()>(0);
            scope.spawn(move || {
                for _ in 0..100_000 {
                    source.send(&ToDestination::DiscardEnd);
                }
                let _ = finished.recv();
            });
            // If this is too short, the test checks less, but does not fail.
            thread::sleep(Duration::from_millis(500));
            cancel.cancel();
            drop(done);
        });
        receive(
            &mut guest,
            &listener,
            &DestinationOptions::default(),
            &watch,
        )
    });
    assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    assert_eq!(guest.script.count("release"), 1);
}

/// Connections of unknown peers, before and during a migration.
#[test]
fn only_links_of_the_migration_are_accepted() {
    let layout = layout(&[(MIB, SMALL)]);
    let (_, text, _) = received(&layout, true, |source, address| {
        let stranger = MigrationId::from_bytes([0; 16]);
        for role in [Role::Control, Role::Urgent, Role::Background { index: 0 }] {
            let error = open(&address.clone().into(), &hello(role, stranger)).unwrap_err();
            assert_eq!(
                Report::new(&error).to_string(),
                "the peer closed the connection without a greeting; it may be busy with another \
                 guest"
            );
        }
        // A second link of a kind is accepted, because it carries the right number, and not used:
        // after all links are there. (Before that, it would count as a new attempt to connect.)
        source.send(&ToDestination::DiscardEnd);
        let answer: ToSource = source.control.0.control().unwrap();
        assert_eq!(answer, ToSource::Discarded);
        let second = open(&address.clone().into(), &hello(Role::Control, source.id)).unwrap();
        let limits = Limits { pages: 1 };
        let (_, mut writer) = split(&Arc::new(second), limits, &CancelFlag::new()).unwrap();
        let _ = writer.control(&ToDestination::Commit);
        source.send(&ToDestination::Goodbye);
    });
    assert!(text.contains("unexpected message Goodbye"), "{text}");
}
