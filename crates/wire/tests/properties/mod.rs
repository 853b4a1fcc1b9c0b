//! The functions of the fuzz targets `wire_*` (`fuzz/fuzz_targets`): properties of all bytes that a
//! peer can send.
//!
//! The property tests run them on random and damaged streams, and on the kept fuzz inputs.

use hikkoshi_wire::{
    ControlMessage, Decoder, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Message, StreamError,
    ToDestination, ToSource, control_frame, decode_control, encode_control,
};

/// A guest of 4 GiB.
pub const LIMITS: Limits = Limits { pages: 1 << 20 };

/// Checks everything that this crate can decode on `bytes`.
pub fn check(bytes: &[u8]) {
    hello(bytes);
    header(bytes);
    control::<ToDestination>(bytes);
    control::<ToSource>(bytes);
    // As they are they rarely get past the first checksum; mended they do.
    for stream in [bytes.to_vec(), mend(bytes)] {
        decoder::<ToDestination>(&stream);
        decoder::<ToSource>(&stream);
    }
}

/// A hello that is accepted is the only way to write down what it says.
pub fn hello(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HELLO_LEN>() else {
        return;
    };
    let mut mended = *bytes;
    mended[..8].copy_from_slice(b"hikkoshi");
    let checksum = crc32c::crc32c(&mended[..HELLO_LEN - 4]);
    mended[HELLO_LEN - 4..].copy_from_slice(&checksum.to_le_bytes());
    for bytes in [bytes, &mended] {
        one_hello(bytes);
    }
}

fn one_hello(bytes: &[u8; HELLO_LEN]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(&hello.encode(), bytes, "{hello:?}");
    }
}

/// So is a header; and it keeps its limits.
pub fn header(bytes: &[u8]) {
    let mended = mend(bytes);
    for bytes in [bytes, &mended] {
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

/// A control message that is accepted can be sent on, in no more bytes, and
/// still says the same.
pub fn control<T: ControlMessage + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = decode_control::<T>(bytes) {
        let again = encode_control(&message).expect("what was decoded keeps all bounds");
        assert!(again.len() <= bytes.len(), "{message:?}");
        assert_eq!(decode_control::<T>(&again), Ok(message));
    }
    if let Ok(ToDestination::Begin { description, .. }) = decode_control(bytes) {
        // Whatever it describes, it can be looked at without harm.
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

/// A stream means the same in whatever pieces it comes, and what was decoded
/// from it encodes to a stream that means the same.
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

/// All messages of a stream pushed in pieces, and how it ended.
pub fn decode<T: ControlMessage>(
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
                        "it stays so"
                    );
                    return (messages, Err(error));
                }
            }
        }
    }
    (messages, decoder.finish())
}

/// The bytes of a message.
pub fn encode<T: ControlMessage>(message: &Message<T>) -> Vec<u8> {
    match message {
        Message::Control(message) => control_frame(message).expect("it keeps all bounds"),
        Message::Pages { range, bytes } => {
            let mut frame = Frame::Pages { range: *range }.encode().to_vec();
            frame.extend_from_slice(bytes);
            frame
        }
        Message::Bare(frame) => frame.encode().to_vec(),
    }
}

/// The stream with the magic and checksum of each header put right, as far as
/// the headers can be followed.
pub fn mend(stream: &[u8]) -> Vec<u8> {
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
