//! The receiving direction: TLS records become plain bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fmt, io};

use crate::tls::keys::{
    ALERT, DATA, HANDSHAKE, HEADER, KEY_UPDATE, Key, KeyRenewal, MAX_PLAIN, TAG,
};

/// The size of one read from a socket: several records of the largest size.
const READ_BUFFER: usize = 128 << 10;

/// The longest record (RFC 8446, section 5.2).
pub(crate) const MAX_RECORD: usize = MAX_PLAIN + 256;

/// The number of records without content that may follow each other. A peer that sends more only
/// keeps this side busy.
pub(crate) const MAX_EMPTY: u32 = 32;

/// The peer ended the connection with this reason (RFC 8446, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alert(pub(crate) rustls::AlertDescription);

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the peer ended the connection with a TLS alert: {:?}",
            self.0
        )
    }
}

impl std::error::Error for Alert {}

/// Opens the records of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Opener {
    key: Key,
    renewal: Arc<KeyRenewal>,
    /// Bytes from the socket, up to `filled`; opened in place.
    raw: Box<[u8]>,
    filled: usize,
    /// The start of the next record.
    next: usize,
    /// Opened bytes that have not been read.
    plain: std::ops::Range<usize>,
    empty: u32,
}

impl Opener {
    /// An opener for a new connection; `rest` was received with the handshake.
    pub(crate) fn new(key: Key, renewal: Arc<KeyRenewal>, rest: &[u8]) -> Self {
        let mut raw = vec![0; READ_BUFFER.max(rest.len())].into_boxed_slice();
        raw[..rest.len()].copy_from_slice(rest);
        Self {
            key,
            renewal,
            raw,
            filled: rest.len(),
            next: 0,
            plain: 0..0,
            empty: 0,
        }
    }

    /// Whether something can be read without the socket.
    pub(crate) fn is_ready(&self) -> bool {
        !self.plain.is_empty() || self.next_content_len().is_ok_and(|len| len.is_some())
    }

    /// Reads plain bytes into `buffer`, from `socket` if necessary. `Ok(0)` means that the stream
    /// has ended: whether the peer intended it follows from the messages in it.
    ///
    /// # Errors
    /// The errors of `socket`; [`io::ErrorKind::InvalidData`] for data that is not a record of the
    /// peer.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        mut socket: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        while self.plain.is_empty() {
            if let Some(len) = self.next_content_len()? {
                if !self.open(len)? {
                    return Ok(0);
                }
                continue;
            }
            self.raw.copy_within(self.next..self.filled, 0);
            self.filled -= self.next;
            self.next = 0;
            self.plain = 0..0;
            let read = socket(&mut self.raw[self.filled..])?;
            if read == 0 {
                return Ok(0);
            }
            self.filled += read;
        }
        let len = buffer.len().min(self.plain.len());
        let from = self.plain.start;
        buffer[..len].copy_from_slice(&self.raw[from..from + len]);
        self.plain.start += len;
        Ok(len)
    }

    /// The length of the next record's content, if the record is complete.
    fn next_content_len(&self) -> io::Result<Option<usize>> {
        let [DATA, 3, 3, high, low, content @ ..] = &self.raw[self.next..self.filled] else {
            let start = &self.raw[self.next..self.filled];
            let known = [DATA, 3, 3];
            let len = start.len().min(known.len());
            return if start[..len] == known[..len] {
                Ok(None)
            } else {
                Err(malformed("data that is not a TLS record"))
            };
        };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        if !(1 + TAG..=MAX_RECORD).contains(&len) {
            return Err(malformed("a TLS record of an invalid length"));
        }
        Ok((content.len() >= len).then_some(len))
    }

    /// Opens the next record, whose content has `len` bytes. `false`: it is the last one.
    fn open(&mut self, len: usize) -> io::Result<bool> {
        let from = self.next + HEADER;
        let [.., high, low] = len.to_be_bytes();
        self.next = from + len;
        let sealed = &mut self.raw[from..from + len];
        let inner = self.key.open([DATA, 3, 3, high, low], sealed)?;
        // The content's type comes last, before any padding.
        let Some(end) = inner.iter().rposition(|&byte| byte != 0) else {
            return Err(malformed("a TLS record without a type"));
        };
        let (content, kind) = (&inner[..end], inner[end]);
        if content.len() > MAX_PLAIN {
            return Err(malformed("a TLS record that is too long"));
        }
        let is_empty = match kind {
            DATA => {
                self.plain = from..from + content.len();
                content.is_empty()
            }
            HANDSHAKE => {
                self.renew(from..from + end)?;
                true
            }
            ALERT => return read_alert(content),
            _ => return Err(malformed("a TLS record of an unknown type")),
        };
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        if self.empty > MAX_EMPTY {
            return Err(malformed("too many TLS records without content"));
        }
        Ok(true)
    }

    /// Handles a key update: the peer uses new keys from here on.
    fn renew(&mut self, message: std::ops::Range<usize>) -> io::Result<()> {
        let update_requested = match &self.raw[message] {
            message if message == KEY_UPDATE => false,
            // A key update that requests one of this side.
            [24, 0, 0, 1, 1] => true,
            _ => return Err(malformed("a handshake message after the handshake")),
        };
        self.key = self.renewal.next(|renew| renew.next_rx())?;
        if update_requested {
            self.renewal.update_requested.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Handles an alert: the regular end, or an error with the peer's reason.
fn read_alert(alert: &[u8]) -> io::Result<bool> {
    match alert {
        // close_notify
        [_, 0] => Ok(false),
        &[_, why] => Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            Alert(rustls::AlertDescription::from(why)),
        )),
        _ => Err(malformed("a TLS alert of an invalid length")),
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer sent {what}"))
}
