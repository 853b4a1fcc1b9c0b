//! A peer's text contains only printable characters after decoding.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's failure is its message"
)]

use hikkoshi_wire::{
    ControlError, FaultKind, FaultMeasures, MAX_TEXT, RequestSummary, ThreadFaults, ToDestination,
    ToSource, decode_control, encode_control,
};

/// Clears a terminal, sets its window's title, returns to the start of the line.
const TEXT: &str = "a\x1b[2J\x1b]0;x\x07\r\nb\tc\u{0}\u{7f}\u{9b}\u{202e}\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}\u{2028}\u{2029} é月";
const SHOWN: &str = "a?[2J?]0;x?  b c??????????? é月";

#[test]
fn reasons_are_printable() {
    let reason = TEXT.to_owned();
    let sent = encode_control(&ToSource::Failed { reason }).unwrap();
    let ToSource::Failed { reason } = decode_control(&sent).unwrap() else {
        panic!("another message was decoded")
    };
    assert_eq!(reason, SHOWN);
    let reason = TEXT.to_owned();
    let sent = encode_control(&ToDestination::Cancel { reason }).unwrap();
    let ToDestination::Cancel { reason } = decode_control(&sent).unwrap() else {
        panic!("another message was decoded")
    };
    assert_eq!(reason, SHOWN);
}

#[test]
fn names_of_threads_are_printable() {
    let faults = Box::new(FaultMeasures {
        threads: vec![ThreadFaults {
            thread: TEXT.to_owned(),
            kind: FaultKind::Other,
            count: 1,
        }],
        ..FaultMeasures::default()
    });
    let requests = RequestSummary::default();
    let sent = encode_control(&ToSource::Complete { requests, faults }).unwrap();
    let ToSource::Complete { faults, .. } = decode_control(&sent).unwrap() else {
        panic!("another message was decoded")
    };
    assert_eq!(faults.threads[0].thread, SHOWN);
}

/// Decoding does not make a text longer.
#[test]
fn the_longest_text_keeps_its_bound() {
    let reason = "\x1b".repeat(MAX_TEXT);
    let sent = encode_control(&ToSource::Refuse { reason }).unwrap();
    let ToSource::Refuse { reason } = decode_control(&sent).unwrap() else {
        panic!("another message was decoded")
    };
    assert_eq!(reason, "?".repeat(MAX_TEXT));
}

#[test]
fn names_with_control_characters_are_refused() {
    for name in [
        "pc\n",
        "pc\x1b[1m",
        "pc\u{202e}",
        "pc\u{200f}",
        "pc\u{2028}",
    ] {
        let offer = postcard::to_allocvec(&(0u32, name, "x86_64", 1u32, "c", "h 1", true, 0u64));
        let error = decode_control::<ToDestination>(&offer.unwrap()).unwrap_err();
        assert_eq!(error, ControlError::Malformed { number: 0 }, "{name:?}");
    }
}
