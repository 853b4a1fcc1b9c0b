//! The writing end of a link.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_pages::PageRange;
use hikkoshi_wire::{ControlMessage, Frame, encode_control};

use super::framed::{TICK, is_timeout};
use crate::tls::Sealer;
use crate::{LinkError, Stream};
use hikkoshi_linux::Cancel;

/// Bytes that are made records at once: they stay in the processor's cache
/// until they are sent.
const AT_ONCE: usize = 128 << 10;

/// The writing end of a link.
#[derive(Debug)]
pub struct LinkWriter {
    stream: Arc<Stream>,
    stop: Cancel,
    /// How long the peer may take nothing at all.
    patience: Option<Duration>,
    sent: u64,
    /// A message was left unfinished: whatever followed it would be taken for
    /// the rest of it.
    torn: bool,
    /// Each message goes in a packet of its own.
    apart: bool,
    /// On a link with TLS: what makes records, and those on their way.
    sealer: Option<Sealer>,
    sealed: Vec<u8>,
    /// Bytes of records beyond their content, in all.
    overhead: u64,
}

impl LinkWriter {
    /// Writes frames to `stream`; `stop` ends a blocked write.
    ///
    /// # Errors
    /// When the socket's time-out cannot be set.
    pub fn new(stream: Arc<Stream>, stop: Cancel) -> io::Result<Self> {
        stream.set_timeout(Some(TICK))?;
        let sealer = stream.take_sealer()?;
        // Set aside now: the request path allocates nothing.
        let room = sealer.as_ref().map_or(0, |_| Sealer::sealed_len(AT_ONCE));
        Ok(Self {
            stream,
            stop,
            patience: None,
            sent: 0,
            torn: false,
            apart: false,
            sealer,
            sealed: Vec::with_capacity(room),
            overhead: 0,
        })
    }

    /// From now on `stop` ends a blocked write.
    pub fn set_stop(&mut self, stop: Cancel) {
        self.stop = stop;
    }

    /// From now on a peer that takes nothing for so long is too slow
    /// ([`LinkError::TooSlow`]); `None`: it may take its time.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
    }

    /// From now on each message goes in a packet of its own, see
    /// [`Stream::write_apart`].
    pub(crate) fn send_apart(&mut self) {
        self.apart = true;
    }

    /// The connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes written to the link so far, as the peer will read them.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that the connection has carried beyond those: TLS's records.
    pub(crate) fn overhead(&self) -> u64 {
        self.overhead
    }

    /// The connection, and what makes its records.
    pub fn into_parts(self) -> (Arc<Stream>, Option<Sealer>) {
        (self.stream, self.sealer)
    }

    /// Sends a frame without payload.
    ///
    /// # Errors
    /// The link's failure.
    pub fn frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        self.write(&frame.encode(), &[])
    }

    /// Sends whole frames that were encoded before.
    ///
    /// # Errors
    /// The link's failure.
    pub fn frames(&mut self, frames: &[u8]) -> Result<(), LinkError> {
        self.write(frames, &[])
    }

    /// Sends the content of `range`.
    ///
    /// # Errors
    /// The link's failure.
    pub fn pages(&mut self, range: PageRange, content: &[u8]) -> Result<(), LinkError> {
        debug_assert_eq!(range.bytes(), content.len() as u64);
        self.write(&Frame::Pages { range }.encode(), content)
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// The link's failure, or a message that is too large to send.
    pub fn control<M: ControlMessage>(&mut self, message: &M) -> Result<(), LinkError> {
        let body = encode_control(message)
            .map_err(|error| LinkError::Protocol(format!("message not encoded: {error}")))?;
        let len = u32::try_from(body.len())
            .map_err(|_| LinkError::Protocol("message too large".into()))?;
        self.write(&Frame::Control { len }.encode(), &body)
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        if self.torn {
            return Err(LinkError::Closed);
        }
        let Some(mut sealer) = self.sealer.take() else {
            self.write_raw(head, body)?;
            self.sent += (head.len() + body.len()) as u64;
            return Ok(());
        };
        let mut sealed = std::mem::take(&mut self.sealed);
        let written = self.write_records(&mut sealer, &mut sealed, head, body);
        // A record that is not sent is missed by the peer, even if not a byte
        // of it has left.
        self.torn |= written.is_err();
        (self.sealer, self.sealed) = (Some(sealer), sealed);
        written
    }

    fn write_records(
        &mut self,
        sealer: &mut Sealer,
        sealed: &mut Vec<u8>,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), LinkError> {
        let (mut head, mut body) = (head, body);
        while !head.is_empty() || !body.is_empty() {
            let (first, head_rest) = head.split_at(head.len().min(AT_ONCE));
            let (second, body_rest) = body.split_at(body.len().min(AT_ONCE - first.len()));
            sealed.clear();
            sealer.seal(first, second, sealed)?;
            self.write_raw(sealed, &[])?;
            let plain = (first.len() + second.len()) as u64;
            self.sent += plain;
            self.overhead += sealed.len() as u64 - plain;
            (head, body) = (head_rest, body_rest);
        }
        Ok(())
    }

    fn write_raw(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        let total = head.len() + body.len();
        let mut done = 0;
        let mut moved = Instant::now();
        while done < total {
            let pieces = [
                io::IoSlice::new(&head[done.min(head.len())..]),
                io::IoSlice::new(&body[done.saturating_sub(head.len())..]),
            ];
            let written = if self.apart {
                self.stream.write_apart(&pieces)
            } else {
                (&*self.stream).write_vectored(&pieces)
            };
            match written {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => {
                    done += n;
                    moved = Instant::now();
                    self.torn = done < total;
                }
                Err(e) if is_timeout(&e) || e.kind() == io::ErrorKind::Interrupted => {
                    if self.stop.is_cancelled() {
                        return Err(LinkError::Stopped);
                    }
                    if self.patience.is_some_and(|most| moved.elapsed() > most) {
                        return Err(LinkError::TooSlow);
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;
    use hikkoshi_wire::{HEADER_LEN, ToDestination};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Arc<Stream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Arc::new(Stream::Unix(ours)), theirs)
    }

    #[test]
    fn a_peer_that_takes_nothing_is_too_slow() {
        let (stream, _peer) = pair();
        let mut writer = LinkWriter::new(stream, Cancel::new()).unwrap();
        writer.set_patience(Some(Duration::ZERO));
        let range = PageRange::from_len(Page::new(0), 256);
        let content = vec![1; 1 << 20];
        let error = loop {
            if let Err(error) = writer.pages(range, &content) {
                break error;
            }
        };
        assert!(matches!(error, LinkError::TooSlow), "{error}");
    }

    #[test]
    fn a_blocked_write_ends_when_told_to_and_nothing_follows_it() {
        let (stream, mut peer) = pair();
        let stop = Cancel::cancelled();
        let mut writer = LinkWriter::new(Arc::clone(&stream), stop).unwrap();
        let range = PageRange::from_len(Page::new(0), 256);
        let content = vec![1; 1 << 20];
        let mut whole = 0;
        let error = loop {
            match writer.pages(range, &content) {
                Ok(()) => whole += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LinkError::Stopped), "{error}");
        // A message behind half of another would be taken for its content.
        writer.set_stop(Cancel::new());
        let commit = writer.control(&ToDestination::Commit);
        assert!(matches!(commit, Err(LinkError::Closed)), "{commit:?}");
        stream.shutdown();
        let mut arrived = Vec::new();
        peer.read_to_end(&mut arrived).unwrap();
        let frame = HEADER_LEN + content.len();
        assert_eq!(arrived.len() / frame, whole);
        assert!(!arrived.len().is_multiple_of(frame), "not torn");
        assert_eq!(writer.sent(), (whole * frame) as u64);
    }
}
