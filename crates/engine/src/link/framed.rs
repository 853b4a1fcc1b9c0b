//! Frames on a stream: the reading and the writing end of a link.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_pages::PageRange;
use hikkoshi_wire::{
    ControlError, ControlMessage, DecodeError, Frame, HEADER_LEN, Limits, decode_control,
    encode_control,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use thiserror::Error;

use super::Stream;
use crate::cancel::Cancel;

/// How long a blocking call on a link lasts before the thread looks whether
/// it should stop.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How much is read from a socket at once.
const READ_BUFFER: usize = 128 << 10;

/// Why a link can no longer be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer ended the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer sent what is not a frame, or one that is not allowed.
    #[error("the peer sent a malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// The peer sent a control message that cannot be read.
    #[error("the peer sent a malformed message: {0}")]
    Control(#[from] ControlError),
    /// A well-formed frame of the wrong kind for this link at this time.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer did not say in time what it had to say.
    #[error("the peer takes too long to answer")]
    TooSlow,
    /// This side was asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl LinkError {
    /// Whether the link has ended, for whatever reason the peer had.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}

/// A stream that gives up when told to.
#[derive(Debug, Clone)]
struct Stoppable {
    stream: Arc<Stream>,
    stop: Cancel,
    deadline: Option<Instant>,
}

impl Read for Stoppable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Looked at before every read: a peer that sends a byte now and
            // then is too slow as well.
            if self.deadline.is_some_and(|at| Instant::now() > at) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match (&*self.stream).read(buffer) {
                Err(e) if is_timeout(&e) => {
                    if self.stop.is_cancelled() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                other => return other,
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// The reading end of a link.
#[derive(Debug)]
pub struct LinkReader {
    input: BufReader<Stoppable>,
    limits: Limits,
    received: u64,
}

impl LinkReader {
    /// Reads frames about a guest of `limits`; `stop` ends a blocked read.
    ///
    /// # Errors
    /// When the socket's time-out cannot be set.
    pub fn new(stream: Arc<Stream>, limits: Limits, stop: Cancel) -> io::Result<Self> {
        stream.set_timeout(Some(TICK))?;
        Ok(Self {
            input: BufReader::with_capacity(
                READ_BUFFER,
                Stoppable {
                    stream,
                    stop,
                    deadline: None,
                },
            ),
            limits,
            received: 0,
        })
    }

    /// Bytes read from the link so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether something can be read without waiting longer than `timeout`.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn is_ready(&self, timeout: Duration) -> Result<bool, LinkError> {
        if !self.input.buffer().is_empty() {
            return Ok(true);
        }
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let stream = &self.input.get_ref().stream;
        let mut poll = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut poll, Some(&timeout)) {
            Ok(n) => Ok(n > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// The next frame's header. Its payload, if it has one, must be read next.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the stream ends between two frames.
    pub fn frame(&mut self) -> Result<Frame, LinkError> {
        loop {
            match self.input.fill_buf() {
                Ok([]) => return Err(LinkError::Closed),
                Ok(_) => break,
                Err(error) => self.checked(Err(error))?,
            }
        }
        let mut header = [0; HEADER_LEN];
        self.payload(&mut header)?;
        Ok(Frame::decode(&header, &self.limits)?)
    }

    /// Fills `buffer` with the next bytes of the stream.
    ///
    /// # Errors
    /// The link's failure; its end in the middle of a frame is one.
    pub fn payload(&mut self, buffer: &mut [u8]) -> Result<(), LinkError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => filled += n,
                Err(error) => self.checked(Err(error))?,
            }
        }
        self.received += buffer.len() as u64;
        Ok(())
    }

    /// Tells a signal's interruption, a request to stop and a failure apart.
    fn checked(&self, result: io::Result<()>) -> Result<(), LinkError> {
        match result {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                if self.input.get_ref().stop.is_cancelled() {
                    Err(LinkError::Stopped)
                } else {
                    Ok(())
                }
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => Err(LinkError::TooSlow),
            other => Ok(other?),
        }
    }

    /// From now on `stop` ends a blocked read.
    pub fn set_stop(&mut self, stop: Cancel) {
        self.input.get_mut().stop = stop;
    }

    /// From now on reads fail with [`LinkError::TooSlow`] after `deadline`.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.input.get_mut().deadline = deadline;
    }

    /// Reads one control message.
    ///
    /// # Errors
    /// The link's failure, or a frame that is not a control message.
    pub fn control<M: ControlMessage>(&mut self) -> Result<M, LinkError> {
        match self.frame()? {
            // The decoder bounds the length.
            frame @ Frame::Control { .. } => {
                let mut body = vec![0; frame.payload_len()];
                self.payload(&mut body)?;
                Ok(decode_control(&body)?)
            }
            other => Err(LinkError::Protocol(format!(
                "{other:?} on the control link"
            ))),
        }
    }
}

/// The writing end of a link.
#[derive(Debug)]
pub struct LinkWriter {
    stream: Arc<Stream>,
    stop: Cancel,
    sent: u64,
    /// A message was left unfinished: whatever followed it would be taken for
    /// the rest of it.
    torn: bool,
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
        })
    }

    /// From now on `stop` ends a blocked write.
    pub fn set_stop(&mut self, stop: Cancel) {
        self.stop = stop;
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
            match (&*self.stream).write_vectored(&pieces) {
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

/// The two ends of one link.
///
/// # Errors
/// When the socket's time-out cannot be set.
pub fn split(
    stream: &Arc<Stream>,
    limits: Limits,
    stop: &Cancel,
) -> io::Result<(LinkReader, LinkWriter)> {
    Ok((
        LinkReader::new(Arc::clone(stream), limits, stop.clone())?,
        LinkWriter::new(Arc::clone(stream), stop.clone())?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;
    use hikkoshi_wire::{MAX_CONTROL, ToDestination, ToSource};
    use std::os::unix::net::UnixStream;
    use std::thread;

    const LIMITS: Limits = Limits { pages: 1000 };

    fn pair() -> (Arc<Stream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Arc::new(Stream::Unix(ours)), theirs)
    }

    fn reader(stream: &Arc<Stream>, stop: &Cancel) -> LinkReader {
        LinkReader::new(Arc::clone(stream), LIMITS, stop.clone()).unwrap()
    }

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &Cancel::new());
        let range = PageRange::from_len(Page::new(5), 2);
        let message = hikkoshi_wire::control_frame(&ToSource::Ready).unwrap();
        let mut bytes = Frame::Pages { range }.encode().to_vec();
        bytes.extend([7; 8192]);
        bytes.extend(&message);
        let total = bytes.len() as u64;
        let sending = thread::spawn(move || {
            for piece in bytes.chunks(601) {
                peer.write_all(piece).unwrap();
                thread::yield_now();
            }
        });
        assert_eq!(reader.frame().unwrap(), Frame::Pages { range });
        let mut content = vec![0; 8192];
        reader.payload(&mut content).unwrap();
        assert_eq!(content, [7; 8192]);
        let answer: ToSource = reader.control().unwrap();
        assert_eq!(answer, ToSource::Ready);
        assert_eq!(reader.received(), total);
        sending.join().unwrap();
        assert!(matches!(reader.frame(), Err(LinkError::Closed)));
    }

    #[test]
    fn an_end_in_the_middle_and_rubbish_are_errors() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &Cancel::new());
        peer.write_all(&[0; HEADER_LEN]).unwrap();
        assert!(matches!(reader.frame(), Err(LinkError::Malformed(_))));
        peer.write_all(&Frame::Ack { bytes: 1 }.encode()[..9])
            .unwrap();
        drop(peer);
        assert!(matches!(reader.frame(), Err(LinkError::Closed)));
    }

    #[test]
    fn a_blocked_read_ends_when_told_to_or_late() {
        let (stream, _peer) = pair();
        let stop = Cancel::new();
        let mut reader = reader(&stream, &stop);
        reader.set_deadline(Some(Instant::now()));
        assert!(matches!(reader.frame(), Err(LinkError::TooSlow)));
        reader.set_deadline(None);
        let stopping = thread::spawn(move || {
            thread::sleep(TICK / 2);
            stop.cancel();
        });
        assert!(matches!(reader.frame(), Err(LinkError::Stopped)));
        stopping.join().unwrap();
        assert!(!reader.is_ready(Duration::ZERO).unwrap());
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

    #[test]
    fn only_control_messages_on_a_control_link() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &Cancel::new());
        peer.write_all(&Frame::Ack { bytes: 7 }.encode()).unwrap();
        let error = reader.control::<ToSource>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer broke the protocol: Ack { bytes: 7 } on the control link"
        );
        // A length is not believed beyond its bound.
        let len = u32::try_from(MAX_CONTROL).unwrap() + 1;
        peer.write_all(&Frame::Control { len }.encode()).unwrap();
        assert!(matches!(
            reader.control::<ToSource>(),
            Err(LinkError::Malformed(_))
        ));
    }
}
