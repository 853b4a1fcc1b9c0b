//! Carries the bytes of one disk's connection between a machine's socket and a link.
//!
//! Two threads, one for each direction, that read and write blocking: a receiver that is slow slows
//! the sender down, by the flow control of both sockets and of the link.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use error_reporter::Report;
use hikkoshi_link::{Bandwidth, DiskSender, LinkError, LinkReader, LinkWriter, Stream, TICK};
use hikkoshi_linux::{CancelFlag, Priority, PriorityClass, sandbox_thread};

use crate::report::Counters;

/// The most bytes that are read from a machine's socket at once. A frame may have more.
const READ_BYTES: usize = 128 << 10;

/// What a relay needs.
pub(crate) struct RelayStart<'a> {
    /// The threads' names begin with it: at most 11 bytes.
    pub(crate) name: String,
    /// The machine's socket.
    pub(crate) socket: UnixStream,
    /// The link.
    pub(crate) stream: Arc<Stream>,
    pub(crate) ends: (LinkReader, LinkWriter),
    pub(crate) bandwidth: &'a Bandwidth,
    pub(crate) priority: Priority,
    /// Ends both threads.
    pub(crate) stop: CancelFlag,
    /// Counts what is carried from the source to the destination.
    pub(crate) counters: Arc<Counters>,
    /// Whether that is the direction from the machine to the link.
    pub(crate) counts_sent: bool,
}

/// The relay of one disk. Ended when it is dropped.
#[derive(Debug)]
pub(crate) struct DiskRelay {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What both threads use.
#[derive(Debug)]
struct Shared {
    socket: UnixStream,
    stream: Arc<Stream>,
    stop: CancelFlag,
    end: Mutex<End>,
}

/// How the connection has ended.
#[derive(Debug, Default)]
struct End {
    /// The machine here has closed it: the copy is over, or was given up here.
    here: bool,
    /// Why it ended before that. Taken when it is reported.
    cause: Option<LinkError>,
}

impl DiskRelay {
    /// Starts the threads.
    ///
    /// # Errors
    /// When a thread cannot be started, or a socket has no timeouts.
    pub(crate) fn start(start: RelayStart<'_>) -> io::Result<Self> {
        let RelayStart {
            name,
            socket,
            stream,
            ends: (mut reader, mut writer),
            bandwidth,
            priority,
            stop,
            counters,
            counts_sent,
        } = start;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        reader.set_stop(stop.clone());
        reader.set_deadline(None);
        writer.set_stop(stop.clone());
        let sender = DiskSender::new(writer, bandwidth);
        let shared = Arc::new(Shared {
            socket,
            stream,
            stop,
            end: Mutex::default(),
        });
        // From here on a failure to start the second thread ends the first.
        let mut relay = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let (other, other_counters) = (Arc::clone(&shared), Arc::clone(&counters));
        relay.spawn(format!("{name}-in"), priority, move || {
            let count = (!counts_sent).then_some(&other_counters.disk_bytes);
            other.carry_from_link(reader, count)
        })?;
        relay.spawn(format!("{name}-out"), priority, move || {
            let count = counts_sent.then_some(&counters.disk_bytes);
            shared.carry_to_link(sender, count)
        })?;
        Ok(relay)
    }

    fn spawn(
        &mut self,
        name: String,
        priority: Priority,
        carry: impl FnOnce() -> Result<(), LinkError> + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name).spawn(move || {
            priority.apply(PriorityClass::Background);
            sandbox_thread();
            if let Err(error) = carry() {
                shared.fail(error);
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Ends the connection, whatever is in progress. Does not wait.
    pub(crate) fn abort(&self) {
        self.shared.lock().here = true;
        self.shared.end();
    }

    /// Why the connection ended although the machine here still used it; once.
    pub(crate) fn take_failure(&self) -> Option<LinkError> {
        self.shared.lock().cause.take()
    }
}

impl Drop for DiskRelay {
    fn drop(&mut self) {
        self.shared.end();
        for thread in self.threads.drain(..) {
            // A panic was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection has ended by `cause`, if the machine here has not closed it before.
    fn fail(&self, cause: LinkError) {
        tracing::debug!(cause = %Report::new(&cause), "the connection of a disk has ended");
        let mut end = self.lock();
        if !end.here {
            end.cause.get_or_insert(cause);
        }
        drop(end);
        self.end();
    }

    /// Ends the connection. QEMU (7.2 and 10.0) does not notice that while it waits for room in its
    /// socket, so there must be room: what it has written is read.
    fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        self.stream.shutdown();
        let mut rest = [0; 4096];
        // It can write nothing more, and this ends without waiting.
        while matches!((&self.socket).read(&mut rest), Ok(1..)) {}
    }

    /// Carries what arrives on the link to the machine.
    fn carry_from_link(
        &self,
        mut reader: LinkReader,
        count: Option<&AtomicU64>,
    ) -> Result<(), LinkError> {
        let mut bytes = Vec::new();
        while reader.disk(&mut bytes)? {
            self.write_all(&bytes)?;
            if let Some(count) = count {
                Counters::add(count, bytes.len() as u64);
            }
        }
        let mut end = self.lock();
        if !end.here {
            end.cause.get_or_insert(LinkError::Closed);
        }
        drop(end);
        // The machine closes its socket when it has read everything.
        let _ = self.socket.shutdown(Shutdown::Write);
        Ok(())
    }

    /// Carries what the machine sends to the link.
    fn carry_to_link(
        &self,
        mut sender: DiskSender,
        count: Option<&AtomicU64>,
    ) -> Result<(), LinkError> {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let read = match (&self.socket).read(&mut bytes) {
                Err(error) if is_again(&error) => {
                    if self.stop.is_cancelled() {
                        return Err(LinkError::Stopped);
                    }
                    continue;
                }
                // It was closed with unread data.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                read => read?,
            };
            if read == 0 {
                self.lock().here = true;
            }
            sender.send(bytes.get(..read).unwrap_or_default(), &self.stop)?;
            if read == 0 {
                return Ok(());
            }
            if let Some(count) = count {
                Counters::add(count, read as u64);
            }
        }
    }

    fn write_all(&self, mut bytes: &[u8]) -> Result<(), LinkError> {
        while !bytes.is_empty() {
            match (&self.socket).write(bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if is_again(&error) => {
                    if self.stop.is_cancelled() {
                        return Err(LinkError::Stopped);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn is_again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_link::split;
    use hikkoshi_wire::Limits;

    /// Two relays with a link between them, and the sockets of both machines.
    struct Pair {
        relays: [DiskRelay; 2],
        machines: [UnixStream; 2],
        counters: Arc<Counters>,
        stop: CancelFlag,
    }

    fn pair() -> Pair {
        let stop = CancelFlag::new();
        let counters = Arc::<Counters>::default();
        let (one, other) = UnixStream::pair().unwrap();
        let mut machines = Vec::new();
        let mut relay = |link: UnixStream, counts_sent| {
            let stream = Arc::new(Stream::Unix(link));
            let (machine, socket) = UnixStream::pair().unwrap();
            machines.push(machine);
            DiskRelay::start(RelayStart {
                name: "disk-0".into(),
                socket,
                ends: split(&stream, Limits { pages: 0 }, &stop).unwrap(),
                stream,
                bandwidth: &Bandwidth::unlimited(),
                priority: Priority::OFF,
                stop: stop.clone(),
                counters: Arc::clone(&counters),
                counts_sent,
            })
            .unwrap()
        };
        let relays = [relay(one, true), relay(other, false)];
        Pair {
            relays,
            machines: machines.try_into().unwrap(),
            counters,
            stop,
        }
    }

    #[test]
    fn bytes_are_carried_in_both_directions_until_both_have_closed() {
        let pair = pair();
        let [source, destination] = &pair.machines;
        let large = vec![5; 3 << 20];
        thread::scope(|scope| {
            scope.spawn(|| {
                (&*source).write_all(&large).unwrap();
                source.shutdown(Shutdown::Write).unwrap();
            });
            let mut arrived = Vec::new();
            (&*destination).read_to_end(&mut arrived).unwrap();
            assert_eq!(arrived.len(), large.len());
            (&*destination).write_all(b"done").unwrap();
            destination.shutdown(Shutdown::Both).unwrap();
            let mut answer = String::new();
            (&*source).read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "done");
        });
        let counted = pair
            .counters
            .disk_bytes
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(counted, 2 * large.len() as u64, "sent and received");
        assert!(pair.relays[0].take_failure().is_none());
    }

    #[test]
    fn a_server_that_closes_first_and_a_lost_link_are_failures() {
        let closed = pair();
        let [_source, destination] = closed.machines;
        drop(destination);
        let lost = pair();
        lost.relays[1].shared.stream.shutdown();
        for relay in [&closed.relays[0], &lost.relays[0]] {
            let error = loop {
                match relay.take_failure() {
                    Some(error) => break error,
                    None => thread::sleep(TICK / 10),
                }
            };
            assert!(error.is_end(), "{error}");
        }
        // Its machine sees the end.
        assert_eq!((&lost.machines[0]).read(&mut [0]).unwrap(), 0);
    }

    /// A writer that waits for room is woken.
    #[test]
    fn an_aborted_connection_has_room_for_its_writer() {
        let pair = pair();
        let [source, _destination] = &pair.machines;
        source.set_nonblocking(true).unwrap();
        // Until both relays and the sockets between them are full.
        let mut stalled = 0;
        while stalled < 10 {
            if matches!((&*source).write(&[0; 4096]), Ok(1..)) {
                stalled = 0;
            } else {
                stalled += 1;
                thread::sleep(TICK / 10);
            }
        }
        pair.relays[0].abort();
        let mut poll = [rustix::event::PollFd::new(
            source,
            rustix::event::PollFlags::OUT,
        )];
        rustix::event::poll(&mut poll, None).unwrap();
        assert!(poll[0].revents().contains(rustix::event::PollFlags::OUT));
        let error = (&*source).write(&[0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(pair.relays[0].take_failure().is_none(), "ended here");
    }

    #[test]
    fn a_stop_ends_the_threads() {
        let pair = pair();
        pair.stop.cancel();
        drop(pair.relays);
    }
}
