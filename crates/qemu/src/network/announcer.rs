//! Announces what QEMU does not: further addresses of a card, and VLANs.
//!
//! `announce-self` announces the address that a card was configured with, without a VLAN tag. A
//! guest may have given the card another address or several, and switches learn addresses for each
//! VLAN separately (IEEE 802.1Q, section 8.8). QEMU knows these of virtio-net cards
//! (`query-rx-filter`). The announcements are written to QEMU's own descriptor of the tap device:
//! to the network they come from the guest.

use std::time::Duration;

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_network_frames::{MacAddress, TunQueue, announcement};

use super::error::NetworkError;
use super::rx_filter::{self, RxFilter};
use super::taps::{Tap, taps};
use crate::qmp::Client;

/// The most announcements that are sent for one card: the guest sets the number of its addresses
/// and VLANs.
const MAX_PER_CARD: usize = 1024;

/// How long to wait for QEMU's answer; see [`announce`](crate::qmp::announce_self).
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends announcements on the guest's tap devices.
#[derive(Debug)]
pub(crate) struct Announcer {
    cards: Vec<AnnouncedCard>,
}

#[derive(Debug)]
struct AnnouncedCard {
    name: String,
    /// The address that QEMU announces.
    address: MacAddress,
    queues: Vec<TunQueue>,
}

impl Announcer {
    /// Opens the tap devices of the machine.
    pub(crate) fn open(client: &mut Client, process: &Process) -> Result<Self, NetworkError> {
        let (_, taps) = taps(client, process)?;
        let cards = taps
            .into_iter()
            .map(|Tap { card, queues, .. }| AnnouncedCard {
                name: card.name,
                address: card.address,
                queues,
            });
        Ok(Self {
            cards: cards.collect(),
        })
    }

    /// Announces the guest's addresses and VLANs, except what QEMU announces. A failure is only
    /// logged, because the guest's own packets have the same effect.
    pub(crate) fn announce(&self, client: &mut Client) {
        if self.cards.is_empty() {
            return;
        }
        let filters = match rx_filter::read(client, REPLY_TIMEOUT) {
            Ok(filters) => filters,
            Err(error) => {
                tracing::warn!(error = %Report::new(&error), "querying the addresses of the guest's network cards");
                return;
            }
        };
        for filter in filters {
            let Some(card) = self.cards.iter().find(|card| card.name == filter.name) else {
                continue;
            };
            let further = further(&filter, card.address);
            if further.len() > MAX_PER_CARD {
                tracing::warn!(
                    card = card.name,
                    announced = MAX_PER_CARD,
                    all = further.len(),
                    "not all addresses and VLANs of the guest are announced"
                );
            }
            for (address, vlan) in further.into_iter().take(MAX_PER_CARD) {
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

/// What to announce besides the address `announced` without a tag.
fn further(filter: &RxFilter, announced: MacAddress) -> Vec<(MacAddress, Option<u16>)> {
    let untagged = filter.addresses.iter().map(|address| (*address, None));
    let tagged = filter.vlans.iter().flat_map(|vlan| {
        filter
            .addresses
            .iter()
            .map(|address| (*address, Some(*vlan)))
    });
    untagged
        .chain(tagged)
        .filter(|what| *what != (announced, None))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_announced_in_every_vlan() {
        let (configured, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let filter = |addresses: &[MacAddress], vlans: &[u16]| RxFilter {
            name: "net0".to_owned(),
            addresses: addresses.to_vec(),
            vlans: vlans.to_vec(),
        };
        assert_eq!(further(&filter(&[configured], &[]), configured), []);
        assert_eq!(
            further(&filter(&[other], &[]), configured),
            [(other, None)],
            "the guest has changed its address"
        );
        assert_eq!(
            further(&filter(&[configured, other], &[5, 6]), configured),
            [
                (other, None),
                (configured, Some(5)),
                (other, Some(5)),
                (configured, Some(6)),
                (other, Some(6)),
            ]
        );
    }
}
