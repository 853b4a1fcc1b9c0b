//! Peers that do not do what they should: the other side says what is wrong,
//! within bounds, and its guest is none the worse for it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::link::{
    Address, Incoming, LinkReader, LinkWriter, Listener, Stream, hello, open, split,
};
use hikkoshi_engine::{
    Cancel, MigrateError, Mode, Outcome, ReceiveError, ReceiveWatch, SourceOptions, Watch, migrate,
    receive,
};
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamLayout};
use hikkoshi_wire::{
    DeviceStateDigest, Frame, GuestDescription, Limits, MAX_DEVICE_CHUNK, MigrationId, PageRanges,
    RequestSummary, Role, ToDestination, ToSource,
};
use tempfile::TempDir;

use crate::guests::{TestDestination, TestSource, device_state};
use crate::machine::{Machine, Side};
use crate::memory::{HUGE, HugePages, MIB, Memory, SMALL, layout};
use crate::run::{Notices, watchdog};

fn listen(folder: &TempDir) -> Listener {
    let path = folder.path().join("listen");
    Listener::bind(&Address::Unix(path)).unwrap()
}

fn machine(source: &RamLayout, destination: &RamLayout) -> Arc<Machine> {
    let memories = [source, destination].map(|layout| Arc::new(Memory::new(layout)));
    let machine = Arc::new(Machine::new(&memories[0], &memories[1]));
    machine.run(Side::Source);
    machine
}

// ---------------------------------------------------------------- sources

/// A source that says what a test tells it to.
struct Source {
    control: (LinkReader, LinkWriter),
    background: (LinkReader, LinkWriter),
    urgent: Option<(LinkReader, LinkWriter)>,
    id: MigrationId,
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

impl Source {
    fn connect(
        address: &Address,
        limits: Limits,
        description: &GuestDescription,
        may_postcopy: bool,
    ) -> Self {
        let id = MigrationId::from_bytes(ID);
        let mut streams = Vec::new();
        let mut link = |role| {
            let stream = Arc::new(open(address, &hello(role, id)).unwrap());
            streams.push(Arc::clone(&stream));
            split(&stream, limits, &Cancel::new()).unwrap()
        };
        let mut control = link(Role::Control);
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
            _streams: streams,
        }
    }

    fn say(&mut self, message: &ToDestination) {
        // The destination may have had enough before everything was said.
        let _ = self.control.1.control(message);
    }

    fn discard(&mut self, from: u64, pages: u64) {
        let range = PageRange::from_len(Page::new(from), pages);
        for ranges in PageRanges::batches([range]).collect::<Vec<_>>() {
            self.say(&ToDestination::Discard { ranges });
        }
    }

    /// Device state and the switch to it.
    fn switch(&mut self, owed_pages: u64, postcopy: bool) {
        let mut digest = DeviceStateDigest::new();
        for chunk in device_state(1000).chunks(400) {
            digest.update(chunk).unwrap();
            let bytes = chunk.to_vec();
            self.say(&ToDestination::DeviceStateChunk { bytes });
        }
        self.say(&ToDestination::Switch {
            device_bytes: digest.bytes(),
            device_crc32c: digest.crc32c(),
            owed_pages,
            postcopy,
            running: true,
        });
    }

    /// What the destination says in the end.
    fn last_word(&mut self) -> Option<ToSource> {
        let mut last = None;
        while let Ok(message) = self.control.0.control() {
            last = Some(message);
        }
        last
    }
}

/// Lets a scripted source loose on a real destination.
fn received(
    destination: &RamLayout,
    may_postcopy: bool,
    script: impl FnOnce(&mut Source, &Address) + Send,
) -> (Outcome, String, TestDestination) {
    let _watchdog = watchdog();
    let small = layout(
        &destination
            .blocks()
            .map(|(block, _)| (block.bytes, SMALL))
            .collect::<Vec<_>>(),
    );
    let machine = machine(&small, destination);
    let mut guest = TestDestination::new(&machine, 1000);
    // No scripted source sends what a guest would find there.
    guest.checks = false;
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let watch = ReceiveWatch {
        cancel: Cancel::new(),
        observer: Arc::new(Notices::default()),
    };
    let limits = Limits::from(destination);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let mut source =
                Source::connect(listener.address(), limits, &description, may_postcopy);
            script(&mut source, listener.address());
            let last = source.last_word();
            assert!(
                matches!(last, Some(ToSource::Failed { .. })),
                "the source is not told why: {last:?}"
            );
        });
        receive(&mut guest, &listener, &watch)
    });
    let ReceiveError { cause, outcome } = result.unwrap_err();
    assert_eq!(guest.script.count("resume"), 0);
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.undamaged();
    (outcome, cause.to_string(), guest)
}

/// As [`received`], for what must be noticed before the guest is loaded.
#[track_caller]
fn refused(may_postcopy: bool, expected: &str, script: impl FnOnce(&mut Source) + Send) {
    let layout = layout(&[(MIB, SMALL), (MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, may_postcopy, |source, _| script(source));
    assert!(text.contains(expected), "{text}");
    assert_eq!(outcome, Outcome::AtSource);
    assert_eq!(guest.script.count("release"), 1);
    assert_eq!(guest.script.count("load_device_state"), 0, "{text}");
}

#[test]
fn messages_out_of_place() {
    for (message, name) in [
        (ToDestination::Commit, "Commit"),
        (ToDestination::Goodbye, "Goodbye"),
    ] {
        let expected =
            format!("receiving the guest: the peer broke the protocol: unexpected message {name}");
        refused(true, &expected, |source| source.say(&message));
    }
    let twice = "receiving the guest: the peer broke the protocol: unexpected message Begin";
    let description = TestDestination::new(
        &machine(&layout(&[(MIB, SMALL)]), &layout(&[(MIB, SMALL)])),
        0,
    )
    .description;
    refused(true, twice, |source| source.say(&begin(&description, true)));
}

#[test]
fn frames_out_of_place() {
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

#[test]
fn a_switch_with_wrong_sums() {
    refused(false, "the device state arrived damaged: ", |source| {
        source.say(&ToDestination::DeviceStateChunk { bytes: vec![1; 10] });
        source.say(&ToDestination::Switch {
            device_bytes: 10,
            device_crc32c: 0,
            owed_pages: 0,
            postcopy: false,
            running: true,
        });
    });
    refused(false, "the device state arrived damaged: ", |source| {
        source.say(&ToDestination::Switch {
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
    // What is owed would never come, and read as zeros.
    refused(true, "2 pages owed (here: 2), post-copy: false", |source| {
        source.discard(5, 2);
        source.switch(2, false);
    });
    refused(false, "0 pages owed (here: 0), post-copy: true", |source| {
        source.switch(0, true);
    });
}

#[test]
fn discards_that_cannot_be() {
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
fn a_device_state_without_end() {
    refused(false, "the device state arrived damaged: ", |source| {
        let bytes = vec![7; MAX_DEVICE_CHUNK];
        let chunk = ToDestination::DeviceStateChunk { bytes };
        for _ in 0..=512 {
            source.say(&chunk);
        }
    });
}

#[test]
fn a_commit_that_comes_with_something_else() {
    let layout = layout(&[(MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, false, |source, _| {
        source.switch(0, false);
        let ready: ToSource = source.control.0.control().unwrap();
        assert!(matches!(ready, ToSource::Ready), "{ready:?}");
        source.discard(0, 1);
        source.say(&ToDestination::Commit);
    });
    // Who says such a thing may have said *commit*, too.
    assert_eq!(outcome, Outcome::Paused);
    assert!(
        text.starts_with("waiting for the source to hand the guest over: the peer broke"),
        "{text}"
    );
    assert_eq!(guest.script.count("release"), 0);
}

/// The main thread of the destination ends although the source never stops
/// talking: nobody waits for a queue that nobody reads.
#[test]
fn a_source_that_never_stops_talking() {
    let layout = layout(&[(MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, true, |source, _| {
        source.discard(0, 256);
        source.switch(256, true);
        let (requests, _) = source.urgent.as_mut().unwrap();
        let asked = requests.frame().unwrap();
        assert!(matches!(asked, Frame::Request { .. }), "{asked:?}");
        for _ in 0..1000 {
            source.say(&ToDestination::DiscardEnd);
        }
    });
    assert_eq!(outcome, Outcome::AtSource);
    assert!(
        text.starts_with("loading the device state: the peer"),
        "{text}"
    );
    assert_eq!(guest.script.count("release"), 1);
}

/// Its messages are not answered for ever: who asks and never reads is left.
#[test]
fn a_destination_blocked_by_its_source_can_be_cancelled() {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let cancel = Cancel::new();
    let watch = ReceiveWatch {
        cancel: cancel.clone(),
        observer: Arc::new(Notices::default()),
    };
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let mut source = Source::connect(
                listener.address(),
                Limits::from(&layout),
                &description,
                true,
            );
            // Each wants an answer, and none is read; more than any socket
            // buffers. This blocks once the destination does.
            let (done, finished) = sync_channel::<()>(0);
            scope.spawn(move || {
                for _ in 0..100_000 {
                    source.say(&ToDestination::DiscardEnd);
                }
                let _ = finished.recv();
            });
            thread::sleep(Duration::from_millis(500));
            cancel.cancel();
            drop(done);
        });
        receive(&mut guest, &listener, &watch)
    });
    assert_eq!(result.unwrap_err().to_string(), "cancelled");
    assert_eq!(guest.script.count("release"), 1);
}

/// Strangers at the door, before and during a migration.
#[test]
fn only_links_that_belong_are_let_in() {
    let layout = layout(&[(MIB, SMALL)]);
    let (_, text, _) = received(&layout, true, |source, address| {
        let stranger = MigrationId::from_bytes([0; 16]);
        for role in [Role::Control, Role::Urgent, Role::Background { index: 0 }] {
            let error = open(address, &hello(role, stranger)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the peer closed the connection without a greeting; it may be busy with another \
                 guest"
            );
        }
        // A second link of a kind is let in, for it knows the number, and left
        // alone.
        let second = open(address, &hello(Role::Control, source.id)).unwrap();
        let limits = Limits { pages: 1 };
        let (_, mut writer) = split(&Arc::new(second), limits, &Cancel::new()).unwrap();
        let _ = writer.control(&ToDestination::Commit);
        source.say(&ToDestination::Goodbye);
    });
    assert!(text.contains("unexpected message Goodbye"), "{text}");
}

/// Nobody at the door keeps a real source out for long.
#[test]
fn the_door_is_not_blocked() {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let mut source = TestSource::new(&machine, true, 1000);
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let Address::Unix(path) = listener.address() else {
        panic!("a unix socket")
    };
    let notices = Arc::new(Notices::default());
    let watch = ReceiveWatch {
        cancel: Cancel::new(),
        observer: Arc::<Notices>::clone(&notices),
    };
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&mut guest, &listener, &watch));
        // Connections without a word: all are dropped at some time, and those
        // beyond a bound at once.
        let silent: Vec<_> = (0..40)
            .map(|_| UnixStream::connect(path).unwrap())
            .collect();
        let mut end = [0];
        let turned_away = (&silent[39]).read(&mut end).unwrap();
        assert_eq!(turned_away, 0);
        drop(silent);
        // Something else than a greeting.
        let mut web = UnixStream::connect(path).unwrap();
        let _ = web.write_all(&[b'G'; 100]);
        assert!(matches!(web.read(&mut end), Ok(0) | Err(_)));
        // A proper greeting, and then an offer that takes a year.
        let slow = loop {
            let id = MigrationId::from_bytes([9; 16]);
            if let Ok(slow) = open(listener.address(), &hello(Role::Control, id)) {
                break slow;
            }
        };
        let mut dripping = &slow;
        for byte in (Frame::Control { len: 1000 }).encode() {
            if dripping.write_all(&[byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(500));
        }
        let mut rest = [0];
        assert!(matches!(dripping.read(&mut rest), Ok(0) | Err(_)));
        // And now the real one.
        let mut watch = Watch {
            cancel: Cancel::new(),
            observer: Arc::<Notices>::clone(&notices),
            point_of_no_return: &mut || Ok(()),
        };
        migrate(
            &mut source,
            listener.address(),
            &SourceOptions::default(),
            &mut watch,
        )
        .unwrap();
        receiving.join().unwrap().unwrap();
    });
    machine.check(Side::Destination);
    let notices = notices.all();
    assert!(
        notices.contains("refused a guest from ")
            && notices.contains("the peer takes too long to answer"),
        "{notices}"
    );
}

// ----------------------------------------------------------- destinations

/// A destination that says what a test tells it to.
struct Destination<'a> {
    listener: &'a Listener,
    incoming: Receiver<Incoming>,
    limits: Limits,
    streams: Vec<Arc<Stream>>,
}

type Ends = (LinkReader, LinkWriter);

impl Destination<'_> {
    fn next(&mut self) -> Ends {
        let Incoming { stream, id, .. } = self.incoming.recv().unwrap();
        self.listener.expect(Some(id));
        let stream = Arc::new(stream);
        self.streams.push(Arc::clone(&stream));
        split(&stream, self.limits, &Cancel::new()).unwrap()
    }

    /// The control link, with the offer heard.
    fn control(&mut self) -> Ends {
        let mut control = self.next();
        let offer: ToDestination = control.0.control().unwrap();
        assert!(matches!(offer, ToDestination::Begin { .. }), "{offer:?}");
        control
    }

    /// All three links, with the guest accepted: control, background, urgent.
    fn accept(&mut self) -> (Ends, Ends, Ends) {
        let mut control = self.control();
        let host_pages = vec![SMALL, SMALL];
        control.1.control(&ToSource::Accept { host_pages }).unwrap();
        let background = self.next();
        let urgent = self.next();
        (control, background, urgent)
    }
}

/// Hears what is said until `last`.
fn hear_until(control: &mut Ends, last: &str) {
    loop {
        let message: ToDestination = control.0.control().unwrap();
        if format!("{message:?}").starts_with(last) {
            return;
        }
    }
}

/// Applies background pages as a destination would, in another thread.
fn apply(mut background: Ends) {
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

/// Sends a real guest to a scripted destination.
fn migrated(
    mode: Mode,
    cancel: &Cancel,
    script: impl FnOnce(&mut Destination<'_>) + Send,
) -> (Result<(), MigrateError>, Arc<Machine>, Vec<&'static str>) {
    let _watchdog = watchdog();
    let layout = layout(&[(MIB, SMALL), (7 * MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut source = TestSource::new(&machine, true, 1_200_000);
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let stop = Cancel::new();
    let result = thread::scope(|scope| {
        let (sender, incoming) = sync_channel(4);
        scope.spawn(|| {
            let sender = sender;
            listener.serve(&sender, &stop).unwrap();
        });
        let (limits, listener) = (Limits::from(&layout), &listener);
        let (kept, end) = sync_channel(0);
        scope.spawn(move || {
            let mut destination = Destination {
                listener,
                incoming,
                limits,
                streams: Vec::new(),
            };
            script(&mut destination);
            // Its connections stay open: a silent peer, not a broken link.
            let _ = end.recv();
            drop(destination);
        });
        let options = SourceOptions {
            mode,
            ..SourceOptions::default()
        };
        let mut watch = Watch {
            cancel: cancel.clone(),
            observer: Arc::new(Notices::default()),
            point_of_no_return: &mut || Ok(()),
        };
        let result = migrate(&mut source, listener.address(), &options, &mut watch);
        stop.cancel();
        let _: Result<(), _> = kept.try_send(());
        drop(kept);
        result
    });
    let calls = source.script.calls();
    assert_eq!(calls.last(), Some(&"release"));
    (result.map(drop), machine, calls)
}

/// As [`migrated`], for what must leave the guest at the source.
#[track_caller]
fn rejected(mode: Mode, expected: &str, script: impl FnOnce(&mut Destination<'_>) + Send) {
    let (result, machine, _) = migrated(mode, &Cancel::new(), script);
    let error = result.unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.outcome, Outcome::AtSource, "{error}");
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.work(100);
    machine.check(Side::Source);
}

#[test]
fn answers_out_of_place() {
    rejected(Mode::Hybrid, "unexpected answer Ready", |destination| {
        destination.control().1.control(&ToSource::Ready).unwrap();
    });
    for host_pages in [vec![], vec![SMALL], vec![SMALL, 5000], vec![SMALL, 1 << 30]] {
        rejected(Mode::Hybrid, "unexpected answer [", move |destination| {
            let mut control = destination.control();
            control.1.control(&ToSource::Accept { host_pages }).unwrap();
        });
    }
    let early = "waiting for the destination to drop stale pages: the peer broke the protocol: \
                 unexpected answer Ready";
    rejected(Mode::Postcopy, early, |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        control.1.control(&ToSource::Ready).unwrap();
    });
    let resumed = "waiting for the destination to get ready: the peer broke the protocol: \
                   unexpected answer Resumed";
    rejected(Mode::Postcopy, resumed, |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        hear_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        hear_until(&mut control, "Switch");
        control.1.control(&ToSource::Resumed).unwrap();
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
fn acknowledgements_of_what_was_not_sent() {
    let expected = "on a background link, ";
    rejected(Mode::Precopy, expected, |destination| {
        let mut control = destination.control();
        let host_pages = vec![SMALL, SMALL];
        control.1.control(&ToSource::Accept { host_pages }).unwrap();
        let mut background = destination.next();
        let bytes = 1 << 40;
        background.1.frame(Frame::Ack { bytes }).unwrap();
        // Reads what comes, so that the source gets to look at it.
        let mut buffer = vec![0; 1 << 20];
        while let Ok(frame) = background.0.frame() {
            let _ = background.0.payload(&mut buffer[..frame.payload_len()]);
        }
    });
}

#[test]
fn wrong_things_on_the_urgent_link() {
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
            hear_until(&mut control, "DiscardEnd");
            control.1.control(&ToSource::Discarded).unwrap();
            hear_until(&mut control, "Switch");
            urgent.1.frame(frame).unwrap();
        });
    }
}

#[test]
fn requests_for_pages_that_are_not_owed_cost_nothing() {
    // A hole, then everything twice: each page comes once.
    let pages = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&pages);
    let cancel = Cancel::new();
    let enough = cancel.clone();
    let (result, machine, _) = migrated(Mode::Postcopy, &cancel, move |destination| {
        let (mut control, _background, mut urgent) = destination.accept();
        hear_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        hear_until(&mut control, "Switch");
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
    assert_eq!(result.unwrap_err().to_string(), "cancelled");
    let mut pages = pages.lock().unwrap().clone();
    pages.sort();
    // Pages 0 to 63 were never touched, unless the guest has done so since.
    pages.retain(|page| page.index() >= 64);
    assert!(pages.len() <= 192);
    let len = pages.len();
    pages.dedup();
    assert_eq!(pages.len(), len, "a page came twice");
    assert_eq!(machine.runs(), Some(Side::Source));
}

/// The guest is stopped and the destination does not read: whoever cancels
/// gets it back.
#[test]
fn a_source_blocked_by_its_destination_can_be_cancelled() {
    // On the background link, with the guest running.
    let cancel = Cancel::new();
    let asked = cancel.clone();
    let (result, machine, calls) = migrated(Mode::Precopy, &cancel, move |destination| {
        let mut control = destination.control();
        let host_pages = vec![SMALL, SMALL];
        control.1.control(&ToSource::Accept { host_pages }).unwrap();
        let _background = destination.next();
        thread::sleep(Duration::from_millis(300));
        asked.cancel();
    });
    assert_eq!(result.unwrap_err().to_string(), "cancelled");
    assert!(!calls.contains(&"pause"));
    assert_eq!(machine.runs(), Some(Side::Source));

    // On the control link, with the guest stopped: the device state does not
    // fit into the socket's buffers.
    let cancel = Cancel::new();
    let asked = cancel.clone();
    let (result, machine, calls) = migrated(Mode::Postcopy, &cancel, move |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        hear_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        thread::sleep(Duration::from_millis(500));
        asked.cancel();
    });
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "cancelled");
    assert_eq!(error.outcome, Outcome::AtSource);
    assert!(calls.contains(&"pause"));
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.work(100);
    machine.check(Side::Source);
}

#[test]
fn a_destination_that_claims_to_have_everything() {
    let (result, machine, calls) = migrated(Mode::Postcopy, &Cancel::new(), |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        hear_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        hear_until(&mut control, "Switch");
        control.1.control(&ToSource::Ready).unwrap();
        hear_until(&mut control, "Commit");
        control.1.control(&ToSource::Resumed).unwrap();
        let requests = RequestSummary::default();
        control.1.control(&ToSource::Complete { requests }).unwrap();
    });
    let error = result.unwrap_err();
    assert_eq!(error.outcome, Outcome::Paused);
    assert!(
        error.to_string().starts_with(
            "sending pages to the running guest: the peer broke the protocol: it says that it \
             has everything, but "
        ),
        "{error}"
    );
    assert!(!calls.contains(&"resume"));
    assert_eq!(machine.runs(), None);
    machine.check(Side::Source);
}

/// The guest has moved, and the destination does not stop talking: the source
/// ends all the same.
#[test]
fn a_destination_that_never_stops_talking() {
    let (result, _, calls) = migrated(Mode::Postcopy, &Cancel::new(), |destination| {
        let (mut control, background, mut urgent) = destination.accept();
        apply(background);
        hear_until(&mut control, "DiscardEnd");
        control.1.control(&ToSource::Discarded).unwrap();
        hear_until(&mut control, "Switch");
        // Everything is asked for before the commit.
        let range = PageRange::from_len(Page::new(0), 2048);
        urgent.1.frame(Frame::Request { range }).unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(frame) = urgent.0.frame() {
                let _ = urgent.0.payload(&mut buffer[..frame.payload_len()]);
            }
        });
        control.1.control(&ToSource::Ready).unwrap();
        hear_until(&mut control, "Commit");
        control.1.control(&ToSource::Resumed).unwrap();
        thread::sleep(Duration::from_millis(300));
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

/// Something else listens there.
#[test]
fn no_greeting_and_a_wrong_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let address = Address::Unix(path);
    let attempt = |answer: &'static [u8]| {
        let _watchdog = watchdog();
        let layout = layout(&[(MIB, SMALL)]);
        let machine = machine(&layout, &layout);
        let mut source = TestSource::new(&machine, true, 10);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                let _ = peer.write_all(answer);
                let mut all = Vec::new();
                let _ = peer.read_to_end(&mut all);
            });
            let mut watch = Watch {
                cancel: Cancel::new(),
                observer: Arc::new(Notices::default()),
                point_of_no_return: &mut || Ok(()),
            };
            migrate(&mut source, &address, &SourceOptions::default(), &mut watch).unwrap_err()
        });
        assert_eq!(error.outcome, Outcome::AtSource);
        assert_eq!(machine.runs(), Some(Side::Source));
        assert_eq!(source.script.calls(), ["release"]);
        error
            .to_string()
            .replace(&address.to_string(), "the address")
    };
    assert_eq!(
        attempt(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        "connecting to the destination at the address: greeting the peer: its first bytes are not \
         a hikkoshi greeting; check the address: something else answers there"
    );
    assert_eq!(
        attempt(b"hikko"),
        "connecting to the destination at the address: the peer has said nothing for 5 s; is it \
         'hikkoshi receive' that listens there?"
    );
}
