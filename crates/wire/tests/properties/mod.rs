//! The functions of the fuzz targets `wire_*` (`fuzz/fuzz_targets`): properties of all bytes that a
//! peer can send.
//!
//! The property tests run them on random and damaged streams, and on the kept fuzz inputs.

use hikkoshi_wire::{
    ControlError, ControlMessage, DecodeError, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits,
    ToDestination, ToSource, decode_control, encode_control,
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
    for bytes in [bytes.to_vec(), repair(bytes)] {
        stream::<ToDestination>(&bytes);
        stream::<ToSource>(&bytes);
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
        if let Frame::Pages { range }
        | Frame::Compressed { range, .. }
        | Frame::Zeros { range }
        | Frame::Request { range } = frame
        {
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
        assert_eq!(description.differences(&description), []);
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

/// The messages of a stream encode to a stream that decodes to the same.
fn stream<T: ControlMessage + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let (messages, _) = decode::<T>(bytes);
    let again: Vec<u8> = messages.iter().flat_map(encode).collect();
    assert_eq!(decode::<T>(&again), (messages, Ok(())));
}

/// A frame with its payload, decoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message<T> {
    /// A control message.
    Control(T),
    /// Another frame, and its payload.
    Frame(Frame, Vec<u8>),
}

/// Why a stream does not decode to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StreamEnd {
    /// So many more bytes are needed, or more.
    Truncated(usize),
    Header(DecodeError),
    Control(ControlError),
}

/// Returns all messages of a stream, and why it does not decode further.
pub(crate) fn decode<T: ControlMessage>(
    mut stream: &[u8],
) -> (Vec<Message<T>>, Result<(), StreamEnd>) {
    let mut messages = Vec::new();
    while !stream.is_empty() {
        match first(stream) {
            Ok((message, rest)) => {
                messages.push(message);
                stream = rest;
            }
            Err(end) => return (messages, Err(end)),
        }
    }
    (messages, Ok(()))
}

/// Returns the first message of a stream, and what follows.
fn first<T: ControlMessage>(stream: &[u8]) -> Result<(Message<T>, &[u8]), StreamEnd> {
    let Some((header, rest)) = stream.split_first_chunk() else {
        return Err(StreamEnd::Truncated(HEADER_LEN - stream.len()));
    };
    let frame = Frame::decode(header, &LIMITS).map_err(StreamEnd::Header)?;
    let Some((payload, rest)) = rest.split_at_checked(frame.payload_len()) else {
        return Err(StreamEnd::Truncated(frame.payload_len() - rest.len()));
    };
    let message = match frame {
        Frame::Control { .. } => {
            Message::Control(decode_control(payload).map_err(StreamEnd::Control)?)
        }
        _ => Message::Frame(frame, payload.to_vec()),
    };
    Ok((message, rest))
}

/// Returns the bytes of a message.
pub(crate) fn encode<T: ControlMessage>(message: &Message<T>) -> Vec<u8> {
    match message {
        Message::Control(message) => {
            let payload = encode_control(message).expect("the message is within all bounds");
            let len = u32::try_from(payload.len()).expect("a bounded length");
            [&Frame::Control { len }.encode()[..], &payload].concat()
        }
        Message::Frame(frame, payload) => [&frame.encode()[..], payload].concat(),
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
