//! Waiting for faults with several threads, of which a fault wakes one.
//!
//! Threads that `poll` a userfaultfd are all woken by each fault; one reads it
//! and the others find nothing. With `EPOLLEXCLUSIVE` (epoll_ctl(2), Linux 4.5)
//! the kernel wakes one that sleeps. It must sleep in `epoll_wait` itself, so
//! everything else that it waits for is in its epoll, too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::event::{ReadError, Ready};
use crate::userfault::Userfault;
use hikkoshi_linux::Stop;

const STOP: u64 = 0;
const EVENTS: u64 = 1;
const GONE: u64 = 2;
const OTHER: u64 = 3;

/// What can be ready at once: the four above, and what can be written to.
const MOST: usize = 5;

/// One thread's wait for what [`Userfault::wait`] waits for, and for more.
///
/// Of the descriptors it holds only the socket, while it waits for that: the others must be open
/// as long as it is used.
#[derive(Debug)]
pub struct FaultWaiter<S> {
    epoll: OwnedFd,
    stop: Stop,
    writing: Option<Arc<S>>,
}

fn failed(source: impl Into<std::io::Error>) -> ReadError {
    ReadError {
        doing: "waiting for",
        source: source.into(),
    }
}

impl Userfault {
    /// A wait of the calling thread's own, for messages, `stop`, the process's end, and `also`
    /// becoming readable.
    ///
    /// # Errors
    ///
    /// When there are no descriptors or memory left for it.
    pub fn waiter<S>(
        &self,
        stop: &Stop,
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
    /// From now on waits for `socket` becoming writable too, and for no other; for none, no longer.
    /// Holds on to it meanwhile: a closed one would leave the epoll unasked, and another one with
    /// its number would be taken for it.
    ///
    /// # Errors
    ///
    /// When the kernel has no memory left.
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

    /// Waits as [`Userfault::wait`] does, and comes back with [`Ready::Other`] when something else
    /// is ready and there is no message.
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
            let mut events = [nothing; MOST];
            let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(0) => return Ok(Ready::TimedOut),
                Ok(ready) => ready,
                // A signal: the loop's owner may have stopped it from the handler.
                Err(Errno::INTR) if self.stop.is_stopped() => return Ok(Ready::Stopped),
                // The time starts anew, which errs on the side of waiting longer.
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            // Packed in memory: copied out field by field.
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
                // As Userfault::wait explains.
                Some(_) => {
                    return Err(failed(std::io::Error::other(
                        "epoll reports an error: the descriptor is in blocking mode or UFFDIO_API was not called",
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
