//! Networks of the tests: one on which frames arrive for the guest, and one that delivers them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_engine::{FrameCapture, FrameDelivery, GuestError, KeptFrame};
use hikkoshi_wire::NetworkFrame;

const CARD: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// How long a look for a frame takes on a slow host: longer than frames are forwarded.
const SLOW: Duration = Duration::from_millis(300);

/// A network on which so many frames of this size arrive at once, each with its number.
#[derive(Clone, Debug)]
pub(crate) struct Burst {
    frames: u32,
    bytes: usize,
    next: u32,
    /// The frames before which a look takes long.
    slow: &'static [u32],
}

impl Burst {
    pub(crate) fn new(frames: u32, bytes: usize) -> Self {
        Self {
            frames,
            bytes,
            next: 0,
            slow: &[],
        }
    }

    /// The host is slow before these frames.
    pub(crate) fn slow_before(mut self, frames: &'static [u32]) -> Self {
        self.slow = frames;
        self
    }
}

impl FrameCapture for Burst {
    fn start(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    fn handed_over(&mut self, _: Instant) -> Result<(), GuestError> {
        Ok(())
    }

    fn next(&mut self, wait: Duration) -> Result<Option<KeptFrame>, GuestError> {
        if self.next == self.frames {
            std::thread::sleep(wait);
            return Ok(None);
        }
        if self.slow.contains(&self.next) {
            std::thread::sleep(SLOW);
        }
        let mut bytes = self.next.to_be_bytes().to_vec();
        bytes.resize(self.bytes, 0xaa);
        self.next += 1;
        let offload = Default::default();
        let frame = NetworkFrame { offload, bytes };
        Ok(Some(KeptFrame { card: CARD, frame }))
    }

    fn dropped(&mut self) -> u64 {
        0
    }
}

/// What the guest has received: the number of each frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(pub(crate) Arc<Mutex<Vec<u32>>>);

impl FrameDelivery for Received {
    fn deliver(&mut self, kept: &KeptFrame) -> Result<(), GuestError> {
        assert_eq!(kept.card, CARD);
        let number = kept.frame.bytes.first_chunk().unwrap();
        self.0.lock().unwrap().push(u32::from_be_bytes(*number));
        Ok(())
    }
}
