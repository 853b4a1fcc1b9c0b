//! Announces the guest to its networks at once, and more than QEMU does: further addresses of a
//! card, and VLANs.
//!
//! `announce-self` announces the address that a card was configured with, without a VLAN tag. A
//! guest may have given the card another address or several, and switches learn addresses for each
//! VLAN separately (IEEE 802.1Q, section 8.8). QEMU knows these of virtio-net cards
//! (`query-rx-filter`). The announcements are written to QEMU's own descriptor of the tap device:
//! to the network they come from the guest.
//!
//! In post-copy QEMU's main loop waits for pages as soon as the guest runs, and answers commands
//! late. Nothing here needs an answer after that.

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

/// Sends announcements on the guest's tap devices.
#[derive(Debug)]
pub(crate) struct Announcer {
    cards: Vec<AnnouncedCard>,
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
        Self { cards: vec![card] }
    }

    /// Whether a card of the machine is on a tap device.
    pub(crate) fn has_cards(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Announces the guest's addresses and VLANs, as QEMU has answered the question for them
    /// ([`QUERY`](super::rx_filter::QUERY)). A failure is only logged, because the guest's own
    /// packets have the same effect.
    pub(crate) fn announce(&self, filters: Option<&Value>) {
        let filters = filters.map(rx_filter::parse).unwrap_or_default();
        for card in &self.cards {
            let filter = filters.iter().find(|filter| filter.name == card.name);
            let all = announced(card.address, filter);
            if all.len() > MAX_PER_CARD {
                tracing::warn!(
                    card = card.name,
                    announced = MAX_PER_CARD,
                    all = all.len(),
                    "not all addresses and VLANs of the guest are announced"
                );
            }
            for (address, vlan) in all.into_iter().take(MAX_PER_CARD) {
                card.send(&announcement(address, vlan));
            }
        }
    }
}

impl AnnouncedCard {
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
mod tests {
    use super::*;

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
