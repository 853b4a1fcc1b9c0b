//! Reading events from a userfaultfd and waiting for them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::abi;
use crate::userfault::Userfault;
use hikkoshi_linux::StopEventFd;
use hikkoshi_linux::{HostAddr, HostRange, last_errno};

/// One event (`struct uffd_msg`) of a userfaultfd.
#[derive(Debug)]
pub enum UserfaultEvent {
    /// A thread is blocked on a page fault.
    Fault(Fault),
    /// Pages were removed (`MADV_DONTNEED`, `MADV_REMOVE`): they are missing now.
    Remove(HostRange),
    /// Memory was unmapped.
    Unmap(HostRange),
    /// Memory was moved within the process by `mremap`.
    Remap {
        /// Old address.
        from: HostAddr,
        /// New address.
        to: HostAddr,
        /// Bytes.
        len: u64,
    },
    /// The process has forked; this descriptor is the userfaultfd of the child.
    Fork(OwnedFd),
    /// An event type that this program does not know.
    Unknown(u8),
}

/// A page fault that blocks a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The accessed address; without [`Features::EXACT_ADDRESS`], the first byte of its page.
    ///
    /// [`Features::EXACT_ADDRESS`]: crate::Features::EXACT_ADDRESS
    pub addr: HostAddr,
    /// The blocked thread, with [`Features::THREAD_ID`]. With KVM's asynchronous page faults it is
    /// a kernel worker, not the vCPU thread.
    ///
    /// [`Features::THREAD_ID`]: crate::Features::THREAD_ID
    pub thread: Option<u32>,
    /// Whether the access was a write.
    pub write: bool,
    /// Whether the page is present but write-protected, rather than missing.
    pub protected: bool,
}

/// A reusable buffer for a fixed number of events.
#[derive(Debug)]
pub struct EventBuffer {
    messages: Vec<abi::Message>,
    filled: usize,
    next: usize,
}

impl EventBuffer {
    /// Creates a buffer for `messages` events (at least one).
    #[must_use]
    pub fn with_capacity(messages: usize) -> Self {
        Self {
            messages: vec![abi::Message::default(); messages.max(1)],
            filled: 0,
            next: 0,
        }
    }

    /// Number of events that were read and not popped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.filled - self.next
    }

    /// Whether the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the oldest event.
    pub fn pop(&mut self) -> Option<UserfaultEvent> {
        if self.next == self.filled {
            return None;
        }
        let message = self.messages.get(self.next).copied()?;
        self.next += 1;
        Some(decode(message))
    }
}

/// A fork event owns a descriptor; an event that was not popped must not leave it open.
impl Drop for EventBuffer {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

fn decode(message: abi::Message) -> UserfaultEvent {
    let [first, second, third] = message.words;
    match message.event {
        abi::EVENT_PAGEFAULT => {
            // The thread is a 32-bit field, zero when the feature is off.
            let [a, b, c, d, ..] = third.to_ne_bytes();
            let thread = u32::from_ne_bytes([a, b, c, d]);
            UserfaultEvent::Fault(Fault {
                addr: HostAddr(second),
                thread: (thread != 0).then_some(thread),
                write: first & abi::PAGEFAULT_WRITE != 0,
                protected: first & abi::PAGEFAULT_WP != 0,
            })
        }
        abi::EVENT_REMOVE | abi::EVENT_UNMAP => {
            let range = HostRange::new(HostAddr(first), second.saturating_sub(first));
            if message.event == abi::EVENT_REMOVE {
                UserfaultEvent::Remove(range)
            } else {
                UserfaultEvent::Unmap(range)
            }
        }
        abi::EVENT_REMAP => UserfaultEvent::Remap {
            from: HostAddr(first),
            to: HostAddr(second),
            len: third,
        },
        abi::EVENT_FORK => {
            let [a, b, c, d, ..] = first.to_ne_bytes();
            let number = i32::from_ne_bytes([a, b, c, d]);
            if number < 0 {
                return UserfaultEvent::Unknown(message.event);
            }
            // SAFETY: reading the message put this descriptor into our table, and no other code
            // knows it; a message is decoded once.
            UserfaultEvent::Fork(unsafe { OwnedFd::from_raw_fd(number) })
        }
        other => UserfaultEvent::Unknown(other),
    }
}

/// Why [`Userfault::wait`] or [`FaultWaiter::wait`](crate::FaultWaiter::wait) returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There are events to [`Userfault::read`]. Another thread may read them first.
    Events,
    /// The [`StopEventFd`] handle was stopped.
    Stopped,
    /// The process has exited. Reported only if the descriptor knows its process.
    ProcessGone,
    /// Another descriptor is ready, see [`FaultWaiter`](crate::FaultWaiter).
    Other,
    /// The timeout has expired.
    TimedOut,
}

/// Reading or waiting failed. Blocked threads stay blocked. Do **not** close the descriptor because
/// of this error: missing pages would read as zero.
#[derive(Debug, Error)]
#[error("{doing} userfaults (the faulting threads stay blocked)")]
pub struct ReadError {
    /// The operation that failed.
    pub doing: &'static str,
    /// The error from the kernel.
    pub source: io::Error,
}

impl Userfault {
    /// Reads the pending events, as many as `buffer` holds, with one system call. Never blocks: the
    /// number read may be zero. If `buffer` still has events, they are kept and no event is read.
    ///
    /// Each event is delivered once: if the reader dies before it installs the page, the thread
    /// stays blocked until [`Self::wake`].
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
                // The kernel returns whole messages only.
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

    /// Waits until an event is pending, `stop` is stopped, the process exits, or `timeout` expires.
    /// A stop has priority over events, and events over the exit of the process. If several threads
    /// wait with this function, each event wakes all of them; [`Self::waiter`] avoids that.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn wait(
        &self,
        stop: &StopEventFd,
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
        // If the process is not known, poll the stop handle a second time.
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
                // The signal handler may have stopped the loop.
                Err(Errno::INTR) if stop.is_stopped() => return Ok(Ready::Stopped),
                // The timeout starts again, so the wait may take longer.
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
                // The kernel reports POLLERR for a descriptor in blocking mode, and before
                // UFFDIO_API.
                return Err(failed(io::Error::other(
                    "poll reports an error: the descriptor is in blocking mode or UFFDIO_API was \
                     not called",
                )));
            }
            if !ended.is_empty() {
                return Ok(Ready::ProcessGone);
            }
        }
    }
}
