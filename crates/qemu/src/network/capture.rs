//! The source's networks.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use hikkoshi_engine::{FrameCapture, GuestError, KeptFrame};
use hikkoshi_network_frames::{Captured, MacAddress, PacketSocket, unread};
use hikkoshi_wire::NetworkFrame;

use super::opened::{OpenedNetworks, TapCard};

/// Every captured frame can be sent.
const _: () =
    assert!(hikkoshi_network_frames::MAX_NETWORK_FRAME <= hikkoshi_wire::MAX_NETWORK_FRAME);

/// The most frames that are read from one card at a time.
const MAX_AT_ONCE: usize = 16 << 10;

/// Captures the frames that arrive at the guest's tap devices.
#[derive(Debug)]
pub(super) struct TapCapture {
    cards: Vec<TapCard>,
    /// Frames that were read, in order.
    ready: VecDeque<KeptFrame>,
    dropped: u64,
    /// Cards whose frames are not kept, for people.
    without: Vec<String>,
}

impl TapCapture {
    pub(super) fn new(OpenedNetworks { cards, without }: OpenedNetworks) -> Self {
        Self {
            cards,
            ready: VecDeque::new(),
            dropped: 0,
            without,
        }
    }

    fn sockets(&self) -> impl Iterator<Item = &PacketSocket> {
        self.cards.iter().flat_map(|card| &card.sockets)
    }

    /// Reads what has arrived.
    fn read(&mut self) -> Result<(), GuestError> {
        for card in &mut self.cards {
            for socket in &mut card.sockets {
                let frames = receive_all(socket)?.into_iter();
                self.ready.extend(
                    frames.filter_map(|frame| kept([card.address, card.guest_address], frame)),
                );
            }
        }
        Ok(())
    }
}

impl FrameCapture for TapCapture {
    fn without(&self) -> &[String] {
        &self.without
    }

    fn start(&mut self) -> Result<(), GuestError> {
        let mut sockets = self.sockets();
        sockets.try_for_each(|socket| socket.start().map_err(GuestError::new))
    }

    fn handed_over(&mut self, paused: Instant) -> Result<(), GuestError> {
        let paused = on_wall_clock(paused);
        for card in &mut self.cards {
            // First the queues: then everything that was in them has been captured.
            let queues = card
                .queues
                .iter()
                .map(hikkoshi_network_frames::TunQueue::take);
            let queues: Vec<_> = queues.collect::<Result<_, _>>().map_err(GuestError::new)?;
            let sockets = card.sockets.iter_mut().map(receive_all);
            let captured: Vec<_> = sockets.collect::<Result<_, _>>()?;
            let count = |frames: &[Vec<_>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
            let all = captured.iter().flatten();
            tracing::debug!(
                interface = card.interface,
                captured = ?count(&captured),
                before_pause = all.filter(|frame| frame.at < paused).count(),
                queued = ?queues.iter().map(Vec::len).collect::<Vec<_>>(),
                "frames since the capture began"
            );
            let unread = unread(captured, queues, paused, true).into_iter();
            self.ready
                .extend(unread.filter_map(|frame| kept([card.address, card.guest_address], frame)));
        }
        Ok(())
    }

    fn next(&mut self, wait: Duration) -> Result<Option<KeptFrame>, GuestError> {
        if self.ready.is_empty() {
            self.read()?;
        }
        if self.ready.is_empty() && !wait.is_zero() {
            let sockets: Vec<_> = self.sockets().collect();
            PacketSocket::wait(&sockets, wait).map_err(GuestError::new)?;
            self.read()?;
        }
        Ok(self.ready.pop_front())
    }

    fn dropped(&mut self) -> u64 {
        let drops: u64 = self.sockets().map(PacketSocket::take_drops).sum();
        self.dropped += drops;
        self.dropped
    }
}

fn receive_all(socket: &mut PacketSocket) -> Result<Vec<Captured>, GuestError> {
    let mut frames = Vec::new();
    while frames.len() < MAX_AT_ONCE
        && let Some(frame) = socket.receive().map_err(GuestError::new)?
    {
        frames.push(frame);
    }
    Ok(frames)
}

/// The frame for the destination, for a card with these addresses, the configured one first; `None`
/// if the guest has sent it itself: its announcement there reaches this host as well.
fn kept(card: [MacAddress; 2], Captured { frame, .. }: Captured) -> Option<KeptFrame> {
    let own = frame.source().is_some_and(|source| card.contains(&source));
    (!own).then_some(KeptFrame {
        card: card[0],
        frame: NetworkFrame {
            offload: frame.offload,
            bytes: frame.bytes,
        },
    })
}

/// An instant in nanoseconds since 1970, as the kernel stamps frames.
fn on_wall_clock(instant: Instant) -> u64 {
    let (now, wall) = both_clocks();
    let wall = wall
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let ago = now.saturating_duration_since(instant);
    u64::try_from(wall.saturating_sub(ago).as_nanos()).unwrap_or(u64::MAX)
}

/// Both clocks at the same time: this thread may be interrupted between reading one and the other,
/// so the closest of a few readings counts.
fn both_clocks() -> (Instant, SystemTime) {
    let read = || {
        let (before, wall, after) = (Instant::now(), SystemTime::now(), Instant::now());
        (after - before, before, wall)
    };
    let mut best = read();
    for _ in 0..4 {
        let next = read();
        if next.0 < best.0 {
            best = next;
        }
    }
    (best.1, best.2)
}
