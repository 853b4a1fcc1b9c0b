//! The way out for page requests, shared by all fault threads.
//!
//! A request is written by the thread that read the fault, at once. The lock
//! keeps frames whole; it is held over a `send` that never waits. What a full
//! socket does not take is put behind, and whoever waits for faults next also
//! waits for room: no thread is ever blocked behind another one's request.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hikkoshi_faults::Stop;
use hikkoshi_wire::HEADER_LEN;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::link::{LinkError, Stream, TICK};

/// With so many bytes unsent no more faults are read: they wait in the kernel
/// as well as here.
const MANY: usize = 1024 * HEADER_LEN;

/// The urgent link's sending end.
#[derive(Debug)]
pub(super) struct Asking {
    stream: Arc<Stream>,
    /// What the socket has not taken yet.
    unsent: Mutex<Vec<u8>>,
    /// Whether there is any.
    full: AtomicBool,
}

impl Asking {
    /// Room is set aside for `threads` that each add up to `batch` bytes.
    pub(super) fn new(stream: Arc<Stream>, threads: usize, batch: usize) -> Self {
        Self {
            stream,
            unsent: Mutex::new(Vec::with_capacity(MANY + threads * batch)),
            full: AtomicBool::new(false),
        }
    }

    /// Sends whole frames, or keeps what the socket does not take. Never waits.
    pub(super) fn send(&self, frames: &[u8]) -> Result<(), LinkError> {
        let Ok(mut unsent) = self.unsent.lock() else {
            // A thread died while it held the lock, and reported it.
            return Err(LinkError::Stopped);
        };
        let mut rest = frames;
        if unsent.is_empty() {
            rest = rest.get(self.try_send(rest)?..).unwrap_or_default();
        }
        if !rest.is_empty() {
            unsent.extend_from_slice(rest);
            self.full.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Sends of what was kept as much as there is room for.
    pub(super) fn flush(&self) -> Result<(), LinkError> {
        if !self.full.load(Ordering::Acquire) {
            return Ok(());
        }
        let Ok(mut unsent) = self.unsent.lock() else {
            return Err(LinkError::Stopped);
        };
        let sent = self.try_send(&unsent)?;
        let sent = sent.min(unsent.len());
        unsent.drain(..sent);
        self.full.store(!unsent.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Whether something waits for room in the [`socket`](Self::socket).
    pub(super) fn waits(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// What requests are written to.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether so much is unsent that no more faults should be read.
    pub(super) fn is_overfull(&self) -> bool {
        self.full.load(Ordering::Acquire)
            && self
                .unsent
                .lock()
                .map_or(true, |unsent| unsent.len() >= MANY)
    }

    /// Waits until there is room, `stop` is stopped, or for a moment.
    pub(super) fn wait(&self, stop: &Stop) {
        let mut set = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::OUT),
        ];
        let tick = Timespec::try_from(TICK).ok();
        // A failure shows when the caller sends.
        let _ = poll(&mut set, tick.as_ref());
    }

    fn try_send(&self, bytes: &[u8]) -> Result<usize, LinkError> {
        loop {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(self.stream.as_fd(), bytes, flags) {
                Ok(sent) => return Ok(sent),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(LinkError::Io(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::{Page, PageRange};
    use hikkoshi_wire::{Frame, Limits};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    const THREADS: u64 = 4;
    const EACH: u64 = 20_000;

    /// More than any socket buffers, from several threads, and nobody reads at
    /// first: every request arrives whole, once, and nobody waits.
    #[test]
    fn requests_stay_whole_behind_a_full_socket() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let asking = Asking::new(Arc::new(Stream::Unix(ours)), 4, 0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let asking = &asking;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let range = PageRange::one(Page::new(thread * EACH + number));
                        asking.send(&Frame::Request { range }.encode()).unwrap();
                    }
                });
            }
        });
        assert!(asking.is_overfull(), "the socket took it all");
        assert!(asking.waits());
        let reading = thread::spawn(move || {
            let limits = Limits {
                pages: THREADS * EACH,
            };
            let mut seen = vec![0u8; usize::try_from(THREADS * EACH).unwrap()];
            let mut header = [0; HEADER_LEN];
            for _ in 0..seen.len() {
                theirs.read_exact(&mut header).unwrap();
                let Frame::Request { range } = Frame::decode(&header, &limits).unwrap() else {
                    panic!("something else")
                };
                seen[usize::try_from(range.start().index()).unwrap()] += 1;
            }
            (seen, theirs)
        });
        let stop = Stop::new().unwrap();
        while asking.waits() {
            asking.wait(&stop);
            asking.flush().unwrap();
        }
        assert!(!asking.is_overfull());
        let (seen, theirs) = reading.join().unwrap();
        assert!(seen.iter().all(|&times| times == 1));
        drop(theirs);
        let range = PageRange::one(Page::new(0));
        let error = asking.send(&Frame::Request { range }.encode()).unwrap_err();
        assert!(error.is_end(), "{error}");
    }
}
