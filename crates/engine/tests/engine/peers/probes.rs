//! Sources that measure the line, honest ones and others. The destination waits afterwards, and
//! receives a guest.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hikkoshi_engine::{CancelFlag, DestinationOptions, Priority, ProbeOptions, probe, receive};
use hikkoshi_link::{LinkReader, LinkWriter, Remote, hello, split};
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{
    Frame, Limits, MAX_ECHOES, MAX_LINKS, MigrationId, PROBE_PAGES, Role, ToDestination, ToSource,
};

use crate::guests::{TestDestination, TestSource};
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::run::{Notices, migrate_control, open, receive_control, watchdog};

use super::{listen, machine, moved_next};

/// Runs `peer` with a destination that waits, and then moves a guest to it: what the destination
/// has reported.
fn then_a_guest_arrives(peer: impl FnOnce(&Remote)) -> String {
    let _watchdog = watchdog();
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(&folder);
    let remote: Remote = listener.address().clone().into();
    let blocks = layout(&[(2 * MIB, SMALL)]);
    let machine = machine(&blocks, &blocks);
    let notices = Arc::new(Notices::default());
    let control = receive_control(&notices);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut guest = TestDestination::new(&machine, 1000);
            let options = DestinationOptions::default();
            receive(&mut guest, &listener, &options, &control)
        });
        peer(&remote);
        let mut source = TestSource::new(&machine, true, 1000);
        moved_next(&mut source, &remote, &migrate_control(&notices)).unwrap();
        receiving.join().unwrap().unwrap();
    });
    machine.check(Side::Destination);
    notices.all()
}

#[test]
fn a_measured_line_has_a_rate_and_a_round_trip() {
    let options = ProbeOptions {
        links: 3,
        time: Duration::from_secs(60),
        bytes: 6 << 20,
        priority: Priority::OFF,
    };
    // Each of them, and the guest, may connect as soon as the one before has ended.
    let said = then_a_guest_arrives(|remote| {
        for _ in 0..20 {
            let found = probe(remote, &options, None, &CancelFlag::new()).unwrap();
            let (at, bytes) = *found.arrived.last().unwrap();
            assert!(at > Duration::ZERO && found.round_trip > Duration::ZERO);
            assert!(found.round_trip <= found.median_round_trip);
            // Each link ends with the piece of 1 MiB with which it has sent enough.
            assert!((6 << 20..10 << 20).contains(&bytes), "{found:?}");
            assert!(found.arrived.is_sorted(), "{found:?}");
        }
    });
    assert_eq!(said.matches("has measured the line").count(), 20, "{said}");
}

#[test]
fn a_measurement_is_cancelled() {
    let options = ProbeOptions {
        links: 1,
        time: Duration::from_secs(60),
        bytes: u64::MAX,
        priority: Priority::OFF,
    };
    then_a_guest_arrives(|remote| {
        let cancel = CancelFlag::new();
        thread::scope(|scope| {
            let probing = scope.spawn(|| probe(remote, &options, None, &cancel));
            thread::sleep(Duration::from_millis(100));
            cancel.cancel();
            assert!(probing.join().unwrap().is_err());
        });
    });
}

type Ends = (LinkReader, LinkWriter);

/// What a source does after the destination has accepted the measurement.
type Peer = fn(&Remote, &mut Ends);

fn link(remote: &Remote, role: Role) -> Ends {
    let id = MigrationId::from_bytes(*b"the right number");
    let stream = Arc::new(open(remote, &hello(role, id)).unwrap());
    let limits = Limits {
        pages: 2 * PROBE_PAGES,
    };
    split(&stream, limits, &CancelFlag::new()).unwrap()
}

/// A control link on which the destination has accepted a measurement with one background link.
fn begin(remote: &Remote) -> Ends {
    let (mut reader, mut writer) = link(remote, Role::Control);
    let probe = ToDestination::Probe {
        background_links: 1,
    };
    writer.control(&probe).unwrap();
    let answer: ToSource = reader.control().unwrap();
    assert!(matches!(answer, ToSource::ProbeReady { .. }), "{answer:?}");
    (reader, writer)
}

/// Waits until the destination closes the link.
fn until_closed(reader: &mut LinkReader) {
    while reader.control::<ToSource>().is_ok() {}
}

#[test]
fn a_number_of_links_that_does_not_exist_is_refused() {
    for background_links in [0, MAX_LINKS + 1, u16::MAX] {
        let said = then_a_guest_arrives(|remote| {
            let (mut reader, mut writer) = link(remote, Role::Control);
            let probe = ToDestination::Probe { background_links };
            writer.control(&probe).unwrap();
            until_closed(&mut reader);
        });
        assert!(said.contains("links to measure the line"), "{said}");
    }
}

#[test]
fn a_source_that_does_something_else_is_stopped() {
    // Too many echoes; a message of a migration; pages that do not exist.
    let cases: [(&str, Peer); 3] = [
        ("broke the protocol", |_, (_, writer)| {
            for _ in 0..=MAX_ECHOES {
                let _ = writer.control(&ToDestination::Echo);
            }
        }),
        ("broke the protocol", |_, (_, writer)| {
            writer.control(&ToDestination::Commit).unwrap();
        }),
        ("", |remote, (_, writer)| {
            let (mut reader, mut pages) = link(remote, Role::Background { index: 0 });
            let range = PageRange::from_len(Page::new(PROBE_PAGES), 1);
            pages.pages(range, &[7; 4096]).unwrap();
            // Its receiver closes nothing, and no page is acknowledged.
            assert!(!reader.is_ready(Duration::from_millis(50)).unwrap());
            writer.control(&ToDestination::Goodbye).unwrap();
            assert!(reader.frame().is_err());
        }),
    ];
    for (said, peer) in cases {
        let notices = then_a_guest_arrives(|remote| {
            let mut control = begin(remote);
            peer(remote, &mut control);
            until_closed(&mut control.0);
        });
        assert!(notices.contains(said), "{said:?} is not in {notices}");
    }
}

/// A link for pages has another frame. Whoever reads it may not have read it yet when the source
/// ends the measurement, so that is repeated after longer pauses.
#[test]
fn another_frame_than_pages_is_reported() {
    let said = |pause: Duration| {
        then_a_guest_arrives(|remote| {
            let (mut control, mut writer) = begin(remote);
            let (mut reader, mut pages) = link(remote, Role::Background { index: 0 });
            let range = PageRange::from_len(Page::new(0), 1);
            pages.frame(Frame::Request { range }).unwrap();
            thread::sleep(pause);
            writer.control(&ToDestination::Goodbye).unwrap();
            assert!(reader.frame().is_err());
            until_closed(&mut control);
        })
    };
    let pauses = [50, 300, 1800, 6000].map(Duration::from_millis);
    let reported = |pause| said(pause).contains("while the line is measured");
    assert!(pauses.into_iter().any(reported));
}

/// The links of another migration, and a source that vanishes.
#[test]
fn a_source_that_vanishes_does_not_keep_the_destination() {
    then_a_guest_arrives(|remote| {
        let control = begin(remote);
        let (_, mut pages) = link(remote, Role::Background { index: 0 });
        let range = PageRange::from_len(Page::new(0), 1);
        pages.pages(range, &[7; 4096]).unwrap();
        drop((control, pages));
    });
}
