//! The decoder: bytes in, messages out.

use hikkoshi_pages::PageRange;
use thiserror::Error;

use super::control_codec::{ControlError, ControlMessage, decode_control};
use super::frame::{DecodeError, Frame, HEADER_LEN};
use crate::limits::Limits;

/// A frame with its payload, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<T> {
    /// A control message.
    Control(T),
    /// The contents of pages.
    Pages {
        /// The pages.
        range: PageRange,
        /// Their contents, 4096 bytes for each.
        bytes: Vec<u8>,
    },
    /// A frame without a payload: zeros, a request, an acknowledgement.
    Bare(Frame),
    /// The next bytes of a disk's connection; none: no more follow.
    Disk(Vec<u8>),
}

/// Decodes a link's bytes after the hello, which it accepts in pieces of any size.
/// `T` is the direction of the control messages.
///
/// It holds only the bytes that were pushed and not yet consumed: it allocates
/// nothing for an announced length. The engine's receivers use [`Frame::decode`]
/// instead and read page contents directly to their final address. The decoder
/// is for callers that can afford a copy.
#[derive(Debug)]
pub struct Decoder<T> {
    limits: Limits,
    buffer: Vec<u8>,
    /// The number of consumed bytes in `buffer`.
    consumed: usize,
    /// The frame whose header is consumed and whose payload is not.
    pending: Option<Frame>,
    failed: Option<StreamError>,
    direction: std::marker::PhantomData<fn() -> T>,
}

impl<T: ControlMessage> Decoder<T> {
    /// Returns a decoder for one link.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            buffer: Vec::new(),
            consumed: 0,
            pending: None,
            failed: None,
            direction: std::marker::PhantomData,
        }
    }

    /// Adds the next bytes of the stream. Take all messages out before pushing
    /// more: bytes that are not consumed stay in memory.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // At most as many bytes are moved as were consumed since the last move.
        if self.consumed >= self.buffer.len() - self.consumed {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message, or `None` if it needs more bytes.
    ///
    /// # Errors
    ///
    /// If the stream is invalid. The start of the next frame is unknown then, so
    /// every later call returns the same error.
    pub fn next_message(&mut self) -> Result<Option<Message<T>>, StreamError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.step().inspect_err(|error| {
            self.failed = Some(error.clone());
            self.buffer = Vec::new();
            self.consumed = 0;
        })
    }

    fn step(&mut self) -> Result<Option<Message<T>>, StreamError> {
        let rest = self.buffer.get(self.consumed..).unwrap_or_default();
        let (frame, rest) = match self.pending {
            Some(frame) => (frame, rest),
            None => {
                let Some((header, rest)) = rest.split_first_chunk::<HEADER_LEN>() else {
                    return Ok(None);
                };
                let frame = Frame::decode(header, &self.limits)?;
                self.consumed += HEADER_LEN;
                self.pending = Some(frame);
                (frame, rest)
            }
        };
        let Some(payload) = rest.get(..frame.payload_len()) else {
            return Ok(None);
        };
        let message = match frame {
            Frame::Control { .. } => Message::Control(decode_control(payload)?),
            Frame::Pages { range } => Message::Pages {
                range,
                bytes: payload.to_vec(),
            },
            Frame::Disk { .. } => Message::Disk(payload.to_vec()),
            Frame::Zeros { .. } | Frame::Request { .. } | Frame::Ack { .. } => Message::Bare(frame),
        };
        self.consumed += payload.len();
        self.pending = None;
        Ok(Some(message))
    }

    /// Ends the stream.
    ///
    /// # Errors
    ///
    /// If the stream ends in the middle of a frame, or was invalid before.
    pub fn finish(self) -> Result<(), StreamError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let left = self.buffer.len() - self.consumed;
        match self.pending {
            Some(frame) => Err(StreamError::Truncated {
                name: frame.name(),
                missing: frame.payload_len().saturating_sub(left),
            }),
            None if left > 0 => Err(StreamError::Truncated {
                name: "frame header",
                missing: HEADER_LEN.saturating_sub(left),
            }),
            None => Ok(()),
        }
    }
}

/// Why a stream of frames cannot be decoded further.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// An invalid header.
    #[error(transparent)]
    Header(#[from] DecodeError),
    /// An invalid control message.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The stream ended in the middle of a frame.
    #[error(
        "reading the peer's frames: the stream ended in the middle of a frame ({name}), {missing} bytes are missing; the link broke"
    )]
    Truncated {
        /// What was being read.
        name: &'static str,
        /// The least number of missing bytes.
        missing: usize,
    },
}
