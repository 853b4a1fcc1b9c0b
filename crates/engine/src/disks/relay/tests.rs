//! Two relays with a link between them.

use std::sync::atomic::AtomicU64;

use super::*;
use hikkoshi_link::split;
use hikkoshi_wire::Limits;

/// Two relays with a link between them, and the sockets of both VMMs.
struct Pair {
    relays: [DiskRelay; 2],
    machines: [UnixStream; 2],
    counters: Arc<Counters>,
    stop: CancelFlag,
}

fn pair() -> Pair {
    watched_pair(DiskWatch {
        stall_timeout: Duration::MAX,
        cancel: CancelFlag::new(),
        failed: Box::new(|| ()),
    })
}

/// The first one, at the source, is watched.
fn watched_pair(watch: DiskWatch) -> Pair {
    let mut watch = Some(watch);
    let stop = CancelFlag::new();
    let counters = Arc::<Counters>::default();
    let (one, other) = UnixStream::pair().unwrap();
    let mut machines = Vec::new();
    let mut relay = |link: UnixStream| {
        let stream = Arc::new(Stream::Unix(link));
        let (machine, socket) = UnixStream::pair().unwrap();
        machines.push(machine);
        DiskRelay::start(RelayStart {
            name: "disk-0".into(),
            connection: DiskConnection {
                disk: "vda".into(),
                socket,
                requests: Box::new(OneByOne {
                    waiting: Waiting::Nothing,
                }),
            },
            ends: split(&stream, Limits { pages: 0 }, &stop).unwrap(),
            stream,
            priority: Priority::OFF,
            stop: stop.clone(),
            counters: Arc::clone(&counters),
            watch: watch.take(),
        })
        .unwrap()
    };
    let relays = [relay(one), relay(other)];
    Pair {
        relays,
        machines: machines.try_into().unwrap(),
        counters,
        stop,
    }
}

#[test]
fn bytes_are_carried_in_both_directions_until_both_have_closed() {
    let pair = pair();
    let [source, destination] = &pair.machines;
    let large = vec![5; 3 << 20];
    thread::scope(|scope| {
        scope.spawn(|| {
            (&*source).write_all(&large).unwrap();
            source.shutdown(Shutdown::Write).unwrap();
        });
        let mut arrived = Vec::new();
        (&*destination).read_to_end(&mut arrived).unwrap();
        assert_eq!(arrived.len(), large.len());
        (&*destination).write_all(b"done").unwrap();
        destination.shutdown(Shutdown::Both).unwrap();
        let mut answer = String::new();
        (&*source).read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "done");
    });
    let counted = [&pair.counters.disk_bytes, &pair.counters.disk_answer_bytes];
    let counted = counted.map(|bytes| bytes.load(Ordering::Relaxed));
    let sent = 2 * large.len() as u64;
    assert_eq!(counted, [sent, 2 * 4], "sent and received");
    assert!(pair.relays[0].take_failure().is_none());
}

#[test]
fn a_server_that_closes_first_and_a_lost_link_are_failures() {
    let closed = pair();
    let [_source, destination] = closed.machines;
    drop(destination);
    let lost = pair();
    lost.relays[1].shared.stream.shutdown();
    for relay in [&closed.relays[0], &lost.relays[0]] {
        let error = loop {
            match relay.take_failure() {
                Some(error) => break error,
                None => thread::sleep(TICK / 10),
            }
        };
        let DiskFailure::Link(error) = error else {
            panic!("{error:?}");
        };
        assert!(error.is_end(), "{error}");
    }
    // Its VMM sees the end.
    assert_eq!((&lost.machines[0]).read(&mut [0]).unwrap(), 0);
}

/// A writer that waits for room is woken.
#[test]
fn an_aborted_connection_has_room_for_its_writer() {
    let pair = pair();
    let [source, _destination] = &pair.machines;
    source.set_nonblocking(true).unwrap();
    // Until both relays and the sockets between them are full.
    let mut stalled = 0;
    while stalled < 10 {
        if matches!((&*source).write(&[0; 4096]), Ok(1..)) {
            stalled = 0;
        } else {
            stalled += 1;
            thread::sleep(TICK / 10);
        }
    }
    pair.relays[0].abort();
    let mut poll = [rustix::event::PollFd::new(
        source,
        rustix::event::PollFlags::OUT,
    )];
    rustix::event::poll(&mut poll, None).unwrap();
    assert!(poll[0].revents().contains(rustix::event::PollFlags::OUT));
    let error = (&*source).write(&[0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert!(pair.relays[0].take_failure().is_none(), "ended here");
}

#[test]
fn a_stop_ends_the_threads() {
    let pair = pair();
    pair.stop.cancel();
    // Not by the end of the relay, which ends them, too.
    wait_for_threads(&pair.relays);
}

/// Returns when all threads have ended.
fn wait_for_threads(relays: &[DiskRelay]) {
    let mut threads = relays.iter().flat_map(|relay| &relay.threads);
    while !threads.clone().all(JoinHandle::is_finished) {
        thread::sleep(TICK / 10);
    }
    assert!(threads.next().is_some());
}

/// Also the one that watches.
#[test]
fn an_orderly_end_ends_all_threads() {
    let (pair, _cancel, failures) = watched();
    let [source, destination] = pair.machines;
    (&source).write_all(b"goodbye").unwrap();
    source.shutdown(Shutdown::Write).unwrap();
    (&destination).read_to_end(&mut Vec::new()).unwrap();
    destination.shutdown(Shutdown::Write).unwrap();
    (&source).read_to_end(&mut Vec::new()).unwrap();
    wait_for_threads(&pair.relays);
    assert!(pair.relays[0].take_failure().is_none());
    assert_eq!(failures.load(Ordering::Relaxed), 0);
}

/// A VMM with one request after the other.
struct OneByOne {
    waiting: Waiting,
}

impl DiskRequests for OneByOne {
    fn sent(&mut self, bytes: &[u8]) {
        self.waiting = match bytes {
            b"goodbye" => Waiting::Over,
            _ => Waiting::Request,
        };
    }

    fn received(&mut self, _: &[u8]) {
        self.waiting = Waiting::Nothing;
    }

    fn waiting(&self) -> Waiting {
        self.waiting
    }
}

/// A watched pair, what cancels it, and how often it has reported a failure.
fn watched() -> (Pair, CancelFlag, Arc<AtomicU64>) {
    let (cancel, failures) = (CancelFlag::new(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&failures);
    let pair = watched_pair(DiskWatch {
        stall_timeout: 5 * TICK,
        cancel: cancel.clone(),
        failed: Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }),
    });
    (pair, cancel, failures)
}

/// Each side knows what the client waits for.
#[test]
fn both_sides_know_whether_an_answer_is_owed() {
    let (pair, _cancel, _failures) = watched();
    let [source, destination] = &pair.machines;
    let waiting = || pair.relays.each_ref().map(DiskRelay::waiting);
    assert_eq!(waiting(), [Waiting::Nothing; 2]);
    (&*source).write_all(b"write").unwrap();
    (&*destination).read_exact(&mut [0; 5]).unwrap();
    assert_eq!(waiting(), [Waiting::Request; 2]);
    (&*destination).write_all(b"done").unwrap();
    (&*source).read_exact(&mut [0; 4]).unwrap();
    assert_eq!(waiting(), [Waiting::Nothing; 2]);
}

#[test]
fn a_request_without_an_answer_ends_the_connection() {
    let (pair, _cancel, failures) = watched();
    let [source, destination] = &pair.machines;
    for _ in 0..3 {
        (&*source).write_all(b"write").unwrap();
        (&*destination).read_exact(&mut [0; 5]).unwrap();
        (&*destination).write_all(b"done").unwrap();
        (&*source).read_exact(&mut [0; 4]).unwrap();
        // Longer than the timeout, with nothing outstanding.
        thread::sleep(8 * TICK);
    }
    assert!(pair.relays[0].take_failure().is_none());
    (&*source).write_all(b"write").unwrap();
    // Until the connection is ended: the other VMM reads nothing, and does not answer.
    assert_eq!((&*source).read(&mut [0]).unwrap(), 0);
    let failure = pair.relays[0].take_failure().unwrap();
    let DiskFailure::Stalled { disk, after } = failure else {
        panic!("{failure:?}");
    };
    assert_eq!((&*disk, after), ("vda", 5 * TICK));
    while failures.load(Ordering::Relaxed) == 0 {
        thread::sleep(TICK / 10);
    }
    drop(pair.relays);
    assert_eq!(failures.load(Ordering::Relaxed), 1);
}

#[test]
fn a_cancellation_frees_a_machine_that_waits() {
    let (pair, cancel, failures) = watched();
    let [source, _destination] = &pair.machines;
    (&*source).write_all(b"write").unwrap();
    cancel.cancel();
    assert_eq!((&*source).read(&mut [0]).unwrap(), 0);
    assert!(pair.relays[0].take_failure().is_none());
    drop(pair.relays);
    assert_eq!(failures.load(Ordering::Relaxed), 0);
}

/// The destination may close the connection before this side notices that its own VMM has.
#[test]
fn the_end_after_a_goodbye_is_no_failure() {
    let (pair, _cancel, failures) = watched();
    let [source, destination] = pair.machines;
    (&source).write_all(b"goodbye").unwrap();
    (&destination).read_exact(&mut [0; 7]).unwrap();
    drop(destination);
    assert_eq!((&source).read(&mut [0]).unwrap(), 0);
    assert!(pair.relays[0].take_failure().is_none());
    drop(pair.relays);
    assert_eq!(failures.load(Ordering::Relaxed), 0);
}
