//! Faults at a real destination, answered by a scripted source: in any order, in pieces, late, and
//! over a full link.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{Account, CancelFlag, DestinationOptions, ReceiveControl, receive};
use hikkoshi_handover::Unrecorded;
use hikkoshi_pages::{Page, PageRange, RamLayout};
use hikkoshi_wire::{FaultMeasures, Frame, Limits, ToDestination, ToSource};

use crate::guests::TestDestination;
use crate::machine::{Machine, Random, Side};
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::{Notices, watchdog};

use super::listen;
use super::sources::Source;

/// What a scripted source works with.
struct PostcopySource<'a> {
    machine: &'a Machine,
    source: Source,
    /// Signalled when loading of the device state begins: faults are answered from then on.
    loading: Receiver<()>,
    /// Lets the loading continue: it touches each of these pages from four threads.
    go_on: SyncSender<()>,
}

impl PostcopySource<'_> {
    fn content(&self, range: PageRange) -> Vec<u8> {
        range
            .iter()
            .flat_map(|page| self.machine.expected(page.index()))
            .collect()
    }

    fn urgent(&mut self, range: PageRange) {
        let content = self.content(range);
        let urgent = self.source.urgent.as_mut().unwrap();
        urgent.1.pages(range, &content).unwrap();
    }

    fn urgent_in_pieces(&mut self, range: PageRange) {
        for piece in range.chunks(256) {
            self.urgent(piece);
        }
    }

    fn background(&mut self, range: PageRange) {
        let content = self.content(range);
        self.source.background.1.pages(range, &content).unwrap();
    }

    /// Waits until everything sent on the background link has been applied.
    fn applied(&mut self) {
        applied(&mut self.source);
    }

    fn request(&mut self) -> PageRange {
        match self.source.urgent.as_mut().unwrap().0.frame().unwrap() {
            Frame::Request { range } => range,
            other => panic!("{other:?}"),
        }
    }

    /// Receives *Ready*, sends *Commit*, and receives *GuestResumed* and *ResumeTime*.
    fn commit(&mut self) {
        self.ready();
        self.hand_over();
    }

    /// Receives *Ready*: the pages needed for loading are installed.
    fn ready(&mut self) {
        let ready: ToSource = self.source.control.0.control().unwrap();
        assert_eq!(ready, ToSource::Ready);
    }

    fn hand_over(&mut self) {
        self.machine.stop(Side::Source, Duration::from_secs(20));
        self.source.send(&ToDestination::Commit);
        let resumed: ToSource = self.source.control.0.control().unwrap();
        assert_eq!(resumed, ToSource::GuestResumed);
        let timed: ToSource = self.source.control.0.control().unwrap();
        assert!(matches!(timed, ToSource::ResumeTime { .. }), "{timed:?}");
    }

    /// Receives the measurements, and sends *Goodbye*.
    fn end(&mut self) -> (FaultMeasures, u64) {
        let measured: ToSource = self.source.control.0.control().unwrap();
        let ToSource::Measured { faults } = measured else {
            panic!("{measured:?}")
        };
        let complete: ToSource = self.source.control.0.control().unwrap();
        let ToSource::Complete { requests } = complete else {
            panic!("{complete:?}")
        };
        self.source.send(&ToDestination::Goodbye);
        (faults, requests.count)
    }
}

fn applied(source: &mut Source) {
    let sent = source.background.1.sent();
    loop {
        let Frame::Ack { bytes } = source.background.0.frame().unwrap() else {
            panic!("no acknowledgement")
        };
        if bytes == sent {
            return;
        }
    }
}

/// Migrates a stopped guest to `destination` in post-copy with every page owed; `script` answers
/// from the moment that the switch was sent. The content is verified.
fn receive_postcopy(
    destination: &RamLayout,
    options: DestinationOptions,
    prepare: impl FnOnce(&mut TestDestination, &Arc<Machine>),
    script: impl FnOnce(&mut PostcopySource<'_>) + Send,
) -> Account {
    let pages = Limits::from(destination).pages;
    let begin = move |_: &Machine, source: &mut Source| source.discard(0, pages);
    receive_postcopy_after(begin, destination, options, prepare, script)
}

/// As [`receive_postcopy`]; `begin` does everything before the switch.
fn receive_postcopy_after(
    begin: impl FnOnce(&Machine, &mut Source) + Send,
    destination: &RamLayout,
    options: DestinationOptions,
    prepare: impl FnOnce(&mut TestDestination, &Arc<Machine>),
    script: impl FnOnce(&mut PostcopySource<'_>) + Send,
) -> Account {
    let _watchdog = watchdog();
    let blocks = destination.blocks();
    let small = layout(&blocks.map(|(b, _)| (b.bytes, SMALL)).collect::<Vec<_>>());
    let machine = super::machine(&small, destination);
    machine.work(100);
    // The guest stays stopped: its content at the source does not change.
    machine.stop(Side::Source, Duration::from_secs(20));
    let mut guest = TestDestination::new(&machine, 1000);
    let (loading, begins) = sync_channel(1);
    let (go_on, goes_on) = sync_channel::<()>(1);
    let goes_on = Mutex::new(goes_on);
    guest.script.at("load_device_state", move || {
        loading.send(()).unwrap();
        let _ = goes_on.lock().unwrap().recv();
        Ok(())
    });
    prepare(&mut guest, &machine);
    let description = guest.description.clone();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let watch = ReceiveControl {
        cancel: CancelFlag::new(),
        observer: Arc::new(Notices::default()),
        journal: Arc::new(Unrecorded),
    };
    let limits = Limits::from(destination);
    let account = thread::scope(|scope| {
        scope.spawn(|| {
            let mut source = Source::connect(listener.address(), limits, &description, true);
            begin(&machine, &mut source);
            source.switch(limits.pages, true);
            script(&mut PostcopySource {
                machine: &machine,
                source,
                loading: begins,
                go_on,
            });
        });
        receive(&mut guest, &listener, &options, &watch)
    });
    let account = account.unwrap();
    machine.check(Side::Destination);
    account
}

/// All of `range` in pieces of 1 to `most` pages, in random order.
fn shuffled(range: PageRange, most: u64, random: &mut Random) -> Vec<PageRange> {
    let mut pieces = Vec::new();
    let mut rest = range;
    while !rest.is_empty() {
        let end = rest.start().saturating_add(1 + random.below(most));
        let (piece, tail) = rest.split_at(end.min(range.end()));
        pieces.push(piece);
        rest = tail;
    }
    for at in (1..pieces.len()).rev() {
        pieces.swap(at, random.below(at as u64 + 1) as usize);
    }
    pieces
}

fn check_measures(account: &Account, reported: &(FaultMeasures, u64)) {
    let (measures, count) = reported;
    let requests = &account.requests;
    assert_eq!(requests.request_latency_us.count, *count);
    let stages = &requests.request_stages_us;
    for stage in [
        &stages.fault_to_request,
        &stages.request_to_page,
        &stages.page_to_installed,
    ] {
        assert_eq!(stage.count, *count, "a stage has too few requests");
    }
    assert_eq!(measures.stages.request_to_page.count, *count);
    assert_eq!(measures.unmeasured, 0);
    let reported: Vec<_> = measures.threads.iter().map(|t| t.count).collect();
    let kept: Vec<_> = requests.faults.iter().map(|t| t.count).collect();
    assert_eq!(reported, kept);
}

/// The links are not synchronized: a page may arrive before the list that makes it stale here.
#[test]
fn a_page_that_overtakes_the_last_list_of_stale_pages() {
    const PAGES: u64 = 2048;
    const EARLY: u64 = 5;
    let early = PageRange::one(Page::new(EARLY));
    let begin = |machine: &Machine, source: &mut Source| {
        // Sent by pre-copy, and overwritten at the source since then.
        source.background.1.pages(early, &[0x5a; 4096]).unwrap();
        applied(source);
        source.discard(0, EARLY);
        source.discard(EARLY + 1, PAGES - EARLY - 1);
        source.send(&ToDestination::DiscardEnd);
        let discarded: ToSource = source.control.0.control().unwrap();
        assert_eq!(discarded, ToSource::Discarded);
        let content = machine.expected(EARLY);
        source.background.1.pages(early, &content).unwrap();
        // Time to arrive.
        thread::sleep(Duration::from_millis(50));
        source.discard(EARLY, 1);
    };
    receive_postcopy_after(
        begin,
        &layout(&[(PAGES * SMALL, SMALL)]),
        DestinationOptions::default(),
        |_, _| (),
        |stage| {
            stage.loading.recv().unwrap();
            for from in [0, EARLY + 1] {
                let to = if from == 0 { EARLY } else { PAGES };
                let range = PageRange::new(Page::new(from), Page::new(to));
                for piece in range.chunks(64) {
                    stage.background(piece);
                }
            }
            stage.applied();
            stage.go_on.send(()).unwrap();
            stage.commit();
            stage.end();
        },
    );
}

/// Half of each huge page has arrived when four threads touch it, while the device state is loaded:
/// only the other half is requested, once. It arrives in any order and over both links.
#[test]
fn partly_received_huge_pages() {
    let Some(_pages) = HugePages::reserve(4) else {
        return;
    };
    let destination = layout(&[(3 * SMALL, SMALL), (4 * HUGE, HUGE)]);
    let reported = Mutex::new(None);
    let account = receive_postcopy(
        &destination,
        DestinationOptions::default(),
        |_, _| (),
        |stage| {
            stage.loading.recv().unwrap();
            let whole = |n: u64| PageRange::from_len(Page::new(3 + 512 * n), 512);
            let here = |n: u64| {
                (0..8).map(move |at| {
                    PageRange::from_len(whole(n).start().saturating_add(at * 64), 32)
                })
            };
            for n in 0..4 {
                for piece in here(n) {
                    stage.background(piece);
                }
            }
            stage.applied();
            stage.go_on.send(()).unwrap();
            let mut random = Random::new(7);
            // Pages 1 and 700, the middle one and the last one are touched.
            let touched = [1025, 1, 2050, 700].map(|page: u64| page.checked_sub(3));
            let touched: Vec<_> = touched.into_iter().flatten().map(|at| at / 512).collect();
            let mut missing: Vec<PageRange> = touched
                .iter()
                .flat_map(|&n| here(n).map(|piece| PageRange::from_len(piece.end(), 32)))
                .collect();
            missing.sort_by_key(|gap| gap.start());
            missing.dedup();
            let mut asked = Vec::new();
            let mut gaps = 0;
            while gaps < missing.len() {
                let range = stage.request();
                if range.start() < Page::new(3) {
                    stage.urgent(range);
                    continue;
                }
                gaps += 1;
                asked.push(range);
                // In pieces, once all of its gaps have been requested.
                if gaps % 8 == 0 {
                    let mut pieces: Vec<_> = asked
                        .drain(..)
                        .flat_map(|gap| shuffled(gap, 9, &mut random))
                        .collect();
                    pieces.sort_by_key(|piece| piece.start().index() * 2_654_435_761 % 1009);
                    for (nth, piece) in pieces.iter().enumerate() {
                        assert!(
                            missing.iter().any(|gap| gap.intersect(*piece) == *piece),
                            "{piece:?} was requested, but has arrived"
                        );
                        if nth % 3 == 0 {
                            stage.background(*piece);
                        } else {
                            stage.urgent(*piece);
                        }
                    }
                }
            }
            stage.commit();
            for n in (0..4).filter(|n| !touched.contains(n)) {
                for piece in here(n) {
                    stage.background(PageRange::from_len(piece.end(), 32));
                }
            }
            for page in [0, 2] {
                stage.background(PageRange::one(Page::new(page)));
            }
            *reported.lock().unwrap() = Some(stage.end());
        },
    );
    check_measures(&account, &reported.into_inner().unwrap().unwrap());
}

/// Huge pages beyond the number that may be in progress at once are requested as soon as others are
/// complete, in the order of the faults.
#[test]
fn huge_pages_beyond_the_limit_wait() {
    const PAGES: u64 = 40;
    let Some(_pages) = HugePages::reserve(PAGES) else {
        return;
    };
    let destination = layout(&[(PAGES * HUGE, HUGE)]);
    let readers = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::clone(&readers);
    let reported = Mutex::new(None);
    let account = receive_postcopy(
        &destination,
        DestinationOptions {
            fault_threads: NonZeroU16::new(2),
            ..DestinationOptions::default()
        },
        |guest, machine| {
            guest.checks = false;
            let machine = Arc::clone(machine);
            guest.script.at("load_device_state done", move || {
                let threads = (0..PAGES).map(|number| {
                    let machine = Arc::clone(&machine);
                    thread::spawn(move || {
                        let page = number * 512 + number;
                        machine.memory(Side::Destination).load(page);
                    })
                });
                started.lock().unwrap().extend(threads);
                Ok(())
            });
        },
        |stage| {
            stage.loading.recv().unwrap();
            stage.go_on.send(()).unwrap();
            let mut asked = Vec::new();
            let mut random = Random::new(3);
            // The first four are needed for loading.
            let mut answered = 0;
            while answered < 4 {
                let range = stage.request();
                assert_eq!(range.len(), 512);
                for piece in shuffled(range, 64, &mut random) {
                    stage.urgent(piece);
                }
                asked.push(range.start());
                answered += 1;
            }
            stage.commit();
            // The permitted number is requested, and no more, before one of them is answered.
            let mut pieces = Vec::new();
            for _ in 0..32 {
                let range = stage.request();
                asked.push(range.start());
                pieces.extend(shuffled(range, 64, &mut random));
            }
            // All of them at once, in any order, over both links.
            pieces.sort_by_key(|piece| piece.start().index() * 2_654_435_761 % 10_007);
            for (nth, &piece) in pieces.iter().enumerate() {
                if nth % 2 == 0 {
                    stage.urgent(piece);
                } else {
                    stage.background(piece);
                }
            }
            for _ in 36..PAGES {
                let range = stage.request();
                asked.push(range.start());
                stage.urgent_in_pieces(range);
            }
            asked.sort();
            asked.dedup();
            assert_eq!(asked.len() as u64, PAGES, "each page is requested once");
            *reported.lock().unwrap() = Some(stage.end());
        },
    );
    for reader in readers.lock().unwrap().drain(..) {
        reader.join().unwrap();
    }
    check_measures(&account, &reported.into_inner().unwrap().unwrap());
}

/// Another process uses up the pool of huge pages while the guest already runs at the destination:
/// the guest waits, and has every page in the end.
#[test]
fn an_exhausted_huge_page_pool_delays_the_guest() {
    const PAGES: u64 = 8;
    let Some(pool) = HugePages::reserve(PAGES) else {
        return;
    };
    let destination = layout(&[(PAGES * HUGE, HUGE)]);
    receive_postcopy(
        &destination,
        DestinationOptions::default(),
        |_, _| (),
        |stage| {
            stage.loading.recv().unwrap();
            stage.go_on.send(()).unwrap();
            let mut random = Random::new(5);
            let mut here = Vec::new();
            // The pages needed for loading.
            while here.len() < 4 {
                let range = stage.request();
                stage.urgent_in_pieces(range);
                here.push(range);
            }
            // Not earlier: while the source still has every page, a full pool would end the
            // migration.
            stage.ready();
            let others = pool.use_up();
            stage.hand_over();
            thread::spawn(move || {
                // Time for the destination to find the pool empty. If it is too short, the test
                // checks less, but does not fail.
                thread::sleep(Duration::from_millis(300));
                drop(others);
            });
            for number in 0..PAGES {
                let whole = PageRange::from_len(Page::new(number * 512), 512);
                if here.contains(&whole) {
                    continue;
                }
                for (nth, piece) in shuffled(whole, 64, &mut random).into_iter().enumerate() {
                    if nth % 2 == 0 {
                        stage.urgent(piece);
                    } else {
                        stage.background(piece);
                    }
                }
            }
            let _ = stage.end();
        },
    );
}

/// More threads fault than the urgent link can buffer requests, and the source reads none: all
/// pages arrive once it does, each once. With one fault thread and several, sleeping and spinning.
#[test]
fn faults_while_the_link_is_full() {
    const READERS: u64 = 600;
    for (threads, poll) in [(1, false), (3, false), (2, true)] {
        let destination = layout(&[(4 * MIB, SMALL)]);
        let readers = Arc::new(Mutex::new(Vec::new()));
        let started = Arc::clone(&readers);
        let reported = Mutex::new(None);
        let account = receive_postcopy(
            &destination,
            DestinationOptions {
                fault_threads: NonZeroU16::new(threads),
                poll,
                ..DestinationOptions::default()
            },
            |guest, machine| {
                let machine = Arc::clone(machine);
                guest.script.at("load_device_state done", move || {
                    let spawn = |number: u64| {
                        let machine = Arc::clone(&machine);
                        let builder = thread::Builder::new().stack_size(64 << 10);
                        builder.spawn(move || {
                            machine.memory(Side::Destination).load(300 + number);
                        })
                    };
                    let threads = (0..READERS).map(|number| spawn(number).unwrap());
                    started.lock().unwrap().extend(threads);
                    Ok(())
                });
            },
            |stage| {
                stage.loading.recv().unwrap();
                stage.go_on.send(()).unwrap();
                let mut asked = Vec::new();
                for _ in 0..4 {
                    let range = stage.request();
                    stage.urgent(range);
                    asked.push(range);
                }
                // The link fills up meanwhile: these bytes are more than a socket buffers of such
                // small messages.
                stage.commit();
                thread::sleep(Duration::from_millis(100));
                // The guest's own processors may also have requested pages.
                let all = PageRange::from_len(Page::new(300), READERS);
                let wanted = |asked: &[PageRange]| {
                    asked.iter().filter(|r| all.contains(r.start())).count() as u64
                };
                while wanted(&asked) < READERS {
                    asked.push(stage.request());
                }
                asked.sort_by_key(|range| range.start());
                let len = asked.len();
                asked.dedup();
                assert_eq!(asked.len(), len, "a page was requested twice");
                for &range in asked.iter().rev() {
                    stage.urgent(range);
                }
                // The other pages, requested or not: pages that have arrived are not replaced.
                for piece in PageRange::from_len(Page::new(0), 1024).chunks(32) {
                    stage.background(piece);
                }
                *reported.lock().unwrap() = Some(stage.end());
            },
        );
        for reader in readers.lock().unwrap().drain(..) {
            reader.join().unwrap();
        }
        check_measures(&account, &reported.into_inner().unwrap().unwrap());
        let faults: u64 = account.requests.faults.iter().map(|f| f.count).sum();
        assert!(faults >= READERS, "{faults}");
    }
}

/// A page is in flight on the background link when it is touched: it is requested, not sent again,
/// and counted correctly.
#[test]
fn a_fault_on_a_page_in_flight() {
    let destination = layout(&[(MIB, SMALL)]);
    let reported = Mutex::new(None);
    let account = receive_postcopy(
        &destination,
        DestinationOptions::default(),
        |_, _| (),
        |stage| {
            stage.loading.recv().unwrap();
            stage.go_on.send(()).unwrap();
            // Every page is claimed for the background link; requested pages arrive that way, late.
            let mut asked = Vec::new();
            for _ in 0..3 {
                asked.push(stage.request());
                let last = *asked.last().unwrap();
                stage.background(last);
            }
            // Four threads at each of 128, 1, 255 and 188: four requests.
            let last = stage.request();
            assert!(!asked.contains(&last), "requested twice");
            stage.background(last);
            asked.push(last);
            stage.commit();
            for page in PageRange::from_len(Page::new(0), 256).iter() {
                let page = PageRange::one(page);
                if !asked.contains(&page) {
                    stage.background(page);
                }
            }
            *reported.lock().unwrap() = Some(stage.end());
        },
    );
    assert_eq!(account.pages.urgent, 0);
    assert!(account.requests.request_latency_us.count >= 4);
    check_measures(&account, &reported.into_inner().unwrap().unwrap());
}

/// Once every page has arrived, huge pages are rebuilt, and the content is unchanged.
#[test]
fn huge_pages_are_rebuilt_afterwards() {
    let destination = layout(&[(8 * MIB, SMALL)]);
    let account = receive_postcopy(
        &destination,
        DestinationOptions {
            collapse: NonZeroU64::new(1 << 30),
            ..DestinationOptions::default()
        },
        |_, _| (),
        |stage| {
            stage.loading.recv().unwrap();
            stage.go_on.send(()).unwrap();
            for piece in PageRange::from_len(Page::new(0), 2048).chunks(64) {
                stage.background(piece);
            }
            stage.commit();
            stage.end();
        },
    );
    let collapse = account.collapse.unwrap();
    // The tests' memory is aligned only by chance.
    assert!((3..=4).contains(&collapse.tried), "{collapse:?}");
    let failed: u64 = collapse.failed.iter().map(|failed| failed.count).sum();
    assert_eq!(collapse.rebuilt + failed, collapse.tried);
    assert!(collapse.total_ms > 0.0);
    assert_eq!(collapse.stopped, None);
}
