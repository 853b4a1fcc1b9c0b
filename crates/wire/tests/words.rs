//! A peer's words are shown to people: as text, and as nothing else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's failure is its message"
)]

use hikkoshi_wire::{
    ControlError, FaultMeasures, MAX_TEXT, ThreadFaults, ToDestination, ToSource, decode_control,
    encode_control,
};

/// Clears a terminal, names its window, goes back to the line's start.
const WORDS: &str = "a\x1b[2J\x1b]0;x\x07\r\nb\tc\u{0}\u{7f}\u{9b}\u{202e}\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}\u{2028}\u{2029} é月";
const SHOWN: &str = "a?[2J?]0;x?  b c??????????? é月";

#[test]
fn reasons_are_text() {
    let reason = WORDS.to_owned();
    let sent = encode_control(&ToSource::Failed { reason }).unwrap();
    let ToSource::Failed { reason } = decode_control(&sent).unwrap() else {
        panic!("another message came back")
    };
    assert_eq!(reason, SHOWN);
    let reason = WORDS.to_owned();
    let sent = encode_control(&ToDestination::Cancel { reason }).unwrap();
    let ToDestination::Cancel { reason } = decode_control(&sent).unwrap() else {
        panic!("another message came back")
    };
    assert_eq!(reason, SHOWN);
}

#[test]
fn so_are_names_of_threads() {
    let faults = FaultMeasures {
        threads: vec![ThreadFaults {
            thread: WORDS.to_owned(),
            vcpu: None,
            count: 1,
        }],
        ..FaultMeasures::default()
    };
    let sent = encode_control(&ToSource::Measured { faults }).unwrap();
    let ToSource::Measured { faults } = decode_control(&sent).unwrap() else {
        panic!("another message came back")
    };
    assert_eq!(faults.threads[0].thread, SHOWN);
}

/// A text does not grow when it is taken in.
#[test]
fn the_longest_text_keeps_its_bound() {
    let reason = "\x1b".repeat(MAX_TEXT);
    let sent = encode_control(&ToSource::Refuse { reason }).unwrap();
    let ToSource::Refuse { reason } = decode_control(&sent).unwrap() else {
        panic!("another message came back")
    };
    assert_eq!(reason, "?".repeat(MAX_TEXT));
}

#[test]
fn no_machine_is_called_that() {
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
