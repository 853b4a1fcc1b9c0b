//! Waiting for page faults in several threads, so that each fault wakes only one of them.
//!
//! When several threads `poll` a userfaultfd, each fault wakes all of them; one reads the event and
//! the others find none. With `EPOLLEXCLUSIVE` (epoll_ctl(2), Linux 4.5) the kernel wakes only one
//! thread that sleeps. That thread must sleep in `epoll_wait` itself, so its epoll also contains
//! all other descriptors that it waits for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::event::{ReadError, Ready};
use crate::userfault::Userfault;
use hikkoshi_linux::StopEventFd;

const STOP: u64 = 0;
const EVENTS: u64 = 1;
const GONE: u64 = 2;
const OTHER: u64 = 3;

/// Maximum number of ready descriptors: the four above, and the socket that becomes writable.
const MAX_EVENTS: usize = 5;

/// Waits, for one thread, for the same events as [`Userfault::wait`], and for two more descriptors.
///
/// It owns only the socket that it waits for, if any. The caller keeps the other descriptors open
/// while it is used.
#[derive(Debug)]
pub struct FaultWaiter<S> {
    epoll: OwnedFd,
    stop: StopEventFd,
    writing: Option<Arc<S>>,
}

fn failed(source: impl Into<std::io::Error>) -> ReadError {
    ReadError {
        doing: "waiting for",
        source: source.into(),
    }
}

impl Userfault {
    /// Creates a waiter for the calling thread: for events, `stop`, the exit of the process, and
    /// `also` becoming readable.
    ///
    /// # Errors
    ///
    /// When the kernel has no free descriptors or memory.
    pub fn waiter<S>(
        &self,
        stop: &StopEventFd,
        also: BorrowedFd<'_>,
    ) -> Result<FaultWaiter<S>, ReadError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let add = |fd: BorrowedFd<'_>, what, flags| {
            epoll::add(&epoll, fd, EventData::new_u64(what), flags).map_err(failed)
        };
        add(stop.as_fd(), STOP, EventFlags::IN)?;
        let one = EventFlags::IN | EventFlags::EXCLUSIVE;
        add(self.as_fd(), EVENTS, one)?;
        if let Some(process) = self.process() {
            add(process.as_fd(), GONE, EventFlags::IN)?;
        }
        add(also, OTHER, EventFlags::IN)?;
        Ok(FaultWaiter {
            epoll,
            stop: stop.clone(),
            writing: None,
        })
    }
}

impl<S: AsFd> FaultWaiter<S> {
    /// Sets the socket that the waiter also waits for until it is writable; `None` removes it. The
    /// waiter keeps a reference to the socket: if the socket were closed, epoll would drop it
    /// silently, and a new file with the same number would be mistaken for it.
    ///
    /// # Errors
    ///
    /// When the kernel is out of memory.
    pub fn set_writing(&mut self, socket: Option<Arc<S>>) -> Result<(), ReadError> {
        match (&self.writing, &socket) {
            (None, None) => return Ok(()),
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => return Ok(()),
            _ => {}
        }
        if let Some(old) = self.writing.take() {
            epoll::delete(&self.epoll, &*old).map_err(failed)?;
        }
        if let Some(new) = socket {
            let what = EventData::new_u64(OTHER);
            epoll::add(&self.epoll, &*new, what, EventFlags::OUT).map_err(failed)?;
            self.writing = Some(new);
        }
        Ok(())
    }

    /// Waits like [`Userfault::wait`]. Returns [`Ready::Other`] when another descriptor is ready
    /// and no event is pending.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Ready, ReadError> {
        let timeout = timeout
            .map(Timespec::try_from)
            .transpose()
            .map_err(|_| failed(Errno::INVAL))?;
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(STOP),
        };
        loop {
            let mut events = [nothing; MAX_EVENTS];
            let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(0) => return Ok(Ready::TimedOut),
                Ok(ready) => ready,
                // The signal handler may have stopped the loop.
                Err(Errno::INTR) if self.stop.is_stopped() => return Ok(Ready::Stopped),
                // The timeout starts again, so the wait may take longer.
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            // `epoll_event` is packed: copy the fields instead of borrowing them.
            let flags = |what| {
                events
                    .iter()
                    .take(ready)
                    .map(|event| (event.data, event.flags))
                    .find(|(data, _)| data.u64() == what)
                    .map(|(_, flags)| flags)
            };
            if flags(STOP).is_some() {
                return Ok(Ready::Stopped);
            }
            match flags(EVENTS) {
                Some(flags) if flags.contains(EventFlags::IN) => return Ok(Ready::Events),
                // See `Userfault::wait`.
                Some(_) => {
                    return Err(failed(std::io::Error::other(
                        "epoll reports an error: the descriptor is in blocking mode or UFFDIO_API \
                         was not called",
                    )));
                }
                None => {}
            }
            if flags(GONE).is_some() {
                return Ok(Ready::ProcessGone);
            }
            return Ok(Ready::Other);
        }
    }
}
