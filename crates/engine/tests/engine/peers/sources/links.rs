//! More links than are possible, and links of other peers.

use std::sync::Arc;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, DestinationOptions, receive};
use hikkoshi_link::{hello, split};
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
use hikkoshi_wire::{Frame, Limits, MAX_LINKS, MigrationId, Role, ToDestination, ToSource};

use crate::guests::TestDestination;
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::peers::{listen, machine};
use crate::run::{open, receive_control, watchdog};

use super::{ID, offer, received};

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
    let control = receive_control(&Arc::default());
    let limits = Limits::from(&layout);
    let offer = |links| {
        let mut offer = offer(&description, false);
        if let ToDestination::Offer {
            background_links, ..
        } = &mut offer
        {
            *background_links = links;
        }
        offer
    };
    let result = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let options = DestinationOptions::default();
            receive(&mut guest, &listener, &options, &control)
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
        "the source ended the migration: enough"
    );
    let memory = machine.memory(Side::Destination);
    for index in 0..MAX_LINKS {
        let content = memory.load(u64::from(index));
        assert_eq!(content, [u8::try_from(index).unwrap() + 1; PAGE_SIZE]);
    }
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
