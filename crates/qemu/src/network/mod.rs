//! The guest's networks: frames that arrive for it while it is paused.
//!
//! Each network card with a tap device (`cards.rs`, `interfaces.rs`) takes part: the source
//! captures what arrives there ([`capture()`]), the destination delivers it to the card with the
//! same address ([`deliver`]). Other backends (user networking, sockets) have no place where frames
//! could be captured or delivered.

mod announcer;
mod capture;
mod cards;
mod configured;
mod delivery;
mod error;
mod interfaces;
mod opened;
pub(crate) mod overview;
pub(crate) mod rx_filter;
mod taps;
pub(crate) mod vlans_lost;

use std::sync::Arc;

use hikkoshi_engine::{FrameCapture, FrameDelivery};
use hikkoshi_linux::Process;

pub(crate) use self::announcer::Announcer;
use self::capture::TapCapture;
use self::cards::Card;
use self::delivery::TapDelivery;
pub(crate) use self::error::NetworkError;
use self::opened::{OpenedNetworks, Sockets, open, open_of};
use self::taps::taps_of;
use crate::qmp::Client;

/// Opens the networks of the source's guest; `None` if the guest has no network card.
pub(crate) fn capture(
    client: &mut Client,
    process: &Arc<Process>,
) -> Result<Option<Box<dyn FrameCapture>>, NetworkError> {
    let opened = open(client, process, Sockets::ForEachQueue)?;
    Ok(opened.map(|opened| Box::new(TapCapture::new(opened)) as Box<dyn FrameCapture>))
}

/// Opens the networks of the destination's machine; `None` if it has no network card.
pub(crate) fn deliver(
    client: &mut Client,
    process: &Arc<Process>,
) -> Result<Option<Box<dyn FrameDelivery>>, NetworkError> {
    Ok(delivery(open(client, process, Sockets::ForAll)?))
}

/// Opens the tap devices of these network cards; `None` if there are none.
pub(crate) fn deliver_to(
    cards: Vec<Card>,
    process: &Process,
) -> Result<Option<Box<dyn FrameDelivery>>, NetworkError> {
    let opened = open_of(taps_of(cards, process)?, process, Sockets::ForAll)?;
    Ok(delivery(opened))
}

/// A network card of the machine, as its owner knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedCard {
    /// Its name in QEMU.
    pub name: String,
    /// The address that it was configured with.
    pub address: [u8; 6],
    /// The tap device that it is connected to.
    pub interface: Option<String>,
}

/// The network cards that a machine's owner knows.
pub(crate) fn cards_of(owned: Vec<OwnedCard>) -> Vec<Card> {
    let cards = owned.into_iter().map(|card| Card {
        name: card.name,
        address: card.address,
        guest_address: card.address,
        backend: card
            .interface
            .as_ref()
            .map_or("another", |_| "tap")
            .to_owned(),
        interface: card.interface,
        descriptor: None,
    });
    cards.collect()
}

fn delivery(opened: Option<OpenedNetworks>) -> Option<Box<dyn FrameDelivery>> {
    for card in opened.iter().flat_map(|opened| &opened.without) {
        tracing::info!(card, "frames are not delivered to this network card");
    }
    opened.map(|opened| Box::new(TapDelivery::new(opened.cards)) as Box<dyn FrameDelivery>)
}
