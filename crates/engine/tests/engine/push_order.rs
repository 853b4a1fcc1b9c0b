//! The push policy: each part can be switched off, and every page arrives in any
//! order.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{Account, Mode, Priority, ReadAhead, SourceOptions};
use hikkoshi_pages::{Page, PageRange};

use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::Setup;

/// Longer than any test: background pushing never begins.
const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn each_policy_can_be_switched_off() {
    let off: [fn(&mut SourceOptions); 6] = [
        |options| options.read_ahead = ReadAhead::Off,
        |options| options.read_ahead = ReadAhead::Fixed(8),
        |options| options.hot_first = false,
        |options| options.limit_in_flight = false,
        |options| options.priority = Priority::OFF,
        |options| {
            options.poll = true;
            options.background_delay = Duration::from_millis(30);
        },
    ];
    let layout = layout(&[(5 * MIB, SMALL), (11 * SMALL, SMALL)]);
    for mode in [Mode::Postcopy, Mode::Hybrid] {
        for off in off {
            let mut setup = Setup::with(mode, &layout, &layout, true);
            setup.options.links = 2;
            off(&mut setup.options);
            setup.run().moved(true);
        }
    }
}

/// Moves a guest whose owner has paused it while four threads at the destination read its memory, a
/// quarter each, from its start to its end. Only pages that are read ahead are pushed.
fn scan(read_ahead: ReadAhead, links: u16) -> Account {
    const THREADS: u64 = 4;
    let layout = layout(&[(8 * MIB, SMALL)]);
    let mut setup = Setup::with(Mode::Postcopy, &layout, &layout, false);
    setup.options.background_delay = NEVER;
    setup.options.read_ahead = read_ahead;
    setup.options.links = links;
    // What is read ahead is waited for below, also on a busy machine.
    setup.options.priority = Priority::OFF;
    let machine = Arc::clone(&setup.machine);
    setup.destination.script.at("resume", move || {
        for thread in 0..THREADS {
            let machine = Arc::clone(&machine);
            thread::spawn(move || {
                let memory = machine.memory(Side::Destination);
                let ram = memory.ram();
                let part = memory.layout().pages() / THREADS;
                for page in part * thread..part * (thread + 1) {
                    memory.load(page);
                    // Read-ahead gets enough time, however busy the machine is; this test checks
                    // that it happens, not how fast.
                    let next = PageRange::one(Page::new(page + 1));
                    let there = || ram.next_data(next).unwrap().is_some();
                    // (A machine leaves every fourth range untouched.)
                    if read_ahead != ReadAhead::Off && (page + 1) / 64 % 4 != 0 {
                        let _ = (0..400).any(|_| {
                            thread::sleep(Duration::from_millis(1));
                            there()
                        });
                    }
                }
            });
        }
        Ok(())
    });
    setup.run().moved(false).0
}

#[test]
fn without_read_ahead_a_scan_asks_for_every_page() {
    let account = scan(ReadAhead::Off, 1);
    assert_eq!(account.pages.background, 0);
    assert!(account.pages.urgent > 1000, "{:?}", account.pages);
}

#[test]
fn read_ahead_saves_a_scan_most_of_its_requests() {
    for (links, read_ahead) in [
        (1, ReadAhead::Fixed(8)),
        (1, ReadAhead::Adaptive),
        (2, ReadAhead::Adaptive),
    ] {
        let pages = scan(read_ahead, links).pages;
        assert!(
            pages.background > 2 * pages.urgent,
            "{read_ahead:?} on {links} links: {pages:?}"
        );
    }
}
