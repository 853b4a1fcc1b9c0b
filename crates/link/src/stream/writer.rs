//! The writer of a link.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_pages::PageRange;
use hikkoshi_wire::{ControlMessage, Frame, MAX_DISK_BYTES, encode_control};

use crate::stream::error::{TICK, is_timeout};
use crate::tls::Sealer;
use crate::{LinkError, Stream};
use hikkoshi_linux::CancelFlag;

/// Plain bytes that are sealed at once: the records stay in the processor's cache until they are
/// sent.
const SEALED_AT_ONCE: usize = 128 << 10;

/// Writes frames to a link.
#[derive(Debug)]
pub struct LinkWriter {
    stream: Arc<Stream>,
    stop: CancelFlag,
    /// How long the peer may accept no data.
    progress_timeout: Option<Duration>,
    sent: u64,
    /// A message was sent only in part. The peer would read later data as the rest of it.
    partial: bool,
    /// Each message is sent as a separate packet.
    packets: bool,
    /// With TLS: the sending keys, and the sealed records.
    sealer: Option<Sealer>,
    sealed: Vec<u8>,
    /// Bytes of records beyond their content, in total.
    overhead: u64,
}

impl LinkWriter {
    /// Writes frames to `stream`; `stop` ends a blocked write.
    ///
    /// # Errors
    /// When the socket's timeout cannot be set, or another writer has the TLS keys.
    pub fn new(stream: Arc<Stream>, stop: CancelFlag) -> io::Result<Self> {
        stream.set_timeout(Some(TICK))?;
        let sealer = stream.take_sealer()?;
        // Allocated now: answering a page request allocates nothing.
        let room = sealer
            .as_ref()
            .map_or(0, |_| Sealer::sealed_len(SEALED_AT_ONCE));
        Ok(Self {
            stream,
            stop,
            progress_timeout: None,
            sent: 0,
            partial: false,
            packets: false,
            sealer,
            sealed: Vec::with_capacity(room),
            overhead: 0,
        })
    }

    /// Replaces the stop signal that ends a blocked write.
    pub fn set_stop(&mut self, stop: CancelFlag) {
        self.stop = stop;
    }

    /// Sets how long the peer may accept no data before a write fails with [`LinkError::TooSlow`];
    /// `None`: no limit.
    pub fn set_progress_timeout(&mut self, progress_timeout: Option<Duration>) {
        self.progress_timeout = progress_timeout;
    }

    /// Sends each later message as a separate packet, see [`Stream::write_packet`].
    pub(crate) fn send_as_packets(&mut self) {
        self.packets = true;
    }

    /// The connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of frames written to the link so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that the connection has carried beyond the frames: TLS records.
    pub(crate) fn overhead(&self) -> u64 {
        self.overhead
    }

    /// The connection and its sending keys.
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

    /// Sends complete frames that are encoded already.
    ///
    /// # Errors
    /// The link's failure.
    pub fn frames(&mut self, frames: &[u8]) -> Result<(), LinkError> {
        self.write(frames, &[])
    }

    /// Sends frames that are encoded already; the last one is a header, and `payload` follows it.
    ///
    /// # Errors
    /// The link's failure.
    pub(crate) fn frames_with_payload(
        &mut self,
        frames: &[u8],
        payload: &[u8],
    ) -> Result<(), LinkError> {
        let written = self.write(frames, payload);
        // The caller keeps the header: it must not be sent later without its payload.
        self.partial |= written.is_err();
        written
    }

    /// Sends the content of `range`.
    ///
    /// # Errors
    /// The link's failure.
    pub fn pages(&mut self, range: PageRange, content: &[u8]) -> Result<(), LinkError> {
        self.payload(Frame::Pages { range }, content)
    }

    /// Sends `frame` with its payload.
    ///
    /// # Errors
    /// The link's failure.
    pub fn payload(&mut self, frame: Frame, payload: &[u8]) -> Result<(), LinkError> {
        debug_assert_eq!(frame.payload_len(), payload.len());
        self.write(&frame.encode(), payload)
    }

    /// Sends the next bytes of a disk's connection: at most
    /// [`MAX_DISK_BYTES`]. None: no more follow.
    ///
    /// # Errors
    /// The link's failure, or too many bytes.
    pub fn disk(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let len = u32::try_from(bytes.len()).ok();
        let len = len.filter(|_| bytes.len() <= MAX_DISK_BYTES);
        let len = len.ok_or_else(|| LinkError::Protocol("too many bytes of a disk".into()))?;
        self.write(&Frame::Disk { len }.encode(), bytes)
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// The link's failure, or a message that is too large to send.
    pub fn control<M: ControlMessage>(&mut self, message: &M) -> Result<(), LinkError> {
        let body = encode_control(message).map_err(|error| {
            LinkError::Protocol(format!("message not encoded: {}", Report::new(&error)))
        })?;
        let len = u32::try_from(body.len())
            .map_err(|_| LinkError::Protocol("message too large".into()))?;
        self.write(&Frame::Control { len }.encode(), &body)
    }

    fn write(&mut self, head: &[u8], body: &[u8]) -> Result<(), LinkError> {
        if self.partial {
            return Err(LinkError::Closed);
        }
        let Some(mut sealer) = self.sealer.take() else {
            self.write_raw(head, body)?;
            self.sent += (head.len() + body.len()) as u64;
            return Ok(());
        };
        let mut sealed = std::mem::take(&mut self.sealed);
        let written = self.write_records(&mut sealer, &mut sealed, head, body);
        // The peer misses a record that is not sent, even if none of its bytes were sent.
        self.partial |= written.is_err();
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
            let (first, head_rest) = head.split_at(head.len().min(SEALED_AT_ONCE));
            let (second, body_rest) = body.split_at(body.len().min(SEALED_AT_ONCE - first.len()));
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
        let mut last_progress = Instant::now();
        while done < total {
            let pieces = [
                io::IoSlice::new(&head[done.min(head.len())..]),
                io::IoSlice::new(&body[done.saturating_sub(head.len())..]),
            ];
            let written = if self.packets {
                self.stream.write_packet(&pieces)
            } else {
                (&*self.stream).write_vectored(&pieces)
            };
            match written {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => {
                    done += n;
                    last_progress = Instant::now();
                    self.partial = done < total;
                }
                Err(e) if is_timeout(&e) || e.kind() == io::ErrorKind::Interrupted => {
                    if self.stop.is_cancelled() {
                        return Err(LinkError::Stopped);
                    }
                    if self
                        .progress_timeout
                        .is_some_and(|most| last_progress.elapsed() > most)
                    {
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
    use crate::split;
    use hikkoshi_pages::Page;
    use hikkoshi_wire::{HEADER_LEN, Limits, ToDestination};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Arc<Stream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Arc::new(Stream::Unix(ours)), theirs)
    }

    #[test]
    fn bytes_of_a_disk_arrive_in_order_until_the_end() {
        let (one, other) = UnixStream::pair().unwrap();
        let stop = CancelFlag::new();
        let ends = |socket| {
            let stream = Arc::new(Stream::Unix(socket));
            split(&stream, Limits { pages: 0 }, &stop).unwrap()
        };
        let ((_, mut writer), (mut reader, _)) = (ends(one), ends(other));
        let all = vec![7; MAX_DISK_BYTES];
        let thread = std::thread::spawn({
            let all = all.clone();
            move || {
                writer.disk(b"NBDMAGIC").unwrap();
                writer.disk(&all).unwrap();
                writer.disk(&[]).unwrap();
                let error = writer.disk(&[0; MAX_DISK_BYTES + 1]).unwrap_err();
                assert!(matches!(error, LinkError::Protocol(_)), "{error}");
            }
        });
        let mut bytes = Vec::new();
        assert!(reader.disk(&mut bytes).unwrap());
        assert_eq!(bytes, b"NBDMAGIC");
        assert!(reader.disk(&mut bytes).unwrap());
        assert_eq!(bytes, all);
        assert!(!reader.disk(&mut bytes).unwrap());
        thread.join().unwrap();
    }

    #[test]
    fn a_peer_that_accepts_no_data_is_too_slow() {
        let (stream, _peer) = pair();
        let mut writer = LinkWriter::new(stream, CancelFlag::new()).unwrap();
        writer.set_progress_timeout(Some(Duration::ZERO));
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
    fn a_blocked_write_ends_on_stop_and_nothing_follows_it() {
        let (stream, mut peer) = pair();
        let stop = CancelFlag::cancelled();
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
        // A message after half of another one would be read as its content.
        writer.set_stop(CancelFlag::new());
        let commit = writer.control(&ToDestination::Commit);
        assert!(matches!(commit, Err(LinkError::Closed)), "{commit:?}");
        stream.shutdown();
        let mut arrived = Vec::new();
        peer.read_to_end(&mut arrived).unwrap();
        let frame = HEADER_LEN + content.len();
        assert_eq!(arrived.len() / frame, whole);
        assert!(!arrived.len().is_multiple_of(frame), "not partial");
        assert_eq!(writer.sent(), (whole * frame) as u64);
    }
}
