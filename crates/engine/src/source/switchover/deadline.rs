//! Limits how long the guest is paused.
//!
//! Between the pause and *Ready* this side waits for the destination in many
//! places: for space in a socket, for acknowledgements, for an answer. A peer
//! that does everything, but one byte at a time, meets the timeout of each. This
//! side also waits for the guest's monitor, which saves the device state. So one
//! deadline limits all of it: when it passes, all links are ended and the save is
//! cancelled.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use hikkoshi_link::Stream;
use hikkoshi_linux::CancelFlag;

/// A deadline that ends links and sets a flag, unless it is met.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// Whether it was met. The first thread that sets it decides.
    met: Arc<OnceLock<bool>>,
    /// Dropping it ends the thread.
    _waits: SyncSender<()>,
}

impl Deadline {
    /// Starts the deadline; sets `passes` after `limit`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(
        streams: &[Arc<Stream>],
        passes: CancelFlag,
        limit: Duration,
    ) -> io::Result<Self> {
        let streams = streams.to_vec();
        let met = Arc::new(OnceLock::new());
        let passed = Arc::clone(&met);
        let (waits, waiting) = sync_channel(0);
        thread::Builder::new()
            .name("src-deadline".into())
            .spawn(move || {
                let over = waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
                if over && passed.set(false).is_ok() {
                    passes.cancel();
                    streams.iter().for_each(|stream| stream.shutdown());
                }
            })?;
        Ok(Self { met, _waits: waits })
    }

    /// Ends the deadline, and returns whether it was met. If not, the links have
    /// been ended or are about to be.
    pub(crate) fn met(self) -> bool {
        self.met.set(true).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_passed_deadline_ends_the_links_and_a_met_one_does_not() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let streams = [Arc::new(Stream::Unix(ours))];
        let day = Duration::from_secs(86_400);
        let passes = CancelFlag::new();
        let start = |limit| Deadline::start(&streams, passes.clone(), limit).unwrap();
        assert!(start(day).met());
        theirs.set_nonblocking(true).unwrap();
        assert!(theirs.read(&mut [0]).is_err(), "ended");
        assert!(!passes.is_cancelled());
        theirs.set_nonblocking(false).unwrap();
        let deadline = start(Duration::ZERO);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        assert!(passes.is_cancelled());
        assert!(!deadline.met());
    }
}
