//! For how long the guest stands still at most.
//!
//! Between the pause and *ready* this side waits for the destination in many
//! places: for room in a socket, for acknowledgements, for an answer. A peer
//! that does everything, but a byte at a time, passes each of them. So one
//! deadline is over all of it, and ends all links when it has passed.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::link::Stream;

/// A deadline that ends links, unless it is met.
#[derive(Debug)]
pub(super) struct Deadline {
    /// Whether it was met: who says so first is right.
    met: Arc<OnceLock<bool>>,
    /// Its end ends the thread.
    _waits: SyncSender<()>,
}

impl Deadline {
    /// Begins to wait for `limit`.
    ///
    /// # Errors
    /// When there is no room for a thread.
    pub(super) fn start(streams: &[Arc<Stream>], limit: Duration) -> io::Result<Self> {
        let streams = streams.to_vec();
        let met = Arc::new(OnceLock::new());
        let passed = Arc::clone(&met);
        let (waits, waiting) = sync_channel(0);
        thread::Builder::new()
            .name("src-deadline".into())
            .spawn(move || {
                let over = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
                if over && passed.set(false).is_ok() {
                    streams.iter().for_each(|stream| stream.shutdown());
                }
            })?;
        Ok(Self { met, _waits: waits })
    }

    /// Ends the wait: whether it ends before the deadline. If it does not, the
    /// links have been ended, or are just about to be.
    pub(super) fn met(self) -> bool {
        self.met.set(true).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn it_ends_the_links_or_nothing() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let streams = [Arc::new(Stream::Unix(ours))];
        let day = Duration::from_secs(86_400);
        assert!(Deadline::start(&streams, day).unwrap().met());
        theirs.set_nonblocking(true).unwrap();
        assert!(theirs.read(&mut [0]).is_err(), "ended");
        theirs.set_nonblocking(false).unwrap();
        let deadline = Deadline::start(&streams, Duration::ZERO).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        assert!(!deadline.met());
    }
}
