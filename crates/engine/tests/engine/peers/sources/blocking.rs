//! Sources that send endlessly, do not read, or cancel: no thread of the destination is blocked.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::DestinationOptions;
use hikkoshi_handover::Outcome;
use hikkoshi_link::Address;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
use hikkoshi_wire::{Frame, Limits, MAX_DEVICE_CHUNK, ToDestination, ToSource};

use crate::guests::TestDestination;
use crate::machine::Side;
use crate::memory::{MIB, SMALL, layout};
use crate::peers::machine;

use super::{Source, receive_from, received, received_into, refused};

/// A page that came too early waits for the switch, and so does a thread of the guest's process.
#[test]
fn a_source_that_cancels_before_the_switch_keeps_nobody_waiting() {
    let layout = layout(&[(MIB, SMALL), (MIB, SMALL)]);
    let pages = Limits::from(&layout).pages;
    let machine = machine(&layout, &layout);
    let memory = Arc::clone(machine.memory(Side::Destination));
    let script = |source: &mut Source, _: &Address| {
        source.discard(0, pages);
        source.send(&ToDestination::DiscardEnd);
        let discarded: ToSource = source.control.0.control().unwrap();
        assert_eq!(discarded, ToSource::Discarded);
        let reader = thread::spawn(move || memory.read_all());
        let range = PageRange::from_len(Page::new(3), 1);
        source.background.1.pages(range, &[1; PAGE_SIZE]).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished(), "it reads missing pages");
        source.send(&ToDestination::Cancel {
            reason: "enough".into(),
        });
        reader.join().unwrap();
    };
    let (outcome, text, guest) = received_into(&machine, true, script);
    assert!(text.contains("enough"), "{text}");
    assert_eq!(outcome, Outcome::AtSource);
    assert_eq!(guest.script.count("load_device_state"), 0);
    assert_eq!(guest.script.count("release"), 1);
}

#[test]
fn an_endless_device_state() {
    refused(false, "the device state arrived damaged: ", |source| {
        let bytes = vec![7; MAX_DEVICE_CHUNK];
        let chunk = ToDestination::DeviceStateChunk { bytes };
        for _ in 0..=512 {
            source.send(&chunk);
        }
    });
}

/// The destination's main thread ends although the source keeps sending: no thread waits for a
/// queue that no thread reads.
#[test]
fn a_source_that_sends_endlessly() {
    let layout = layout(&[(MIB, SMALL)]);
    let (outcome, text, guest) = received(&layout, true, |source, _| {
        source.discard(0, 256);
        source.switch(256, true);
        let (requests, _) = source.urgent.as_mut().unwrap();
        let asked = requests.frame().unwrap();
        assert!(matches!(asked, Frame::Request { .. }), "{asked:?}");
        for _ in 0..1000 {
            source.send(&ToDestination::DiscardEnd);
        }
    });
    assert_eq!(outcome, Outcome::AtSource);
    assert!(
        text.starts_with("loading the device state: the peer"),
        "{text}"
    );
    assert_eq!(guest.script.count("release"), 1);
}

/// A source that sends requests and never reads the answers cannot block the destination.
#[test]
fn a_destination_blocked_by_its_source_can_be_cancelled() {
    let layout = layout(&[(MIB, SMALL)]);
    let machine = machine(&layout, &layout);
    let mut guest = TestDestination::new(&machine, 1000);
    let options = DestinationOptions::default();
    let result = receive_from(&mut guest, true, &options, |source, _, cancel| {
        thread::scope(|scope| {
            // Each requires an answer, and none is read; they are more than any socket buffers.
            // This blocks once the destination does.
            scope.spawn(|| {
                for _ in 0..100_000 {
                    source.send(&ToDestination::DiscardEnd);
                }
            });
            // If this is too short, the test checks less, but does not fail.
            thread::sleep(Duration::from_millis(500));
            cancel.cancel();
        });
    });
    assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    assert_eq!(guest.script.count("release"), 1);
}
