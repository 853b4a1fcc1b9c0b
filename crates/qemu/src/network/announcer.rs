//! Announces the guest to its networks at once, and more than QEMU does: further addresses of a
//! card, and VLANs.
//!
//! `announce-self` announces the address that a card was configured with, without a VLAN tag. A
//! guest may have given the card another address or several, and switches learn addresses for each
//! VLAN separately (IEEE 802.1Q, section 8.8). QEMU knows these of virtio-net cards
//! (`query-rx-filter`). The announcements are written to QEMU's own descriptor of the tap device:
//! to the network they come from the guest.
//!
//! In post-copy QEMU's main loop waits for pages as soon as the guest runs: it answers commands
//! late, and repeats its own announcements late. Nothing here needs QEMU after that.
//!
//! One announcement is not enough. On a busy host a frame that the guest has sent at the source may
//! wait in the kernel, and reach the network after the announcement. Switches then send everything
//! to the source again, and the guest, which receives nothing, sends nothing that would correct
//! them. So it is repeated for a second ([`REPEATS`]).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_network_frames::{MacAddress, TunQueue, announcement};
use serde_json::Value;

use super::cards::Card;
use super::error::NetworkError;
use super::rx_filter::{self, RxFilter};
use super::taps::{Tap, taps, taps_of};
use crate::qmp::Client;

/// The most announcements that are sent for one card: the guest sets the number of its addresses
/// and VLANs.
const MAX_PER_CARD: usize = 1024;

/// How long to wait before each repetition. The first ones come while the source still forwards
/// what arrives there for the guest (50 to 250 ms), so that nothing is lost. QEMU's own last one is
/// sent after 1,250 ms.
const REPEATS: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(500),
];

/// Sends announcements on the guest's tap devices.
#[derive(Debug)]
pub(crate) struct Announcer {
    cards: Arc<[AnnouncedCard]>,
    repeater: Option<Repeater>,
}

#[derive(Debug)]
struct AnnouncedCard {
    name: String,
    /// The address that it was configured with.
    address: MacAddress,
    queues: Vec<TunQueue>,
}

impl Announcer {
    /// Opens the tap devices of the machine.
    pub(crate) fn open(client: &mut Client, process: &Process) -> Result<Self, NetworkError> {
        Ok(Self::on(taps(client, process)?.1))
    }

    /// Opens the tap devices of these cards.
    pub(crate) fn for_cards(cards: Vec<Card>, process: &Process) -> Result<Self, NetworkError> {
        Ok(Self::on(taps_of(cards, process)?.1))
    }

    fn on(taps: Vec<Tap>) -> Self {
        let cards = taps
            .into_iter()
            .map(|Tap { card, queues, .. }| AnnouncedCard {
                name: card.name,
                address: card.address,
                queues,
            });
        Self {
            cards: cards.collect(),
            repeater: None,
        }
    }

    /// For a machine with one card, on this queue.
    #[cfg(test)]
    pub(crate) fn with_card(queue: TunQueue) -> Self {
        let card = AnnouncedCard {
            name: "net0".to_owned(),
            address: [2, 0, 0, 0, 0, 1],
            queues: vec![queue],
        };
        Self {
            cards: Arc::new([card]),
            repeater: None,
        }
    }

    /// Whether a card of the machine is on a tap device.
    pub(crate) fn has_cards(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Announces the guest's addresses and VLANs, as QEMU has answered the question for them
    /// ([`QUERY`](super::rx_filter::QUERY)), now and in a thread for a second, or until this is
    /// dropped. A failure is only logged, because the guest's own packets have the same effect.
    pub(crate) fn announce(&mut self, filters: Option<&Value>) {
        let filters = filters.map(rx_filter::parse).unwrap_or_default();
        let announced = self.cards.iter().map(|card| card.frames(&filters));
        let frames: Vec<_> = announced.collect();
        send_all(&self.cards, &frames);
        if frames.is_empty() {
            return;
        }
        self.repeater = Repeater::start(Arc::clone(&self.cards), frames)
            .inspect_err(|error| {
                tracing::warn!(
                    error = %Report::new(error),
                    "starting a thread that repeats the announcement of the guest's addresses"
                );
            })
            .ok();
    }
}

/// Sends each card its frames.
fn send_all(cards: &[AnnouncedCard], frames: &[Vec<Vec<u8>>]) {
    for (card, frames) in cards.iter().zip(frames) {
        for frame in frames {
            card.send(frame);
        }
    }
}

/// The thread that repeats an announcement. It has ended when this was dropped: the guest may be
/// moved on to another host then, which must not be contradicted.
#[derive(Debug)]
struct Repeater {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Repeater {
    fn start(cards: Arc<[AnnouncedCard]>, frames: Vec<Vec<Vec<u8>>>) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("dst-announce".to_owned())
            .spawn(move || repeat(&cards, &frames, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked for a reason that matters here.
            let _ = thread.join();
        }
    }
}

fn repeat(cards: &[AnnouncedCard], frames: &[Vec<Vec<u8>>], stopped: &Receiver<()>) {
    for pause in REPEATS {
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        send_all(cards, frames);
    }
}

impl AnnouncedCard {
    /// What announces it.
    fn frames(&self, filters: &[RxFilter]) -> Vec<Vec<u8>> {
        let filter = filters.iter().find(|filter| filter.name == self.name);
        let all = announced(self.address, filter);
        if all.len() > MAX_PER_CARD {
            tracing::warn!(
                card = self.name,
                announced = MAX_PER_CARD,
                all = all.len(),
                "not all addresses and VLANs of the guest are announced"
            );
        }
        let sent = all.into_iter().take(MAX_PER_CARD);
        sent.map(|(address, vlan)| announcement(address, vlan))
            .collect()
    }

    fn send(&self, frame: &[u8]) {
        let mut failed = None;
        // A guest that uses fewer queues than there are leaves the others without a device.
        for queue in &self.queues {
            match queue.send_as_guest(frame) {
                Ok(()) => return,
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            let error = Report::new(&error);
            tracing::debug!(card = self.name, %error, "announcing an address of the guest");
        }
    }
}

/// What to announce for a card that was configured with the address `configured`.
fn announced(configured: MacAddress, filter: Option<&RxFilter>) -> Vec<(MacAddress, Option<u16>)> {
    let mut all = vec![(configured, None)];
    let Some(filter) = filter else { return all };
    let tags = std::iter::once(None).chain(filter.vlans.iter().copied().map(Some));
    let pairs = tags.flat_map(|tag| filter.addresses.iter().map(move |address| (*address, tag)));
    all.extend(pairs.filter(|what| *what != (configured, None)));
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use hikkoshi_lab::Namespace;
    use hikkoshi_network_frames::{BufferMib, NetworkFrame, PacketSocket};

    use super::*;

    const CARD: MacAddress = [2, 0, 0, 0, 0, 1];

    /// The port that a bridge has learned for [`CARD`].
    fn learned(host: &Namespace) -> String {
        let mut bridge = host.command("bridge");
        let address = "02:00:00:00:00:01";
        let output = bridge.args(["fdb", "get", address, "br", "br0"]).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        let words: Vec<_> = output.split_whitespace().collect();
        let port = words.iter().skip_while(|word| **word != "dev").nth(1);
        (*port.unwrap_or(&"none")).to_owned()
    }

    /// The guest's own last frame reaches the switch after its announcement.
    #[test]
    fn a_switch_that_a_late_frame_has_misled_learns_the_port_again() {
        let host = Namespace::new("announce").unwrap();
        let tap = host.create_tap("tap0").unwrap();
        for line in [
            "link add br0 type bridge",
            "link set br0 up",
            "link add source type veth peer name port",
            "link set source up",
            "link set port up",
            "link set port master br0",
            "link set tap0 master br0",
        ] {
            host.ip(&line.split(' ').collect::<Vec<_>>()).unwrap();
        }
        let open = || PacketSocket::open(None, "source", None, BufferMib(1)).unwrap();
        let source = host.run(open).unwrap();
        source.start().unwrap();
        let arrives_late = || {
            let bytes = announcement(CARD, None);
            let offload = Default::default();
            source.transmit(&NetworkFrame { offload, bytes }).unwrap();
        };
        let mut announcer = Announcer::with_card(TunQueue::new(tap));
        announcer.announce(None);
        assert_eq!(learned(&host), "tap0");
        arrives_late();
        let deadline = Instant::now() + Duration::from_secs(30);
        while learned(&host) != "tap0" {
            assert!(Instant::now() < deadline, "not announced again");
            thread::sleep(Duration::from_millis(1));
        }
        // The guest may be on another host now.
        drop(announcer);
        arrives_late();
        assert_eq!(learned(&host), "port");
    }

    #[test]
    fn every_address_is_announced_in_every_vlan() {
        let (configured, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let all = |addresses: &[MacAddress], vlans: &[u16]| {
            let filter = RxFilter {
                name: "net0".to_owned(),
                addresses: addresses.to_vec(),
                vlans: vlans.to_vec(),
            };
            announced(configured, Some(&filter))
        };
        assert_eq!(announced(configured, None), [(configured, None)]);
        assert_eq!(all(&[configured], &[]), [(configured, None)]);
        assert_eq!(
            all(&[other], &[]),
            [(configured, None), (other, None)],
            "the guest has changed its address"
        );
        assert_eq!(
            all(&[configured, other], &[5, 6]),
            [
                (configured, None),
                (other, None),
                (configured, Some(5)),
                (other, Some(5)),
                (configured, Some(6)),
                (other, Some(6)),
            ]
        );
    }
}
