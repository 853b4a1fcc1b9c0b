//! Sends page requests, for all fault threads.
//!
//! The thread that read a fault sends the request itself, at once. A lock keeps frames whole; it is
//! held over a `send` that never blocks. What a full socket does not accept is queued, and a thread
//! that waits for faults then also waits for the socket: no thread blocks behind another thread's
//! request.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use error_reporter::Report;
use hikkoshi_linux::StopEventFd;
use hikkoshi_wire::HEADER_LEN;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use hikkoshi_link::tls::Sealer;
use hikkoshi_link::{LinkError, LinkWriter, Stream, TICK};

/// With this many bytes queued no more faults are read: they wait in the kernel as well as here.
const MANY: usize = 1024 * HEADER_LEN;

/// The sending end of the urgent link, while there is one. Requests without a link are dropped:
/// everything is requested again on the next link.
#[derive(Debug)]
pub(crate) struct RequestSender {
    way: Mutex<RequestLink>,
    /// Whether requests are queued.
    full: AtomicBool,
}

#[derive(Debug)]
struct RequestLink {
    link: Option<Link>,
    /// What the socket has not accepted yet.
    unsent: Vec<u8>,
}

#[derive(Debug)]
struct Link {
    stream: Arc<Stream>,
    /// With TLS: encrypts records. Records have to be sent in the order in which they are made.
    sealer: Option<Sealer>,
}

impl RequestSender {
    /// Allocates for `threads` threads that each add up to `batch` bytes. There is no link yet.
    pub(crate) fn new(threads: usize, batch: usize) -> Self {
        // With TLS a single request may be a separate record.
        let times = Sealer::sealed_len(0) / HEADER_LEN + 2;
        let room = (MANY + threads * batch) * times;
        Self {
            way: Mutex::new(RequestLink {
                link: None,
                unsent: Vec::with_capacity(room),
            }),
            full: AtomicBool::new(false),
        }
    }

    /// Requests are sent on `link` from now on; without one they are dropped.
    pub(crate) fn attach(&self, link: Option<LinkWriter>) {
        if let Ok(mut way) = self.way.lock() {
            way.link = link.map(|link| {
                let (stream, sealer) = link.into_parts();
                Link { stream, sealer }
            });
            way.unsent.clear();
            self.full.store(false, Ordering::Release);
        }
    }

    /// Sends whole frames, or queues what the socket does not accept. Never blocks.
    pub(crate) fn send(&self, frames: &[u8]) {
        // Fails if a thread panicked while it held the lock, which it reported.
        let Ok(mut way) = self.way.lock() else { return };
        if let Err(error) = way.send(frames) {
            way.lose(&error);
        }
        self.full.store(!way.unsent.is_empty(), Ordering::Release);
    }

    /// Sends as much of the queue as the socket accepts.
    pub(crate) fn flush(&self) {
        if !self.full.load(Ordering::Acquire) {
            return;
        }
        let Ok(mut way) = self.way.lock() else { return };
        if let Err(error) = way.flush() {
            way.lose(&error);
        }
        self.full.store(!way.unsent.is_empty(), Ordering::Release);
    }

    /// The socket, if requests are queued.
    pub(crate) fn waits_for(&self) -> Option<Arc<Stream>> {
        if !self.full.load(Ordering::Acquire) {
            return None;
        }
        let way = self.way.lock().ok()?;
        way.link.as_ref().map(|link| Arc::clone(&link.stream))
    }

    /// Whether too much is queued to read more faults.
    pub(crate) fn is_overfull(&self) -> bool {
        self.full.load(Ordering::Acquire)
            && self.way.lock().map_or(true, |way| way.unsent.len() >= MANY)
    }

    /// Waits until the socket accepts more, `stop` is stopped, or [`TICK`] has passed.
    pub(crate) fn wait(&self, stop: &StopEventFd) {
        let tick = Timespec::try_from(TICK).ok();
        let stream = self.waits_for();
        let mut set = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        if let Some(stream) = &stream {
            set.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::OUT));
        }
        // A failure shows when the caller sends.
        let _ = poll(&mut set, tick.as_ref());
    }
}

impl RequestLink {
    fn send(&mut self, frames: &[u8]) -> Result<(), LinkError> {
        let Some(Link { stream, sealer }) = &mut self.link else {
            return Ok(());
        };
        if let Some(sealer) = sealer {
            let waiting = !self.unsent.is_empty();
            sealer.seal(frames, &[], &mut self.unsent)?;
            return if waiting { Ok(()) } else { self.flush() };
        }
        let mut rest = frames;
        if self.unsent.is_empty() {
            rest = rest.get(try_send(stream, rest)?..).unwrap_or_default();
        }
        self.unsent.extend_from_slice(rest);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let Some(Link { stream, .. }) = &self.link else {
            return Ok(());
        };
        let sent = try_send(stream, &self.unsent)?;
        let sent = sent.min(self.unsent.len());
        self.unsent.drain(..sent);
        Ok(())
    }

    /// Closes a link that has failed. The thread that reads from it reports the failure.
    #[cold]
    fn lose(&mut self, error: &LinkError) {
        tracing::debug!(error = %Report::new(&error), "asking for a page");
        if let Some(link) = self.link.take() {
            link.stream.shutdown();
        }
        self.unsent.clear();
    }
}

fn try_send(stream: &Stream, bytes: &[u8]) -> Result<usize, LinkError> {
    loop {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(stream.as_fd(), bytes, flags) {
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map_err(std::io::Error::from)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_linux::CancelFlag;
    use hikkoshi_pages::{Page, PageRange};
    use hikkoshi_wire::{Frame, Limits};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn writer(ours: UnixStream) -> LinkWriter {
        LinkWriter::new(Arc::new(Stream::Unix(ours)), CancelFlag::new()).unwrap()
    }

    const THREADS: u64 = 4;
    const EACH: u64 = 20_000;

    /// More requests than any socket buffers, from several threads, while the peer does not read:
    /// every request arrives whole, once, and no thread blocks.
    #[test]
    fn requests_stay_whole_behind_a_full_socket() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sender = RequestSender::new(4, 0);
        sender.attach(Some(writer(ours)));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let sender = &sender;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let range = PageRange::one(Page::new(thread * EACH + number));
                        sender.send(&Frame::Request { range }.encode());
                    }
                });
            }
        });
        assert!(sender.is_overfull(), "the socket took it all");
        assert!(sender.waits_for().is_some());
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
        let stop = StopEventFd::new().unwrap();
        while sender.waits_for().is_some() {
            sender.wait(&stop);
            sender.flush();
        }
        assert!(!sender.is_overfull());
        let (seen, theirs) = reading.join().unwrap();
        assert!(seen.iter().all(|&times| times == 1));
        drop(theirs);
        let range = PageRange::one(Page::new(0));
        // Requests on a closed link are dropped, and no thread blocks.
        for _ in 0..2 {
            sender.send(&Frame::Request { range }.encode());
        }
        assert!(sender.way.lock().unwrap().link.is_none());
        assert!(sender.waits_for().is_none() && !sender.is_overfull());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        sender.attach(Some(writer(ours)));
        sender.send(&Frame::Request { range }.encode());
        theirs.read_exact(&mut [0; HEADER_LEN]).unwrap();
    }
}
