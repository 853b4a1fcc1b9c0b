//! The reader of a link.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_wire::{ControlMessage, Frame, HEADER_LEN, Limits, decode_control, message_name};
use rustix::event::{PollFd, PollFlags, Timespec};
use vm_memory::{ReadVolatile, VolatileMemoryError, VolatileSlice};

use crate::stream::busy_poll::BusyPoll;
use crate::stream::error::{TICK, is_timeout};
use crate::tls::Opener;
use crate::{LinkError, Stream};
use hikkoshi_linux::CancelFlag;

/// The size of a read ahead: headers, and pages that are not sent in large pieces. More of a
/// payload is read to where it belongs, without a copy.
const READ_BUFFER: usize = 16 << 10;

/// A stream whose reads end when `stop` is set or the deadline passes.
#[derive(Debug)]
struct Stoppable {
    stream: Arc<Stream>,
    stop: CancelFlag,
    deadline: Option<Instant>,
    spin: Option<BusyPoll>,
    /// With TLS: the receiving keys.
    opener: Option<Opener>,
}

impl Read for Stoppable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(mut opener) = self.opener.take() else {
            return self.read_raw(buffer);
        };
        let read = opener.read(buffer, |raw| self.read_raw(raw));
        self.opener = Some(opener);
        read
    }
}

impl Stoppable {
    /// Reads from the socket.
    fn read_raw(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        until_stopped(self.deadline, &self.stop, || match &mut self.spin {
            Some(spin) => spin.read(&self.stream, buffer, &self.stop),
            // Only `payload` reads more at once: it needs all of it. (TLS reads what there is.)
            None if buffer.len() > READ_BUFFER && !matches!(*self.stream, Stream::Secure(_)) => {
                self.stream.read_all(buffer)
            }
            None => (&*self.stream).read(buffer),
        })
    }

    /// Reads from the socket into `place`, without TLS.
    fn read_into(&self, place: &mut VolatileSlice<'_>) -> io::Result<usize> {
        until_stopped(self.deadline, &self.stop, || {
            let read = match &*self.stream {
                Stream::Tcp(socket) => (&*socket).read_volatile(place),
                Stream::Unix(socket) => (&*socket).read_volatile(place),
                Stream::Secure(_) => return Err(io::ErrorKind::Unsupported.into()),
            };
            read.map_err(|error| match error {
                VolatileMemoryError::IOError(error) => error,
                other => io::Error::other(other),
            })
        })
    }
}

/// Calls `read` until it does not time out.
fn until_stopped(
    deadline: Option<Instant>,
    stop: &CancelFlag,
    mut read: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        // Checked before every read: a peer that sends a byte now and then is too slow as well.
        if deadline.is_some_and(|at| Instant::now() > at) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match read() {
            Err(e) if is_timeout(&e) => {
                if stop.is_cancelled() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            other => return other,
        }
    }
}

/// Reads frames from a link.
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
    /// When the socket's timeout cannot be set, or another reader has the TLS keys.
    pub fn new(stream: Arc<Stream>, limits: Limits, stop: CancelFlag) -> io::Result<Self> {
        stream.set_timeout(Some(TICK))?;
        let opener = stream.take_opener()?;
        Ok(Self {
            input: BufReader::with_capacity(
                READ_BUFFER,
                Stoppable {
                    stream,
                    stop,
                    deadline: None,
                    spin: None,
                    opener,
                },
            ),
            limits,
            received: 0,
        })
    }

    /// From now on, frames are about a guest of `limits`.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Bytes read from the link so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether something can be read without waiting longer than `timeout`.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn is_ready(&self, timeout: Duration) -> Result<bool, LinkError> {
        let opener = self.input.get_ref().opener.as_ref();
        if !self.input.buffer().is_empty() || opener.is_some_and(Opener::is_ready) {
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

    /// Whether the peer's kernel tells the peer what has arrived here (`TCP_INFO`). A unix socket's
    /// does not.
    pub fn has_tcp_info(&self) -> bool {
        self.input.get_ref().stream.tcp_info().is_some()
    }

    /// Reads the next frame's header. If it has a payload, read that next.
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
    /// The link's failure; the end of the stream in a frame is one.
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

    /// Fills `place`, which other processes map as well, with the next bytes of the stream. Without
    /// TLS, what was not read ahead is copied once, by the kernel. If it fails, `place` may hold a
    /// part.
    ///
    /// # Errors
    /// The errors of [`payload`](Self::payload).
    pub fn payload_into(&mut self, place: &VolatileSlice<'_>) -> Result<(), LinkError> {
        let mut rest = place.offset(0).map_err(io::Error::other)?;
        while !rest.is_empty() {
            let input = self.input.get_ref();
            let read = if self.input.buffer().is_empty() && input.opener.is_none() {
                input.read_into(&mut rest)
            } else {
                self.read_ahead_into(&rest)
            };
            match read {
                Ok(0) => return Err(LinkError::Closed),
                Ok(bytes) => rest = rest.offset(bytes).map_err(io::Error::other)?,
                Err(error) => self.checked(Err(error))?,
            }
        }
        self.received += place.len() as u64;
        Ok(())
    }

    /// Copies what was read ahead, or is now, to the beginning of `place`.
    fn read_ahead_into(&mut self, place: &VolatileSlice<'_>) -> io::Result<usize> {
        let ahead = self.input.fill_buf()?;
        let bytes = ahead.len().min(place.len());
        place.copy_from(ahead);
        self.input.consume(bytes);
        Ok(bytes)
    }

    /// Distinguishes an interruption by a signal, a stop and a failure.
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

    /// Replaces the stop signal that ends a blocked read.
    pub fn set_stop(&mut self, stop: CancelFlag) {
        self.input.get_mut().stop = stop;
    }

    /// Sets whether reads spin instead of sleeping. This uses a processor core to save some
    /// microseconds a message. See `busy_poll.rs` for when it sleeps anyway.
    pub fn set_poll(&mut self, poll: bool) {
        self.input.get_mut().spin = poll.then(BusyPoll::default);
    }

    /// Makes reads fail with [`LinkError::TooSlow`] after `deadline`.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.input.get_mut().deadline = deadline;
    }

    /// Reads the next bytes of a disk's connection into `bytes`. `false`: no more follow.
    ///
    /// # Errors
    /// The link's failure, or another frame.
    pub fn disk(&mut self, bytes: &mut Vec<u8>) -> Result<bool, LinkError> {
        match self.frame()? {
            // The decoder bounds the length.
            frame @ Frame::Disk { .. } => {
                bytes.resize(frame.payload_len(), 0);
                self.payload(bytes)?;
                Ok(!bytes.is_empty())
            }
            other => Err(LinkError::Protocol(format!(
                "{} on a disk's link",
                message_name(&other)
            ))),
        }
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
                "{} on the control link",
                message_name(&other)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use error_reporter::Report;
    use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
    use hikkoshi_wire::{MAX_CONTROL, ToSource};
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread;

    const LIMITS: Limits = Limits { pages: 1000 };

    fn pair() -> (Arc<Stream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Arc::new(Stream::Unix(ours)), theirs)
    }

    fn reader(stream: &Arc<Stream>, stop: &CancelFlag) -> LinkReader {
        LinkReader::new(Arc::clone(stream), LIMITS, stop.clone()).unwrap()
    }

    /// The beginning was read ahead with the header, more comes straight from the socket, and the
    /// next frame is not touched.
    #[test]
    fn a_payload_is_read_to_its_place() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &CancelFlag::new());
        let range = PageRange::from_len(Page::new(5), 32);
        let content: Vec<u8> = (0..=250).cycle().take(32 * PAGE_SIZE).collect();
        let mut bytes = Frame::Pages { range }.encode().to_vec();
        bytes.extend_from_slice(&content);
        bytes.extend_from_slice(&Frame::Zeros { range }.encode());
        let sender = thread::spawn(move || {
            for part in bytes.chunks(READ_BUFFER * 3) {
                peer.write_all(part).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            peer
        });
        assert_eq!(reader.frame().unwrap(), Frame::Pages { range });
        let before = reader.received();
        let mut place = vec![0; content.len()];
        reader
            .payload_into(&VolatileSlice::from(place.as_mut_slice()))
            .unwrap();
        assert!(place == content);
        assert_eq!(reader.received() - before, content.len() as u64);
        assert_eq!(reader.frame().unwrap(), Frame::Zeros { range });
        drop(sender.join().unwrap());
        let rest = VolatileSlice::from(place.as_mut_slice());
        assert!(matches!(reader.payload_into(&rest), Err(LinkError::Closed)));
    }

    #[test]
    fn messages_are_read_whole_in_pieces_of_any_size() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &CancelFlag::new());
        let range = PageRange::from_len(Page::new(5), 2);
        let message = hikkoshi_wire::encode_control(&ToSource::Ready).unwrap();
        let len = u32::try_from(message.len()).unwrap();
        let mut bytes = Frame::Pages { range }.encode().to_vec();
        bytes.extend([7; 8192]);
        bytes.extend(Frame::Control { len }.encode());
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
    fn a_truncated_or_malformed_frame_is_an_error() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &CancelFlag::new());
        peer.write_all(&[0; HEADER_LEN]).unwrap();
        assert!(matches!(reader.frame(), Err(LinkError::Malformed(_))));
        peer.write_all(&Frame::Ack { bytes: 1 }.encode()[..9])
            .unwrap();
        drop(peer);
        assert!(matches!(reader.frame(), Err(LinkError::Closed)));
    }

    #[test]
    fn a_blocked_read_ends_on_stop_or_deadline() {
        let (stream, _peer) = pair();
        let stop = CancelFlag::new();
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
    fn busy_polling_reads_the_same_and_ends_on_stop() {
        let (stream, mut peer) = pair();
        let stop = CancelFlag::new();
        let mut reader = reader(&stream, &stop);
        reader.set_poll(true);
        let answering = thread::spawn(move || {
            for bytes in 0..1000 {
                peer.write_all(&Frame::Ack { bytes }.encode()).unwrap();
                if bytes % 100 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            peer
        });
        for bytes in 0..1000 {
            assert_eq!(reader.frame().unwrap(), Frame::Ack { bytes });
        }
        let peer = answering.join().unwrap();
        reader.set_deadline(Some(Instant::now() + TICK));
        assert!(matches!(reader.frame(), Err(LinkError::TooSlow)));
        reader.set_deadline(None);
        let stopping = thread::spawn(move || {
            thread::sleep(TICK / 2);
            stop.cancel();
        });
        assert!(matches!(reader.frame(), Err(LinkError::Stopped)));
        stopping.join().unwrap();
        drop(peer);
        assert!(matches!(reader.frame(), Err(LinkError::Closed)));
    }

    #[test]
    fn a_control_link_carries_only_control_messages() {
        let (stream, mut peer) = pair();
        let mut reader = reader(&stream, &CancelFlag::new());
        peer.write_all(&Frame::Ack { bytes: 7 }.encode()).unwrap();
        let error = reader.control::<ToSource>().unwrap_err();
        assert_eq!(
            Report::new(&error).to_string(),
            "the peer broke the protocol: Ack on the control link"
        );
        // A length beyond the limit is refused.
        let len = u32::try_from(MAX_CONTROL).unwrap() + 1;
        peer.write_all(&Frame::Control { len }.encode()).unwrap();
        assert!(matches!(
            reader.control::<ToSource>(),
            Err(LinkError::Malformed(_))
        ));
    }
}
