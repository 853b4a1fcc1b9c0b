//! Before *Commit*: the guest stays at the source.

use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{CancelFlag, Mode, SourceOptions};
use hikkoshi_handover::Outcome;
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{Frame, ToSource};

use crate::guests::Script;
use crate::machine::Side;
use crate::memory::SMALL;

use super::{Destination, discarded, migrated, migrated_from, rejected, until_switch};

#[test]
fn answers_out_of_order() {
    rejected(Mode::Hybrid, "unexpected message Ready", |destination| {
        destination.control().1.control(&ToSource::Ready).unwrap();
    });
    for host_pages in [vec![], vec![SMALL], vec![SMALL, 5000], vec![SMALL, 1 << 30]] {
        rejected(Mode::Hybrid, "unexpected message [", move |destination| {
            let mut control = destination.control();
            control
                .1
                .control(&ToSource::Accept {
                    host_pages,
                    marks_holes: false,
                })
                .unwrap();
        });
    }
    let early = "waiting for the destination to drop stale pages: the peer broke the protocol: \
                 unexpected message Ready";
    rejected(Mode::Postcopy, early, |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        control.1.control(&ToSource::Ready).unwrap();
    });
    let resumed = "waiting for the destination to get ready: the peer broke the protocol: \
                   unexpected message GuestResumed";
    rejected(Mode::Postcopy, resumed, |destination| {
        let (mut control, _background, _urgent) = until_switch(destination);
        control.1.control(&ToSource::GuestResumed).unwrap();
    });
    rejected(Mode::Hybrid, "the destination failed: no", |destination| {
        let (mut control, _background, _urgent) = destination.accept();
        let reason = "no".into();
        control.1.control(&ToSource::Failed { reason }).unwrap();
        destination
            .streams
            .iter()
            .for_each(|stream| stream.shutdown());
    });
}

#[test]
fn acknowledgements_of_unsent_bytes() {
    let expected = "on a background link, ";
    rejected(Mode::Precopy, expected, |destination| {
        let mut control = destination.control();
        let host_pages = vec![SMALL, SMALL];
        control
            .1
            .control(&ToSource::Accept {
                host_pages,
                marks_holes: false,
            })
            .unwrap();
        let mut background = destination.background();
        let bytes = 1 << 40;
        background.1.frame(Frame::Ack { bytes }).unwrap();
        // Reads the messages, so that the source processes the acknowledgement.
        let mut buffer = vec![0; 1 << 20];
        while let Ok(frame) = background.0.frame() {
            let _ = background.0.payload(&mut buffer[..frame.payload_len()]);
        }
    });
}

#[test]
fn invalid_messages_on_the_urgent_link() {
    for (frame, expected) in [
        (
            Frame::Zeros {
                range: PageRange::one(Page::new(0)),
            },
            "on the urgent link",
        ),
        (
            Frame::Request {
                range: PageRange::from_len(Page::new(2047), 2),
            },
            "malformed message",
        ),
    ] {
        rejected(Mode::Postcopy, expected, move |destination| {
            let (_control, _background, mut urgent) = until_switch(destination);
            urgent.1.frame(frame).unwrap();
        });
    }
}

/// Time for a source to fill the buffers in front of it. If it is too short, the test checks less,
/// but does not fail.
const TIME_TO_BLOCK: Duration = Duration::from_millis(300);

/// The guest is paused and the destination does not read: after a cancellation the guest resumes at
/// the source.
#[test]
fn a_source_blocked_by_its_destination_can_be_cancelled() {
    // On the background link, with the guest running.
    let cancel = CancelFlag::new();
    let asked = cancel.clone();
    let (result, machine, calls) = migrated(Mode::Precopy, &cancel, move |destination| {
        let mut control = destination.control();
        let host_pages = vec![SMALL, SMALL];
        control
            .1
            .control(&ToSource::Accept {
                host_pages,
                marks_holes: false,
            })
            .unwrap();
        let _background = destination.background();
        thread::sleep(TIME_TO_BLOCK);
        asked.cancel();
    });
    assert_eq!(Report::new(&result.unwrap_err()).to_string(), "cancelled");
    assert!(!calls.contains(&"pause"));
    assert_eq!(machine.runs(), Some(Side::Source));

    // On the control link, with the guest paused: the device state does not fit into the socket's
    // buffers.
    let cancel = CancelFlag::new();
    let asked = cancel.clone();
    let options = SourceOptions {
        mode: Mode::Postcopy,
        ..SourceOptions::default()
    };
    let while_it_saves = move |script: &Script| {
        script.at("save_device_state", move || {
            let asked = asked.clone();
            thread::spawn(move || {
                thread::sleep(TIME_TO_BLOCK);
                asked.cancel();
            });
            Ok(())
        });
    };
    let accepts = |destination: &mut Destination<'_>| {
        let (mut control, _background, _urgent) = destination.accept();
        discarded(&mut control);
    };
    let (result, machine, calls) = migrated_from(&options, &cancel, while_it_saves, accepts);
    let error = result.unwrap_err();
    assert_eq!(Report::new(&error).to_string(), "cancelled");
    assert_eq!(error.outcome, Outcome::AtSource);
    assert!(calls.contains(&"pause"));
    assert_eq!(machine.runs(), Some(Side::Source));
    machine.work(100);
    machine.check(Side::Source);
}
