//! Reading what a userfaultfd has to say.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::abi;
use crate::userfault::Userfault;
use hikkoshi_linux::Stop;
use hikkoshi_linux::{HostAddr, HostRange, last_errno};

/// One message of a userfaultfd.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault(Fault),
    /// Pages were given back to the system (`MADV_DONTNEED`, `MADV_REMOVE`): they are missing now.
    Remove(HostRange),
    /// Memory was unmapped.
    Unmap(HostRange),
    /// Memory was moved within the process, `mremap`.
    Remap {
        /// Where it was.
        from: HostAddr,
        /// Where it is.
        to: HostAddr,
        /// Bytes.
        len: u64,
    },
    /// The process has forked; this descriptor is the child's userfaultfd.
    Fork(OwnedFd),
    /// A message that came after this program was written.
    Unknown(u8),
}

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it accessed; the page's first byte without [`Features::EXACT_ADDRESS`].
    ///
    /// [`Features::EXACT_ADDRESS`]: crate::Features::EXACT_ADDRESS
    pub addr: HostAddr,
    /// Who waits, with [`Features::THREAD_ID`]. With KVM's asynchronous page faults it is a worker
    /// of the kernel, not the vCPU's thread.
    ///
    /// [`Features::THREAD_ID`]: crate::Features::THREAD_ID
    pub thread: Option<u32>,
    /// Whether it was writing.
    pub write: bool,
    /// Whether the page is there but write-protected, rather than missing.
    pub protected: bool,
}

/// Where messages are read into: room for a fixed number, made once and used over and over.
#[derive(Debug)]
pub struct EventBuffer {
    messages: Vec<abi::Message>,
    filled: usize,
    next: usize,
}

impl EventBuffer {
    /// Room for `messages` (at least one).
    #[must_use]
    pub fn with_capacity(messages: usize) -> Self {
        Self {
            messages: vec![abi::Message::default(); messages.max(1)],
            filled: 0,
            next: 0,
        }
    }

    /// Messages read and not taken out yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filled - self.next
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next message out, oldest first.
    pub fn pop(&mut self) -> Option<Event> {
        if self.next == self.filled {
            return None;
        }
        let message = self.messages.get(self.next).copied()?;
        self.next += 1;
        Some(decode(message))
    }
}

/// A message about a fork carries a descriptor; one that nobody took must not stay open.
impl Drop for EventBuffer {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

fn decode(message: abi::Message) -> Event {
    let [first, second, third] = message.words;
    match message.event {
        abi::EVENT_PAGEFAULT => {
            // The thread is a 32-bit field, zero when the feature is off.
            let [a, b, c, d, ..] = third.to_ne_bytes();
            let thread = u32::from_ne_bytes([a, b, c, d]);
            Event::Fault(Fault {
                addr: HostAddr(second),
                thread: (thread != 0).then_some(thread),
                write: first & abi::PAGEFAULT_WRITE != 0,
                protected: first & abi::PAGEFAULT_WP != 0,
            })
        }
        abi::EVENT_REMOVE | abi::EVENT_UNMAP => {
            let range = HostRange::new(HostAddr(first), second.saturating_sub(first));
            if message.event == abi::EVENT_REMOVE {
                Event::Remove(range)
            } else {
                Event::Unmap(range)
            }
        }
        abi::EVENT_REMAP => Event::Remap {
            from: HostAddr(first),
            to: HostAddr(second),
            len: third,
        },
        abi::EVENT_FORK => {
            let [a, b, c, d, ..] = first.to_ne_bytes();
            let number = i32::from_ne_bytes([a, b, c, d]);
            if number < 0 {
                return Event::Unknown(message.event);
            }
            // SAFETY: reading the message put this descriptor into our table and told nobody
            // else; a message is decoded once.
            Event::Fork(unsafe { OwnedFd::from_raw_fd(number) })
        }
        other => Event::Unknown(other),
    }
}

/// Why [`Userfault::wait`] or [`FaultWaiter::wait`](crate::FaultWaiter::wait) came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There are messages to [`Userfault::read`] (another thread may be faster).
    Events,
    /// The loop was asked to stop.
    Stopped,
    /// The process has ended. Only told when the descriptor knows its process.
    ProcessGone,
    /// What else was waited for, see [`FaultWaiter`](crate::FaultWaiter).
    Other,
    /// The time is over.
    TimedOut,
}

/// Reading or waiting failed. Blocked threads stay blocked: do **not** close the descriptor
/// because of it, or missing pages will read as zero.
#[derive(Debug, Error)]
#[error("{doing} userfaults: {source}; the faulting threads stay blocked")]
pub struct ReadError {
    /// The operation that failed.
    pub doing: &'static str,
    /// The error from the kernel.
    pub source: io::Error,
}

impl Userfault {
    /// Reads what is there, as much as `buffer` holds, with one system call. Never waits: the
    /// number read may be zero. `buffer` must have been emptied; messages still in it are kept, and
    /// nothing is read.
    ///
    /// A message read is gone: if the reader dies before the page is installed, the thread stays
    /// blocked until [`Self::wake`].
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn read(&self, buffer: &mut EventBuffer) -> Result<usize, ReadError> {
        if !buffer.is_empty() {
            return Ok(0);
        }
        buffer.next = 0;
        buffer.filled = 0;
        let bytes = size_of_val(buffer.messages.as_slice());
        loop {
            // SAFETY: the buffer has room for `bytes`, is borrowed for the call, and any content
            // is a valid `Message`.
            let read = unsafe {
                libc::read(
                    self.as_fd().as_raw_fd(),
                    buffer.messages.as_mut_ptr().cast(),
                    bytes,
                )
            };
            if let Ok(read) = usize::try_from(read) {
                // The kernel hands out whole messages only.
                buffer.filled = (read / size_of::<abi::Message>()).min(buffer.messages.len());
                return Ok(buffer.filled);
            }
            match last_errno() {
                Errno::INTR => {}
                Errno::AGAIN => return Ok(0),
                errno => {
                    return Err(ReadError {
                        doing: "reading",
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// Waits until there is something to read, `stop` is stopped, the process ends, or `timeout`
    /// is over. A stop wins over the rest, and messages over the process's end. Of several threads
    /// that wait like this each fault wakes all: see [`Self::waiter`].
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn wait(
        &self,
        stop: &Stop,
        timeout: Option<std::time::Duration>,
    ) -> Result<Ready, ReadError> {
        let failed = |source: io::Error| ReadError {
            doing: "waiting for",
            source,
        };
        let timeout = timeout
            .map(Timespec::try_from)
            .transpose()
            .map_err(|_| failed(Errno::INVAL.into()))?;
        let stop_fd = stop.as_fd();
        let own_fd = self.as_fd();
        // The stop handle stands in for a process that is not known.
        let process_fd = self.process().map_or(stop_fd, |process| process.as_fd());
        loop {
            let mut set = [
                PollFd::from_borrowed_fd(stop_fd, PollFlags::IN),
                PollFd::from_borrowed_fd(own_fd, PollFlags::IN),
                PollFd::from_borrowed_fd(process_fd, PollFlags::IN),
            ];
            match poll(&mut set, timeout.as_ref()) {
                Ok(0) => return Ok(Ready::TimedOut),
                Ok(_) => {}
                // A signal: the loop's owner may have stopped it from the handler.
                Err(Errno::INTR) if stop.is_stopped() => return Ok(Ready::Stopped),
                // The time starts anew, which errs on the side of waiting longer.
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno.into())),
            }
            let [stopped, events, ended] = set.map(|entry| entry.revents());
            if !stopped.is_empty() {
                return Ok(Ready::Stopped);
            }
            if events.contains(PollFlags::IN) {
                return Ok(Ready::Events);
            }
            if !events.is_empty() {
                // The kernel answers POLLERR for a descriptor in blocking mode, or one whose
                // handshake was not made.
                return Err(failed(io::Error::other(
                    "poll reports an error: the descriptor is in blocking mode or UFFDIO_API was not called",
                )));
            }
            if !ended.is_empty() {
                return Ok(Ready::ProcessGone);
            }
        }
    }
}
