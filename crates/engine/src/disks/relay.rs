//! Carries the bytes of one disk's connection between a VMM's socket and a link.
//!
//! Two threads, one for each direction, that read and write blocking: a receiver that is slow slows
//! the sender down, by the flow control of both sockets and of the link. At the source a third one
//! watches for a destination that hangs (`relay/watch.rs`).

mod watch;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_link::{LinkError, LinkReader, LinkWriter, Stream, TICK};
use hikkoshi_linux::{CancelFlag, Priority, PriorityClass, sandbox_thread};

use super::connection::{DiskConnection, DiskRequests, Waiting};
use crate::report::Counters;

use watch::Carried;
pub(crate) use watch::DiskWatch;

/// The most bytes that are read from a VMM's socket at once. A frame may have more.
const READ_BYTES: usize = 128 << 10;

/// What a relay needs.
pub(crate) struct RelayStart {
    /// The threads' names begin with it: at most 11 bytes.
    pub(crate) name: String,
    /// The VMM's connection.
    pub(crate) connection: DiskConnection,
    /// The link.
    pub(crate) stream: Arc<Stream>,
    pub(crate) ends: (LinkReader, LinkWriter),
    pub(crate) priority: Priority,
    /// Ends both threads.
    pub(crate) stop: CancelFlag,
    /// Counts what is carried.
    pub(crate) counters: Arc<Counters>,
    /// At the source, whose VMM is the client. `None`: it is the server.
    pub(crate) watch: Option<DiskWatch>,
}

/// Why the connection of a disk ended before its time.
#[derive(Debug)]
pub(crate) enum DiskFailure {
    /// The link has failed, or the destination has ended it.
    Link(LinkError),
    /// The destination did not answer for so long.
    Stalled { disk: String, after: Duration },
}

impl From<LinkError> for DiskFailure {
    fn from(cause: LinkError) -> Self {
        Self::Link(cause)
    }
}

/// The relay of one disk. Ended when it is dropped.
#[derive(Debug)]
pub(crate) struct DiskRelay {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What all threads use.
struct Shared {
    socket: UnixStream,
    stream: Arc<Stream>,
    stop: CancelFlag,
    end: Mutex<End>,
    ended: Condvar,
    carried: Carried,
    counters: Arc<Counters>,
    /// The guest is paused.
    paused: AtomicBool,
    /// Whether the VMM here is the client, which has the requests.
    is_client: bool,
    requests: Mutex<Box<dyn DiskRequests>>,
    failed: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// How the connection has ended.
#[derive(Debug, Default)]
struct End {
    /// The VMM here has closed it, or is about to: the copy is over, or was given up here.
    here: bool,
    /// It has ended.
    over: bool,
    /// Directions that have ended in an orderly way. With both, it has ended.
    closed: u8,
    /// Why it ended before that. Taken when it is reported.
    cause: Option<DiskFailure>,
}

impl DiskRelay {
    /// Starts the threads.
    ///
    /// # Errors
    /// When a thread cannot be started, or a socket has no timeouts.
    pub(crate) fn start(start: RelayStart) -> io::Result<Self> {
        let RelayStart {
            name,
            connection:
                DiskConnection {
                    disk,
                    socket,
                    requests,
                },
            stream,
            ends: (mut reader, mut writer),
            priority,
            stop,
            counters,
            watch,
        } = start;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        reader.set_stop(stop.clone());
        reader.set_deadline(None);
        writer.set_stop(stop.clone());
        let is_client = watch.is_some();
        let (failed, watched) = watch.map(|watch| watch.of_disk(disk)).unzip();
        let shared = Arc::new(Shared {
            socket,
            stream,
            stop,
            end: Mutex::default(),
            ended: Condvar::new(),
            carried: Carried::default(),
            counters,
            paused: AtomicBool::new(false),
            is_client,
            requests: Mutex::new(requests),
            failed,
        });
        // From here on a failure to start a thread ends the others.
        let mut relay = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let other = Arc::clone(&shared);
        relay.spawn(format!("{name}-in"), priority, move || {
            other.carry_from_link(reader)
        })?;
        let other = Arc::clone(&shared);
        relay.spawn(format!("{name}-out"), priority, move || {
            other.carry_to_link(writer)
        })?;
        if let Some(watched) = watched {
            relay.spawn(format!("{name}-tmo"), priority, move || {
                shared.watch(watched)
            })?;
        }
        Ok(relay)
    }

    fn spawn(
        &mut self,
        name: String,
        priority: Priority,
        run: impl FnOnce() -> Result<(), DiskFailure> + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name).spawn(move || {
            priority.apply(PriorityClass::Background);
            sandbox_thread();
            if let Err(failure) = run() {
                shared.fail(failure);
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The guest is about to be paused, and waits for everything from then on.
    pub(crate) fn guest_pauses(&self) {
        self.shared.paused.store(true, Ordering::Relaxed);
    }

    /// The copy is complete: how the connection ends does not matter any more.
    pub(crate) fn complete(&self) {
        self.shared.lock().here = true;
    }

    /// Ends the connection, whatever is in progress. Does not wait.
    pub(crate) fn abort(&self) {
        self.shared.lock().here = true;
        self.shared.end();
    }

    /// What the source's VMM waits for.
    pub(crate) fn waiting(&self) -> Waiting {
        self.shared.waiting()
    }

    /// Why the connection ended although the VMM here still used it; once.
    pub(crate) fn take_failure(&self) -> Option<DiskFailure> {
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
        lock(&self.end)
    }

    /// The connection has ended by `cause`, if the VMM here has not closed it before.
    fn fail(&self, cause: DiskFailure) {
        tracing::debug!(?cause, "the connection of a disk has ended");
        let is_first = self.note(cause);
        self.end();
        // After the VMM was freed.
        self.report(is_first);
    }

    /// Reports a failure, unless it is not the first one.
    fn report(&self, is_first: bool) {
        if let Some(failed) = self.failed.as_ref().filter(|_| is_first) {
            failed();
        }
    }

    /// Notes the cause of the end. Returns whether that is a failure, and the first one.
    fn note(&self, cause: DiskFailure) -> bool {
        let is_over = self.waiting() == Waiting::Over;
        let mut end = self.lock();
        let is_first = !end.here && !is_over && end.cause.is_none() && !end.over;
        if is_first {
            end.cause = Some(cause);
        }
        is_first
    }

    /// A direction has ended in an orderly way.
    fn closed(&self) {
        let mut end = self.lock();
        end.closed += 1;
        if end.closed == 2 {
            end.over = true;
            self.ended.notify_all();
        }
    }

    /// What the client waits for.
    fn waiting(&self) -> Waiting {
        lock(&self.requests).waiting()
    }

    /// Follows bytes that the client has sent (`by_client`), or the server.
    fn follow(&self, by_client: bool, bytes: &[u8]) {
        let mut requests = lock(&self.requests);
        match by_client {
            true => requests.sent(bytes),
            false => requests.received(bytes),
        }
    }

    /// Counts bytes that the client has sent, or the server.
    fn count(&self, by_client: bool, bytes: &[u8]) {
        let count = match by_client {
            true => &self.counters.disk_bytes,
            false => &self.counters.disk_answer_bytes,
        };
        Counters::add(count, bytes.len() as u64);
    }

    /// Ends the connection. QEMU (7.2 and 10.0) does not notice that while it waits for room in its
    /// socket, so there must be room: what it has written is read.
    fn end(&self) {
        self.lock().over = true;
        self.ended.notify_all();
        let _ = self.socket.shutdown(Shutdown::Both);
        self.stream.shutdown();
        let mut rest = [0; 4096];
        // It can write nothing more, and this ends without waiting.
        while matches!((&self.socket).read(&mut rest), Ok(1..)) {}
    }

    /// Carries what arrives on the link to the VMM.
    fn carry_from_link(&self, mut reader: LinkReader) -> Result<(), DiskFailure> {
        let mut bytes = Vec::new();
        while reader.disk(&mut bytes)? {
            let received = &self.carried.received;
            received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // Before the VMM here can do anything about it.
            self.follow(!self.is_client, &bytes);
            self.write_all(&bytes)?;
            self.count(!self.is_client, &bytes);
        }
        let is_failure = self.note(LinkError::Closed.into());
        // The VMM closes its socket when it has read everything.
        let _ = self.socket.shutdown(Shutdown::Write);
        self.report(is_failure);
        self.closed();
        Ok(())
    }

    /// Carries what the VMM sends to the link.
    fn carry_to_link(&self, mut writer: LinkWriter) -> Result<(), DiskFailure> {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let read = match (&self.socket).read(&mut bytes) {
                Err(error) if is_again(&error) => {
                    if self.stop.is_cancelled() {
                        return Err(LinkError::Stopped.into());
                    }
                    continue;
                }
                // It was closed with unread data.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                read => read.map_err(LinkError::from)?,
            };
            let read = bytes.get(..read).unwrap_or_default();
            if read.is_empty() {
                self.lock().here = true;
            } else {
                // Before an answer can come.
                self.follow(self.is_client, read);
            }
            writer.disk(read)?;
            let sent = &self.carried.sent;
            sent.fetch_add(read.len() as u64, Ordering::Relaxed);
            if read.is_empty() {
                self.closed();
                return Ok(());
            }
            self.count(self.is_client, read);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
