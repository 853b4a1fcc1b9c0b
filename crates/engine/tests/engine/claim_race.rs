//! Many requests race with the background workers: the claim decides which thread sends a page, and
//! each owed page arrives exactly once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{Mode, default_links};
use hikkoshi_pages::RamLayout;
use hikkoshi_wire::{Frame, Role, ToDestination};

use crate::machine::{Random, Side};
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::run::Setup;
use hikkoshi_lab::relay::{Fate, Message, Towards};

const READERS: u64 = 8;

/// Pages that the readers have read together before the guest may run.
const READ_BEFORE: u64 = 240;

/// Moves a guest while threads at the destination read all over its memory, and counts the pages
/// that arrive after the switch. Returns the pages by link: urgent, background.
fn race(mode: Mode, source: &RamLayout, destination: &RamLayout, links: u16) -> (u64, u64) {
    let mut setup = Setup::with(mode, source, destination, true);
    setup.options.links = links;
    let owed = Arc::new(AtomicU64::new(u64::MAX));
    let arrived: Arc<Mutex<HashMap<u64, u32>>> = Arc::default();
    let by_link = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let (announced, counts, links) = (
        Arc::clone(&owed),
        Arc::clone(&arrived),
        Arc::clone(&by_link),
    );
    setup.relay(move |message: &Message| {
        if let Some(ToDestination::Switch { owed_pages, .. }) = message.control {
            announced.store(owed_pages, Ordering::SeqCst);
        }
        let (Towards::Destination, Frame::Pages { range } | Frame::Zeros { range }) =
            (message.towards, message.frame)
        else {
            return Fate::Pass;
        };
        let link = &links[usize::from(message.role != Role::Urgent)];
        if announced.load(Ordering::SeqCst) < u64::MAX {
            link.fetch_add(range.len(), Ordering::Relaxed);
            let mut counts = counts.lock().unwrap();
            for page in range {
                *counts.entry(page.index()).or_default() += 1;
            }
        }
        Fate::Pass
    });
    // Some page is owed and can be requested, however fast the copying was.
    let machine = Arc::clone(&setup.machine);
    setup.source.script.at("pause", move || {
        machine.work(1500);
        Ok(())
    });
    let machine = Arc::clone(&setup.machine);
    let readers = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::clone(&readers);
    // Some threads read before the guest runs, when the background is not pushed yet; some continue
    // while it is pushed.
    setup.destination.script.at("load_device_state", move || {
        let read = Arc::new(AtomicU64::new(0));
        let threads = (0..READERS).map(|reader| {
            let (machine, read) = (Arc::clone(&machine), Arc::clone(&read));
            thread::spawn(move || {
                let memory = machine.memory(Side::Destination);
                let mut random = Random::new(1000 + reader);
                for _ in 0..300 {
                    memory.load(random.below(memory.layout().pages()));
                    read.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        started.lock().unwrap().extend(threads);
        while read.load(Ordering::Relaxed) < READ_BEFORE {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let done = setup.run();
    for reader in readers.lock().unwrap().drain(..) {
        reader.join().unwrap();
    }
    let (account, _) = done.moved(true);
    let arrived = arrived.lock().unwrap();
    let twice: Vec<_> = arrived.iter().filter(|&(_, &times)| times > 1).collect();
    assert!(twice.is_empty(), "sent more than once: {twice:?}");
    assert_eq!(
        arrived.len() as u64,
        owed.load(Ordering::SeqCst),
        "{mode:?}"
    );
    assert!(
        account.requests.request_latency_us.count > 0,
        "no page was requested"
    );
    let [urgent, background] = &*by_link;
    (
        urgent.load(Ordering::Relaxed),
        background.load(Ordering::Relaxed),
    )
}

/// Requests, read-ahead and the background of one link and of four for the same pages.
#[test]
fn each_owed_page_arrives_once() {
    let layout = layout(&[(8 * MIB, SMALL), (9 * SMALL, SMALL), (8 * MIB, SMALL)]);
    for links in [default_links(), 4] {
        let (urgent, background) = race(Mode::Postcopy, &layout, &layout, links);
        assert!(urgent > 0 && background > 0, "{urgent}, {background}");
        race(Mode::Hybrid, &layout, &layout, links);
    }
}

#[test]
fn each_owed_page_arrives_once_in_huge_pages() {
    let Some(_pages) = HugePages::reserve(8) else {
        return;
    };
    let source = layout(&[(3 * SMALL, SMALL), (8 * HUGE, SMALL)]);
    let destination = layout(&[(3 * SMALL, SMALL), (8 * HUGE, HUGE)]);
    for links in [default_links(), 3] {
        for mode in [Mode::Postcopy, Mode::Hybrid] {
            race(mode, &source, &destination, links);
        }
    }
}
