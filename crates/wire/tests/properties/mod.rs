//! The functions of the fuzz targets `wire_*` (`fuzz/fuzz_targets`): properties of all bytes that a
//! peer can send.
//!
//! The property tests run them on random and damaged streams, and on the kept fuzz inputs.

use hikkoshi_wire::{
    ControlMessage, Decoder, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Message, StreamError,
    ToDestination, ToSource, control_frame, decode_control, encode_control,
};

/// A guest of 4 GiB.
pub(crate) const LIMITS: Limits = Limits { pages: 1 << 20 };

/// Checks every decoder of this crate with `bytes`.
pub(crate) fn check(bytes: &[u8]) {
    hello(bytes);
    header(bytes);
    control::<ToDestination>(bytes);
    control::<ToSource>(bytes);
    // Unchanged bytes rarely have a correct checksum; repaired ones do.
    for stream in [bytes.to_vec(), repair(bytes)] {
        decoder::<ToDestination>(&stream);
        decoder::<ToSource>(&stream);
    }
}

/// A hello that is accepted is the only encoding of its contents.
pub(crate) fn hello(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HELLO_LEN>() else {
        return;
    };
    let mut repaired = *bytes;
    repaired[..8].copy_from_slice(b"hikkoshi");
    let checksum = crc32c::crc32c(&repaired[..HELLO_LEN - 4]);
    repaired[HELLO_LEN - 4..].copy_from_slice(&checksum.to_le_bytes());
    for bytes in [bytes, &repaired] {
        one_hello(bytes);
    }
}

fn one_hello(bytes: &[u8; HELLO_LEN]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(&hello.encode(), bytes, "{hello:?}");
    }
}

/// A header that is accepted is the only encoding of its frame, and the frame is
/// within its limits.
pub(crate) fn header(bytes: &[u8]) {
    let repaired = repair(bytes);
    for bytes in [bytes, &repaired] {
        if let Some(bytes) = bytes.first_chunk() {
            one_header(bytes);
        }
    }
}

fn one_header(bytes: &[u8; HEADER_LEN]) {
    if let Ok(frame) = Frame::decode(bytes, &LIMITS) {
        assert_eq!(&frame.encode(), bytes, "{frame:?}");
        assert!(frame.payload_len() <= 1 << 20, "{frame:?}");
        if let Frame::Pages { range } | Frame::Zeros { range } | Frame::Request { range } = frame {
            assert!(
                !range.is_empty() && range.end().index() <= LIMITS.pages,
                "{frame:?}"
            );
        }
    }
}

/// A control message that is accepted encodes to at most as many bytes, and these
/// decode to the same message.
pub(crate) fn control<T: ControlMessage + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = decode_control::<T>(bytes) {
        let again = encode_control(&message).expect("a decoded message is within all bounds");
        assert!(again.len() <= bytes.len(), "{message:?}");
        assert_eq!(decode_control::<T>(&again), Ok(message));
    }
    if let Ok(ToDestination::Offer { guest, .. }) = decode_control(bytes) {
        let description = guest.description;
        // Any description can be compared and laid out without a panic.
        assert_eq!(description.compatible_with(&description), Ok(()));
        if let Ok(layout) = description.layout() {
            assert!(
                layout
                    .all()
                    .iter()
                    .take(3)
                    .all(|page| layout.locate(page).is_some())
            );
        }
    }
}

/// A stream decodes to the same messages in pieces of any size, and these messages
/// encode to a stream that decodes to the same.
fn decoder<T: ControlMessage + Clone + PartialEq + std::fmt::Debug>(stream: &[u8]) {
    let whole = decode::<T>(stream, usize::MAX);
    let piece = 1 + usize::from(stream.last().copied().unwrap_or_default());
    assert_eq!(
        whole,
        decode::<T>(stream, piece),
        "in pieces of {piece} bytes"
    );
    let (messages, _) = whole;
    let again: Vec<u8> = messages.iter().flat_map(encode).collect();
    assert_eq!(decode::<T>(&again, usize::MAX), (messages, Ok(())));
}

/// Returns all messages of a stream that is pushed in pieces, and its end.
pub(crate) fn decode<T: ControlMessage>(
    stream: &[u8],
    piece: usize,
) -> (Vec<Message<T>>, Result<(), StreamError>) {
    let mut decoder = Decoder::new(LIMITS);
    let mut messages = Vec::new();
    for piece in stream.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(
                        decoder.next_message().err(),
                        Some(error.clone()),
                        "the error must repeat"
                    );
                    return (messages, Err(error));
                }
            }
        }
    }
    (messages, decoder.finish())
}

/// Returns the bytes of a message.
pub(crate) fn encode<T: ControlMessage>(message: &Message<T>) -> Vec<u8> {
    match message {
        Message::Control(message) => {
            control_frame(message).expect("the message is within all bounds")
        }
        Message::Pages { range, bytes } => {
            let mut frame = Frame::Pages { range: *range }.encode().to_vec();
            frame.extend_from_slice(bytes);
            frame
        }
        Message::Bare(frame) => frame.encode().to_vec(),
        Message::Disk(bytes) => {
            let len = u32::try_from(bytes.len()).expect("the bytes are few");
            let mut frame = Frame::Disk { len }.encode().to_vec();
            frame.extend_from_slice(bytes);
            frame
        }
    }
}

/// Returns the stream with a correct magic and checksum in each header, up to the
/// first header that is still invalid.
pub(crate) fn repair(stream: &[u8]) -> Vec<u8> {
    let mut stream = stream.to_vec();
    let mut at = 0;
    while let Some(header) = stream
        .get_mut(at..)
        .and_then(|rest| rest.first_chunk_mut::<HEADER_LEN>())
    {
        header[..2].copy_from_slice(b"hk");
        let checksum = crc32c::crc32c(&header[..HEADER_LEN - 4]);
        header[HEADER_LEN - 4..].copy_from_slice(&checksum.to_le_bytes());
        match Frame::decode(header, &LIMITS) {
            Ok(frame) => at += HEADER_LEN + frame.payload_len(),
            Err(_) => break,
        }
    }
    stream
}
