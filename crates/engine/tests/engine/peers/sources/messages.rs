//! Messages that are invalid, come out of order, or contradict each other.

use hikkoshi_handover::Outcome;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
use hikkoshi_wire::{Frame, ToDestination, ToSource};

use crate::guests::TestDestination;
use crate::memory::{HUGE, HugePages, MIB, SMALL, layout};
use crate::peers::machine;

use super::{offer, received, refused};

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
    let twice = "receiving the guest: the peer broke the protocol: unexpected message Offer";
    let description = TestDestination::new(
        &machine(&layout(&[(MIB, SMALL)]), &layout(&[(MIB, SMALL)])),
        0,
    )
    .description;
    refused(true, twice, |source| {
        source.send(&offer(&description, true))
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
