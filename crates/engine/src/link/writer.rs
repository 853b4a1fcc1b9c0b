//! The writing end of a link.

use std::io::{self, Write};
use std::sync::Arc;

use hikkoshi_pages::PageRange;
use hikkoshi_wire::{ControlMessage, Frame, encode_control};

use super::framed::{TICK, is_timeout};
use super::{LinkError, Stream};
use crate::cancel::Cancel;

/// The writing end of a link.
#[derive(Debug)]
pub struct LinkWriter {
    stream: Arc<Stream>,
    stop: Cancel,
    sent: u64,
    /// A message was left unfinished: whatever followed it would be taken for
    /// the rest of it.
    torn: bool,
    /// Each message goes in a packet of its own.
    apart: bool,
}

impl LinkWriter {
    /// Writes frames to `stream`; `stop` ends a blocked write.
    ///
    /// # Errors
    /// When the socket's time-out cannot be set.
    pub fn new(stream: Arc<Stream>, stop: Cancel) -> io::Result<Self> {
        stream.set_timeout(Some(TICK))?;
        Ok(Self {
            stream,
            stop,
            sent: 0,
            torn: false,
            apart: false,
        })
    }

    /// From now on `stop` ends a blocked write.
    pub fn set_stop(&mut self, stop: Cancel) {
        self.stop = stop;
    }

    /// From now on each message goes in a packet of its own, see
    /// [`Stream::write_apart`].
    pub fn send_apart(&mut self) {
        self.apart = true;
    }

    /// The connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes written to the link so far.
    pub fn sent(&self) -> u64 {
        self.sent
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
        let total = head.len() + body.len();
        let mut done = 0;
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
                    self.torn = done < total;
                }
                Err(e) if is_timeout(&e) || e.kind() == io::ErrorKind::Interrupted => {
                    if self.stop.is_cancelled() {
                        return Err(LinkError::Stopped);
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        self.sent += total as u64;
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
    fn a_blocked_write_ends_when_told_to_and_nothing_follows_it() {
        let (stream, mut peer) = pair();
        let stop = Cancel::at_once();
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
