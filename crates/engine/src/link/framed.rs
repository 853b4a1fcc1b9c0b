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
