//! Huge pages that arrive in pieces, wait, or are rebuilt.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::DestinationOptions;
use hikkoshi_pages::{Page, PageRange};

use crate::machine::{Random, Side};
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};

use super::{receive_postcopy, shuffled};

/// Half of each huge page has arrived when four threads touch it, while the device state is loaded:
/// only the other half is requested, once. It arrives in any order and over both links.
#[test]
fn partly_received_huge_pages() {
    let Some(_pages) = HugePages::reserve(4) else {
        return;
    };
    let destination = layout(&[(3 * SMALL, SMALL), (4 * HUGE, HUGE)]);
    receive_postcopy(
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
        },
    );
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
    receive_postcopy(
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
            stage.load();
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
        },
    );
    for reader in readers.lock().unwrap().drain(..) {
        reader.join().unwrap();
    }
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
            stage.load();
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
        },
    );
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
            stage.load();
            for piece in PageRange::from_len(Page::new(0), 2048).chunks(64) {
                stage.background(piece);
            }
            stage.commit();
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
