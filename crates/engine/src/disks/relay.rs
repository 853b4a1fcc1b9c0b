//! Carries the bytes of one disk's connection between a machine's socket and a link.
//!
//! Two threads, one for each direction, that read and write blocking: a receiver that is slow slows
//! the sender down, by the flow control of both sockets and of the link. At the source a third one
//! watches for a destination that hangs (`stall_timer.rs`).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hikkoshi_link::{Bandwidth, DiskSender, LinkError, LinkReader, LinkWriter, Stream, TICK};
use hikkoshi_linux::{CancelFlag, Priority, PriorityClass, sandbox_thread};

use super::connection::{DiskRequests, Waiting};
use super::stall_timer::{Carried, StallTimer};
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
    /// At the source.
    pub(crate) watch: Option<DiskWatch>,
}

/// What the source needs to give up a connection.
pub(crate) struct DiskWatch {
    /// The disk, for people.
    pub(crate) disk: String,
    pub(crate) requests: Box<dyn DiskRequests>,
    pub(crate) stall_timeout: Duration,
    /// Ends the connection: whatever the machine waits for, it fails then.
    pub(crate) cancel: CancelFlag,
    /// Called when the connection has failed.
    pub(crate) failed: Box<dyn Fn() + Send + Sync>,
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
    /// The guest is paused.
    paused: AtomicBool,
    requests: Option<Mutex<Box<dyn DiskRequests>>>,
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
    /// The machine here has closed it, or is about to: the copy is over, or was given up here.
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
            watch,
        } = start;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        reader.set_stop(stop.clone());
        reader.set_deadline(None);
        writer.set_stop(stop.clone());
        let sender = DiskSender::new(writer, bandwidth);
        let (requests, failed, limits) = match watch {
            None => (None, None, None),
            Some(watch) => (
                Some(Mutex::new(watch.requests)),
                Some(watch.failed),
                Some((watch.disk, watch.stall_timeout, watch.cancel)),
            ),
        };
        let shared = Arc::new(Shared {
            socket,
            stream,
            stop,
            end: Mutex::default(),
            ended: Condvar::new(),
            carried: Carried::default(),
            paused: AtomicBool::new(false),
            requests,
            failed,
        });
        // From here on a failure to start a thread ends the others.
        let mut relay = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let (other, other_counters) = (Arc::clone(&shared), Arc::clone(&counters));
        relay.spawn(format!("{name}-in"), priority, move || {
            let count = (!counts_sent).then_some(&other_counters.disk_bytes);
            other.carry_from_link(reader, count)
        })?;
        let other = Arc::clone(&shared);
        relay.spawn(format!("{name}-out"), priority, move || {
            let count = counts_sent.then_some(&counters.disk_bytes);
            other.carry_to_link(sender, count)
        })?;
        if let Some((disk, stall_timeout, cancel)) = limits {
            relay.spawn(format!("{name}-tmo"), priority, move || {
                match shared.watch(stall_timeout, &cancel) {
                    Some(after) => Err(DiskFailure::Stalled { disk, after }),
                    None => Ok(()),
                }
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

    /// Why the connection ended although the machine here still used it; once.
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

    /// The connection has ended by `cause`, if the machine here has not closed it before.
    fn fail(&self, cause: DiskFailure) {
        tracing::debug!(?cause, "the connection of a disk has ended");
        let is_first = self.note(cause);
        self.end();
        // After the machine was freed.
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

    /// What the machine here waits for, if that is known.
    fn waiting(&self) -> Waiting {
        let requests = self.requests.as_ref();
        requests.map_or(Waiting::Nothing, |requests| lock(requests).waiting())
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

    /// Ends the connection once it was cancelled. Returns a limit when it has stalled for that
    /// long, and nothing when it has ended.
    fn watch(&self, stall_timeout: Duration, cancel: &CancelFlag) -> Option<Duration> {
        let mut timer = StallTimer::new(stall_timeout, Instant::now());
        let mut end = self.lock();
        while !end.over {
            if cancel.is_cancelled() {
                end.here = true;
                drop(end);
                self.end();
                return None;
            }
            drop(end);
            let wait = (self.waiting(), self.paused.load(Ordering::Relaxed));
            let limited = self.carried.limited.load(Ordering::Relaxed);
            let position = self.carried.position(&self.stream);
            let stalled = timer.has_stalled(wait, limited, position, Instant::now());
            if stalled.is_some() {
                return stalled;
            }
            let waited = self.ended.wait_timeout(self.lock(), TICK);
            end = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Carries what arrives on the link to the machine.
    fn carry_from_link(
        &self,
        mut reader: LinkReader,
        count: Option<&AtomicU64>,
    ) -> Result<(), DiskFailure> {
        let mut bytes = Vec::new();
        while reader.disk(&mut bytes)? {
            let received = &self.carried.received;
            received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if let Some(requests) = &self.requests {
                lock(requests).received(&bytes);
            }
            self.write_all(&bytes)?;
            if let Some(count) = count {
                Counters::add(count, bytes.len() as u64);
            }
        }
        let is_failure = self.note(LinkError::Closed.into());
        // The machine closes its socket when it has read everything.
        let _ = self.socket.shutdown(Shutdown::Write);
        if let Some(failed) = self.failed.as_ref().filter(|_| is_failure) {
            failed();
        }
        self.closed();
        Ok(())
    }

    /// Carries what the machine sends to the link.
    fn carry_to_link(
        &self,
        mut sender: DiskSender,
        count: Option<&AtomicU64>,
    ) -> Result<(), DiskFailure> {
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
            } else if let Some(requests) = &self.requests {
                // Before an answer can come.
                lock(requests).sent(read);
            }
            self.carried.limited.store(true, Ordering::Relaxed);
            let waited = sender.wait(&self.stop);
            self.carried.limited.store(false, Ordering::Relaxed);
            waited?;
            sender.send(read)?;
            let sent = &self.carried.sent;
            sent.fetch_add(read.len() as u64, Ordering::Relaxed);
            if read.is_empty() {
                self.closed();
                return Ok(());
            }
            if let Some(count) = count {
                Counters::add(count, read.len() as u64);
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
