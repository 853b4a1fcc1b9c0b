//! Opens the tap devices of the guest's network cards.

use std::os::fd::AsFd;

use hikkoshi_linux::Process;
use hikkoshi_network_frames::{BufferMib, MacAddress, PacketSocket, TunQueue};

use super::cards::Card;
use super::error::NetworkError;
use super::interfaces;
use super::taps::{Tap, taps};
use crate::qmp::Client;

/// A network card on a tap device.
#[derive(Debug)]
pub(super) struct TapCard {
    /// The address that the card was configured with.
    pub(super) address: MacAddress,
    /// The address that the guest has given it.
    pub(super) guest_address: MacAddress,
    /// The device's name in its network namespace.
    pub(super) interface: String,
    /// One for each queue at the source, one for all at the destination.
    pub(super) sockets: Vec<PacketSocket>,
    /// At the source: as [`sockets`](Self::sockets), for what arrives earlier.
    pub(super) earlier: Vec<PacketSocket>,
    pub(super) queues: Vec<TunQueue>,
}

/// What is kept while the guest is paused.
const BUFFER: BufferMib = BufferMib(16);

/// What is kept before that: more frames than a tap device has room for by default.
const EARLIER: BufferMib = BufferMib(4);

/// Which packet sockets a tap device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    ForAll,
    ForEachQueue,
}

/// The guest's networks.
#[derive(Debug)]
pub(super) struct OpenedNetworks {
    pub(super) cards: Vec<TapCard>,
    /// The other network cards, and why they do not take part; for people.
    pub(super) without: Vec<String>,
}

pub(super) fn open(
    client: &mut Client,
    process: &Process,
    sockets: Sockets,
) -> Result<Option<OpenedNetworks>, NetworkError> {
    open_of(taps(client, process)?, process, sockets)
}

/// Opens the tap devices of these cards.
pub(super) fn open_of(
    (cards, mut taps): (Vec<Card>, Vec<Tap>),
    process: &Process,
    sockets: Sockets,
) -> Result<Option<OpenedNetworks>, NetworkError> {
    if cards.is_empty() {
        return Ok(None);
    }
    let is_shared = |card: &Card| {
        let mut others = cards.iter().filter(|other| other.name != card.name);
        others.any(|other| other.address == card.address)
    };
    // The destination finds a card by its address.
    taps.retain(|tap| !is_shared(&tap.card));
    let mut without = Vec::new();
    for card in &cards {
        let why = if is_shared(card) {
            "another card has the same address"
        } else if taps.iter().any(|tap| tap.card == *card) {
            continue;
        } else {
            "it has no tap device that is known"
        };
        let Card { name, backend, .. } = card;
        without.push(format!("{name} (connected to: {backend}): {why}"));
    }
    if taps.is_empty() {
        let backends: Vec<_> = cards.iter().map(|card| card.backend.as_str()).collect();
        return Err(NetworkError::NoTap {
            backends: backends.join(", "),
        });
    }
    let open = taps.into_iter().map(|tap| {
        let namespace = interfaces::namespace(&tap.queues, process);
        let namespace = namespace.map_err(|source| NetworkError::Process {
            pid: process.pid(),
            source,
        })?;
        let namespace = namespace.as_ref().map(AsFd::as_fd);
        let filters: Vec<_> = match u16::try_from(tap.queues.len()) {
            Ok(several @ 2..) if sockets == Sockets::ForEachQueue => {
                (0..several).map(Some).collect()
            }
            _ => vec![None],
        };
        let open = |buffer| {
            let sockets = filters
                .iter()
                .map(|queue| PacketSocket::open(namespace, &tap.interface, *queue, buffer));
            let sockets: Result<Vec<_>, _> = sockets.collect();
            sockets.map_err(|source| NetworkError::Open {
                interface: tap.interface.clone(),
                card: tap.card.name.clone(),
                source,
            })
        };
        Ok(TapCard {
            address: tap.card.address,
            guest_address: tap.card.guest_address,
            sockets: open(BUFFER)?,
            earlier: match sockets {
                Sockets::ForEachQueue => open(EARLIER)?,
                Sockets::ForAll => Vec::new(),
            },
            queues: tap.queues,
            interface: tap.interface,
        })
    });
    let cards = open.collect::<Result<_, NetworkError>>()?;
    Ok(Some(OpenedNetworks { cards, without }))
}
