//! The destination's networks.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::{FrameDelivery, GuestError, KeptFrame};
use hikkoshi_network_frames::{MacAddress, NetworkFrame, PacketSocket, TunQueue};
use thiserror::Error;

use super::opened::TapCard;

/// How long a frame that the network delivered is remembered: longer than a guest is paused.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// The most frames that are remembered for each card.
const MAX_REMEMBERED: usize = 4096;

/// Frames that are transmitted before QEMU has read the earlier ones. A tap device has room for
/// 1,000 by default (`txqueuelen`), which new frames need as well, and drops what is over without
/// an error.
const BURST: usize = 512;

/// How long to wait until QEMU has read them, and how often to check. Each wait that is in vain
/// halves the limit for the next one: clients that send all the time may keep the queue filled, so
/// that it is never seen empty. All waits together take at most twice this time, after which TCP
/// sends a frame again (`TCP_RTO_MIN`): one that is delivered later helps nobody, and holds up
/// those after it.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// No such card.
#[derive(Debug, Error)]
#[error("no network card with the address {0:02x?} is on a tap device here")]
struct NoCard(MacAddress);

/// Delivers frames at the tap devices of the machine.
#[derive(Debug)]
pub(super) struct TapDelivery {
    cards: Vec<DeliveryCard>,
}

#[derive(Debug)]
struct DeliveryCard {
    address: MacAddress,
    socket: PacketSocket,
    queues: Vec<TunQueue>,
    /// Frames that may still be transmitted before QEMU has read all.
    room: usize,
    /// How long to wait until it has.
    read_timeout: Duration,
    /// Whether the socket sees what the network delivers.
    observing: bool,
    /// Frames for several stations that the network has delivered here, and when they were read.
    seen: VecDeque<(Instant, Vec<u8>)>,
}

impl TapDelivery {
    pub(super) fn new(cards: Vec<TapCard>) -> Self {
        let cards = cards.into_iter().filter_map(|mut tap| {
            let socket = tap.sockets.pop()?;
            Some(DeliveryCard {
                address: tap.address,
                observing: socket.start().is_ok(),
                socket,
                queues: tap.queues,
                room: 0,
                read_timeout: READ_TIMEOUT,
                seen: VecDeque::new(),
            })
        });
        Self {
            cards: cards.collect(),
        }
    }
}

impl DeliveryCard {
    fn observe(&mut self) {
        if !self.observing {
            return;
        }
        let now = Instant::now();
        loop {
            match self.socket.receive() {
                Ok(Some(captured)) if captured.frame.is_group() => {
                    self.seen.push_back((now, captured.frame.bytes));
                }
                Ok(Some(_)) => continue,
                Ok(None) => break,
                Err(error) => {
                    let error = Report::new(&error);
                    tracing::debug!(%error, "reading what the network delivers at the destination");
                    break;
                }
            }
            if self.seen.len() > MAX_REMEMBERED {
                self.seen.pop_front();
            }
        }
        while let Some((at, _)) = self.seen.front()
            && at.elapsed() > REMEMBERED_FOR
        {
            self.seen.pop_front();
        }
    }

    /// Waits until the device's queue has room for another frame.
    fn wait_for_room(&mut self) {
        if self.room == 0 {
            let queues = &self.queues;
            // A queue that cannot be asked does not delay the others.
            let is_empty = |queue: &TunQueue| queue.is_empty().unwrap_or(true);
            wait_until_read(&mut self.read_timeout, || queues.iter().all(is_empty));
            self.room = BURST;
        }
        self.room -= 1;
    }

    /// Whether the network has delivered this frame here as well; each frame that it delivered
    /// counts once.
    fn has_seen(&mut self, frame: &NetworkFrame) -> bool {
        if !frame.is_group() {
            return false;
        }
        self.observe();
        let seen = self
            .seen
            .iter()
            .position(|(_, bytes)| *bytes == frame.bytes);
        seen.and_then(|index| self.seen.remove(index)).is_some()
    }
}

/// Waits until QEMU has read all frames, and halves `limit` if it has not.
pub(super) fn wait_until_read(limit: &mut Duration, is_read: impl Fn() -> bool) {
    let deadline = Instant::now() + *limit;
    while !is_read() {
        if Instant::now() >= deadline {
            *limit /= 2;
            return;
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

impl FrameDelivery for TapDelivery {
    fn observe(&mut self) {
        self.cards.iter_mut().for_each(DeliveryCard::observe);
    }

    fn deliver(&mut self, kept: &KeptFrame) -> Result<(), GuestError> {
        let card = self.cards.iter_mut().find(|card| card.address == kept.card);
        let card = card.ok_or_else(|| GuestError::new(NoCard(kept.card)))?;
        let frame = NetworkFrame {
            offload: kept.frame.offload,
            bytes: kept.frame.bytes.clone(),
        };
        if card.has_seen(&frame) {
            return Ok(());
        }
        card.wait_for_room();
        card.socket.transmit(&frame).map_err(GuestError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that send all the time: the queue is never seen empty.
    #[test]
    fn a_queue_that_stays_filled_is_not_waited_for_each_time() {
        let mut limit = Duration::from_millis(8);
        for expected in [4, 2, 1] {
            wait_until_read(&mut limit, || false);
            assert_eq!(limit, Duration::from_millis(expected));
        }
        for _ in 0..64 {
            wait_until_read(&mut limit, || false);
        }
        assert_eq!(limit, Duration::ZERO);
        // All waits together are over before the senders send again.
        assert!(READ_TIMEOUT * 2 <= Duration::from_millis(200));
    }

    #[test]
    fn a_queue_that_is_read_keeps_its_limit() {
        let mut limit = READ_TIMEOUT;
        wait_until_read(&mut limit, || true);
        assert_eq!(limit, READ_TIMEOUT);
    }
}
