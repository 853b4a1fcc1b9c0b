//! The properties of decoding: of random bytes, of streams of messages, of damaged streams, and of
//! the kept fuzz inputs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test's failure is its message"
)]

mod properties;
#[allow(dead_code, reason = "shared with other tests")]
mod strategies;

use hikkoshi_wire::{ToDestination, ToSource};
use properties::{Message, StreamEnd};
use proptest::prelude::*;

fn stream<T: hikkoshi_wire::ControlMessage>(messages: &[Message<T>]) -> Vec<u8> {
    messages.iter().flat_map(properties::encode).collect()
}

proptest! {
    #[test]
    fn any_bytes_keep_the_properties(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        properties::check(&bytes);
    }

    /// Small numbers reach deeper into the decoder of control messages.
    #[test]
    fn any_small_bytes_keep_the_properties(bytes in prop::collection::vec(0..12u8, 0..120)) {
        properties::check(&bytes);
    }

    #[test]
    fn a_stream_to_the_destination_decodes_to_its_messages(
        messages in prop::collection::vec(strategies::message(strategies::to_destination()), 0..6),
    ) {
        let bytes = stream(&messages);
        prop_assert_eq!(properties::decode(&bytes), (messages, Ok(())));
    }

    #[test]
    fn a_stream_to_the_source_decodes_to_its_messages(
        messages in prop::collection::vec(strategies::message(strategies::to_source()), 0..6),
    ) {
        let bytes = stream(&messages);
        prop_assert_eq!(properties::decode(&bytes), (messages, Ok(())));
    }

    #[test]
    fn a_truncated_stream_gives_its_first_messages_and_an_error(
        messages in prop::collection::vec(strategies::message(strategies::to_source()), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = stream(&messages);
        let cut = cut.index(bytes.len());
        let (got, end) = properties::decode(&bytes[..cut]);
        prop_assert_eq!(&messages[..got.len()], &got[..]);
        let complete = stream(&got).len();
        match end {
            Ok(()) => prop_assert_eq!(complete, cut),
            Err(StreamEnd::Truncated(missing)) => {
                prop_assert!(complete < cut && missing > 0);
            }
            Err(error) => prop_assert!(false, "{:?}", error),
        }
    }

    #[test]
    fn a_damaged_stream_keeps_the_properties(
        messages in prop::collection::vec(strategies::message(strategies::to_destination()), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = stream(&messages);
        let len = bytes.len();
        for (at, byte) in damage {
            bytes[at.index(len)] = byte;
        }
        properties::check(&bytes);
    }
}

const TARGETS: [hikkoshi_fuzz_replay::Target; 5] = [
    ("hello", properties::hello),
    ("header", properties::header),
    ("to_destination", properties::control::<ToDestination>),
    ("to_source", properties::control::<ToSource>),
    ("stream", properties::check),
];

#[test]
fn the_kept_fuzz_inputs_pass() {
    hikkoshi_fuzz_replay::replay("wire", &TARGETS);
}
