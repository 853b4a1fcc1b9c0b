//! The source's networks.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use hikkoshi_engine::{FrameCapture, GuestError, KeptFrame};
use hikkoshi_network_frames::{Captured, MacAddress, PacketSocket, TunQueue, unread};
use hikkoshi_wire::NetworkFrame;

use super::delivery::wait_until_read;
use super::opened::{OpenedNetworks, TapCard};

/// Every captured frame can be sent.
const _: () =
    assert!(hikkoshi_network_frames::MAX_NETWORK_FRAME <= hikkoshi_wire::MAX_NETWORK_FRAME);

/// The most frames that are read from one card at a time.
const MAX_AT_ONCE: usize = 16 << 10;

/// How long a guest that is behind, which still runs, may take to read the frames that are there.
/// Each time that it is not enough halves it.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// Captures the frames that arrive at the guest's tap devices.
#[derive(Debug)]
pub(super) struct TapCapture {
    cards: Vec<TapCard>,
    /// How long [`prepare`](FrameCapture::prepare) waits for the guest.
    read_timeout: Duration,
    /// Whether the earlier sockets had everything from their start on when the others started.
    is_complete: bool,
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
            read_timeout: READ_TIMEOUT,
            is_complete: false,
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

    /// QEMU may hold a frame that the card has not taken, and loses that and another one when it
    /// pauses the guest. Once all queues are empty here, the frames that it holds then have arrived
    /// since.
    fn prepare(&mut self) -> Result<(), GuestError> {
        for socket in self.cards.iter_mut().flat_map(|card| &mut card.earlier) {
            if socket.take_drops() > 0 {
                // What came before a gap is of no use.
                receive_all(socket)?;
                socket.take_drops();
            }
            socket.start().map_err(GuestError::new)?;
        }
        let queues: Vec<_> = self.cards.iter().flat_map(|card| &card.queues).collect();
        // A queue that cannot be asked does not delay the others.
        let is_empty = |queue: &&TunQueue| queue.is_empty().unwrap_or(true);
        wait_until_read(&mut self.read_timeout, || queues.iter().all(is_empty));
        Ok(())
    }

    fn start(&mut self) -> Result<(), GuestError> {
        for socket in self.sockets() {
            socket.start().map_err(GuestError::new)?;
        }
        let earlier = self.cards.iter().flat_map(|card| &card.earlier);
        self.is_complete = earlier.map(PacketSocket::take_drops).sum::<u64>() == 0;
        Ok(())
    }

    fn handed_over(&mut self, paused: Instant) -> Result<(), GuestError> {
        let paused = on_wall_clock(paused);
        for card in &mut self.cards {
            // First the queues: then everything that was in them has been captured.
            let queues = card.queues.iter().map(TunQueue::take);
            let queues: Vec<_> = queues.collect::<Result<_, _>>().map_err(GuestError::new)?;
            // Without frames in a queue it is not known which of the earlier ones the guest has.
            let is_behind = queues.iter().any(|queue| !queue.is_empty());
            let earlier: Vec<_> = match is_behind && self.is_complete {
                true => receive_from(&mut card.earlier)?,
                false => vec![Vec::new(); card.sockets.len()],
            };
            let captured = receive_from(&mut card.sockets)?;
            let captured: Vec<_> = earlier
                .into_iter()
                .zip(captured)
                .map(|(earlier, captured)| joined(earlier, captured))
                .collect();
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

fn receive_from(sockets: &mut [PacketSocket]) -> Result<Vec<Vec<Captured>>, GuestError> {
    sockets.iter_mut().map(receive_all).collect()
}

/// What `earlier` has before the first frame of the other one.
fn joined(mut earlier: Vec<Captured>, captured: Vec<Captured>) -> Vec<Captured> {
    if let Some(first) = captured.first() {
        // The kernel gives a frame the same time for all sockets.
        let before = earlier.iter().position(|frame| frame.at >= first.at);
        earlier.truncate(before.unwrap_or(earlier.len()));
    }
    earlier.extend(captured);
    earlier
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use hikkoshi_lab::Namespace;
    use hikkoshi_network_frames::{BufferMib, NetworkFrame};

    use super::*;

    const CARD: MacAddress = [2, 0, 0, 0, 0, 1];
    const CLIENT: MacAddress = [2, 0, 0, 0, 0, 2];

    /// A tap device with a client, and what QEMU does with it.
    struct Network {
        host: Namespace,
        client: PacketSocket,
        tap: OwnedFd,
    }

    impl Network {
        fn new() -> Self {
            let host = Namespace::new("capture").unwrap();
            let tap = host.create_tap("tap0").unwrap();
            let client = open(&host, BufferMib(1));
            client.start().unwrap();
            Self { host, client, tap }
        }

        fn capture(&self) -> TapCapture {
            let card = TapCard {
                address: CARD,
                guest_address: CARD,
                interface: "tap0".to_owned(),
                sockets: vec![open(&self.host, BufferMib(1))],
                earlier: vec![open(&self.host, BufferMib(1))],
                queues: vec![TunQueue::new(self.tap.try_clone().unwrap())],
            };
            TapCapture::new(OpenedNetworks {
                cards: vec![card],
                without: Vec::new(),
            })
        }

        /// A frame with this content arrives.
        fn arrives(&self, content: u8) {
            let mut bytes = [CARD, CLIENT].concat();
            // A protocol for experiments.
            bytes.extend([0x88, 0xb5]);
            bytes.resize(60, content);
            let offload = Default::default();
            let frame = NetworkFrame { offload, bytes };
            self.client.transmit(&frame).unwrap();
        }

        /// More arrives, and is read, than the buffer of a socket holds.
        fn is_flooded(&self) {
            for _ in 0..8000 {
                self.arrives(b'x');
                self.is_read();
            }
        }

        /// QEMU reads the next frame.
        fn is_read(&self) {
            read(self.tap.as_fd());
        }
    }

    fn open(host: &Namespace, buffer: BufferMib) -> PacketSocket {
        let open = || PacketSocket::open(None, "tap0", None, buffer);
        host.run(open).unwrap().unwrap()
    }

    fn read(tap: BorrowedFd<'_>) {
        rustix::io::read(tap, &mut [0u8; 128]).unwrap();
    }

    /// What is sent to the destination.
    fn kept_by(capture: &mut TapCapture) -> String {
        let next = || capture.next(Duration::ZERO).unwrap();
        let frames = std::iter::from_fn(next);
        frames
            .map(|kept| char::from(kept.frame.bytes[59]))
            .collect()
    }

    /// QEMU holds a frame that the card does not take, and others wait: it loses two.
    #[test]
    fn a_guest_that_is_behind_gets_what_came_before_the_pause() {
        let network = Network::new();
        let mut capture = network.capture();
        network.arrives(b'a');
        network.is_read();
        network.arrives(b'b');
        let tap = network.tap.try_clone().unwrap();
        let guest = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            read(tap.as_fd());
        });
        // The guest has read everything.
        capture.prepare().unwrap();
        guest.join().unwrap();
        // The card does not take `c`.
        "cde".bytes().for_each(|frame| network.arrives(frame));
        network.is_read();
        capture.start().unwrap();
        let paused = Instant::now();
        network.is_read();
        network.arrives(b'f');
        capture.handed_over(paused).unwrap();
        network.arrives(b'g');
        assert_eq!(kept_by(&mut capture), "cdefg");
        assert_eq!(capture.dropped(), 0);
    }

    #[test]
    fn frames_before_a_gap_are_not_used() {
        let network = Network::new();
        let mut capture = network.capture();
        capture.prepare().unwrap();
        network.is_flooded();
        // Started anew.
        capture.prepare().unwrap();
        "abc".bytes().for_each(|frame| network.arrives(frame));
        (0..2).for_each(|_| network.is_read());
        capture.start().unwrap();
        capture.handed_over(Instant::now()).unwrap();
        assert_eq!(kept_by(&mut capture), "abc");
        // A gap right before the pause.
        let mut capture = network.capture();
        capture.prepare().unwrap();
        network.is_flooded();
        network.arrives(b'd');
        capture.start().unwrap();
        network.arrives(b'e');
        capture.handed_over(Instant::now()).unwrap();
        assert_eq!(kept_by(&mut capture), "de");
    }
}
