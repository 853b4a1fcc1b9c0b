//! Pages and requests that overtake each other, or wait for a link.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::DestinationOptions;
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{ToDestination, ToSource};

use crate::machine::{Machine, Side};
use crate::memory::{MIB, SMALL, layout};
use crate::peers::sources::Source;

use super::{applied, receive_postcopy, receive_postcopy_after};

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
                stage.load();
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
            },
        );
        for reader in readers.lock().unwrap().drain(..) {
            reader.join().unwrap();
        }
        let faults: u64 = account.requests.faults.iter().map(|f| f.count).sum();
        assert!(faults >= READERS, "{faults}");
    }
}

/// A page is in flight on the background link when it is touched: it is requested, not sent again,
/// and counted correctly.
#[test]
fn a_fault_on_a_page_in_flight() {
    let destination = layout(&[(MIB, SMALL)]);
    let account = receive_postcopy(
        &destination,
        DestinationOptions::default(),
        |_, _| (),
        |stage| {
            stage.load();
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
        },
    );
    assert_eq!(account.pages.urgent, 0);
    assert!(account.requests.request_latency_us.count >= 4);
}
