//! What a peer has sent in the handshake, record by record.

use std::io::{self, Read};

use rustls::InvalidMessage;

use crate::tls::keys::HEADER;
use crate::tls::record_decrypt::MAX_RECORD;
use crate::tls::secure_error::SecureError;
use crate::tls::time_limits::{TimeLimits, or_timed_out};

/// The number of bytes that a peer may send in a handshake.
const MAX_HANDSHAKE: usize = 128 << 10;

/// The size of one read.
const CHUNK: usize = 16 << 10;

/// Bytes received from the socket. rustls gets them record by record, because bytes after the
/// handshake are not for rustls.
#[derive(Default)]
pub(super) struct ReceiveBuffer {
    raw: Vec<u8>,
    passed: usize,
}

impl ReceiveBuffer {
    pub(super) fn passed(&mut self) -> &mut [u8] {
        &mut self.raw[..self.passed]
    }

    pub(super) fn discard(&mut self, bytes: usize) {
        let bytes = bytes.min(self.passed);
        self.raw.drain(..bytes);
        self.passed -= bytes;
    }

    /// The bytes that rustls has not got.
    pub(super) fn rest(&self) -> &[u8] {
        &self.raw[self.passed..]
    }

    /// Passes on one more record, and reads it from the socket if necessary.
    pub(super) fn next(
        &mut self,
        socket: &mut impl Read,
        limits: TimeLimits<'_>,
    ) -> Result<(), SecureError> {
        loop {
            let rest = self.rest();
            let whole = match rest {
                [20..=23, 3, _, high, low, ..] => {
                    let len = usize::from(u16::from_be_bytes([*high, *low]));
                    if len > MAX_RECORD {
                        return Err(rustls::Error::from(InvalidMessage::MessageTooLarge).into());
                    }
                    HEADER + len
                }
                // Not a record: rustls reports the error, also to the peer.
                [20..=23, 3, ..] | [20..=23] | [] => HEADER,
                other => other.len().min(HEADER),
            };
            if rest.len() >= whole {
                self.passed += whole;
                return Ok(());
            }
            if self.raw.len() >= MAX_HANDSHAKE {
                let text = "the peer sent too much data in the handshake";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
            }
            let filled = self.raw.len();
            self.raw.resize(filled + CHUNK, 0);
            let read = limits.retry(|| socket.read(&mut self.raw[filled..]));
            self.raw.truncate(filled + *read.as_ref().unwrap_or(&0));
            if read.map_err(or_timed_out)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}
