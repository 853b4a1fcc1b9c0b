//! The sender of a disk's link.

use std::thread;
use std::time::Instant;

use crate::flow::bandwidth::PresentLimit;
use crate::{Bandwidth, LinkError, LinkWriter, TICK};
use hikkoshi_linux::CancelFlag;

/// Sends the bytes of a disk's connection.
///
/// It needs no window: it is not used in post-copy, and the disk's client and server bound what is
/// in flight. It keeps to the [`Bandwidth`] that all links of the migration share.
#[derive(Debug)]
pub struct DiskSender {
    writer: LinkWriter,
    rate_limit: PresentLimit,
}

impl DiskSender {
    /// A sender on a new link; `bandwidth` is shared with the other links.
    pub fn new(writer: LinkWriter, bandwidth: &Bandwidth) -> Self {
        Self {
            writer,
            rate_limit: bandwidth.follow(),
        }
    }

    /// Waits until the rate limit allows to send.
    ///
    /// # Errors
    /// [`LinkError::Stopped`] when `stop` is set before.
    pub fn wait(&mut self, stop: &CancelFlag) -> Result<(), LinkError> {
        // A changed limit is used after a tick at most.
        while let Some(limit) = self.rate_limit.get() {
            let left = limit.wait(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(TICK));
            if stop.is_cancelled() {
                return Err(LinkError::Stopped);
            }
        }
        Ok(())
    }

    /// Sends `bytes`, at most [`MAX_DISK_BYTES`](hikkoshi_wire::MAX_DISK_BYTES), after
    /// [`wait`](Self::wait). None: no more follow.
    ///
    /// # Errors
    /// The link's failure.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.writer.disk(bytes)?;
        if let Some(limit) = self.rate_limit.get() {
            limit.spend(bytes.len() as u64, Instant::now());
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Stream, split};
    use hikkoshi_wire::{Limits, MAX_DISK_BYTES};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn bytes_arrive_in_order_until_the_end() {
        let (one, other) = UnixStream::pair().unwrap();
        let stop = CancelFlag::new();
        let ends = |socket| {
            let stream = Arc::new(Stream::Unix(socket));
            split(&stream, Limits { pages: 0 }, &stop).unwrap()
        };
        let ((_, writer), (mut reader, _)) = (ends(one), ends(other));
        let mut sender = DiskSender::new(writer, &Bandwidth::new(Some(u64::MAX)));
        let all = vec![7; MAX_DISK_BYTES];
        let thread = thread::spawn({
            let all = all.clone();
            move || {
                sender.send(b"NBDMAGIC").unwrap();
                sender.send(&all).unwrap();
                sender.send(&[]).unwrap();
                let error = sender.send(&[0; MAX_DISK_BYTES + 1]).unwrap_err();
                assert!(matches!(error, LinkError::Protocol(_)), "{error}");
            }
        });
        let mut bytes = Vec::new();
        assert!(reader.disk(&mut bytes).unwrap());
        assert_eq!(bytes, b"NBDMAGIC");
        assert!(reader.disk(&mut bytes).unwrap());
        assert_eq!(bytes, all);
        assert!(!reader.disk(&mut bytes).unwrap());
        thread.join().unwrap();
    }

    #[test]
    fn a_stop_ends_the_wait_for_the_rate_limit() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (_, writer) = split(
            &Arc::new(Stream::Unix(one)),
            Limits { pages: 0 },
            &CancelFlag::new(),
        )
        .unwrap();
        let mut sender = DiskSender::new(writer, &Bandwidth::new(Some(1)));
        let stop = CancelFlag::cancelled();
        sender.wait(&stop).unwrap();
        sender.send(&[1; 4096]).unwrap();
        let error = sender.wait(&stop).unwrap_err();
        assert!(matches!(error, LinkError::Stopped), "{error}");
    }
}
