//! Bytes in, messages out.

use hikkoshi_pages::PageRange;
use thiserror::Error;

use super::control_codec::{ControlError, ControlMessage, decode_control};
use super::frame::{DecodeError, Frame, HEADER_LEN, Limits};

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
    /// A frame without a payload: zeros, a request, an
    /// acknowledgement.
    Bare(Frame),
}

/// Takes a link's bytes after the hello, in pieces of any size, and gives out
/// its messages. `T` is the direction of its control messages.
///
/// It holds the bytes that were pushed and not yet consumed, and nothing else:
/// a length that is announced sets no memory aside. The engine's own receivers
/// use [`Frame::decode`] instead and read page contents to where they belong;
/// this is for everything that can afford a copy.
#[derive(Debug)]
pub struct Decoder<T> {
    limits: Limits,
    buffer: Vec<u8>,
    /// How much of `buffer` has been consumed.
    consumed: usize,
    /// The frame whose header was consumed and whose payload was not yet.
    pending: Option<Frame>,
    failed: Option<StreamError>,
    direction: std::marker::PhantomData<fn() -> T>,
}

impl<T: ControlMessage> Decoder<T> {
    /// A decoder for one link.
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

    /// What frames may refer to from now on: the layout is agreed on by the
    /// first messages of the control link.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Takes in the next bytes of the stream. Take the messages out before
    /// pushing more: bytes that are not consumed stay in memory.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // Moving what is left is paid for by as many bytes consumed before.
        if self.consumed >= self.buffer.len() - self.consumed {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, or `None` if more bytes are needed for it.
    ///
    /// # Errors
    ///
    /// If the stream is no good. It stays so: there is no telling where the
    /// next frame begins, so every later call returns the same error.
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
            Frame::Zeros { .. } | Frame::Request { .. } | Frame::Ack { .. } => Message::Bare(frame),
        };
        self.consumed += payload.len();
        self.pending = None;
        Ok(Some(message))
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    ///
    /// If it ended in the middle of a frame, or was no good before.
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

/// Why a stream of frames could not be followed further.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A bad header.
    #[error(transparent)]
    Header(#[from] DecodeError),
    /// A bad control message.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The stream ended too early.
    #[error(
        "reading the peer's frames: the stream ended in the middle ({name}), {missing} bytes are missing; the link broke"
    )]
    Truncated {
        /// What was being read.
        name: &'static str,
        /// At least how many bytes are missing.
        missing: usize,
    },
}
