//! The guest's networks: frames that arrive for it while it is paused.
//!
//! Each network card with a tap device (`cards.rs`, `interfaces.rs`) takes part: the source captures
//! what arrives there ([`capture()`]), the destination delivers it to the card with the same address
//! ([`deliver`]). Other backends (user networking, sockets) have no place where frames could be
//! captured or delivered.

mod announcer;
mod capture;
mod cards;
mod configured;
mod delivery;
mod interfaces;
pub(crate) mod overview;
pub(crate) mod rx_filter;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use hikkoshi_engine::{FrameCapture, FrameDelivery};
use hikkoshi_frames::{MacAddress, OpenError, PacketSocket, TunQueue};
use hikkoshi_linux::Process;
use thiserror::Error;

pub(crate) use self::announcer::Announcer;
use self::capture::TapCapture;
use self::cards::Card;
use self::delivery::TapDelivery;
use self::interfaces::TapInterface;
use crate::qmp::{Client, QmpError};

/// Frames cannot be captured or delivered.
#[derive(Debug, Error)]
pub(crate) enum NetworkError {
    /// Asking QEMU.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// Reading which devices QEMU has open.
    #[error("reading the network devices of QEMU's process {pid}")]
    Process {
        /// The process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// A packet socket.
    #[error("opening the tap device {interface} of the network card {card}")]
    Open {
        /// The device.
        interface: String,
        /// The card.
        card: String,
        /// Why.
        source: OpenError,
    },
    /// No card has a tap device.
    #[error(
        "none of the guest's network cards has a tap device that is known (they are connected to: \
         {backends})"
    )]
    NoTap {
        /// The types of the backends.
        backends: String,
    },
}

/// A network card on a tap device.
#[derive(Debug)]
struct TapCard {
    address: MacAddress,
    guest_address: MacAddress,
    /// The device's name in its network namespace.
    interface: String,
    /// One for each queue at the source, one for all at the destination.
    sockets: Vec<PacketSocket>,
    queues: Vec<TunQueue>,
}

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
    let opened = open(client, process, Sockets::ForAll)?;
    for card in opened.iter().flat_map(|opened| &opened.without) {
        tracing::info!(card, "frames are not delivered to this network card");
    }
    Ok(opened.map(|opened| Box::new(TapDelivery::new(opened.cards)) as Box<dyn FrameDelivery>))
}

/// A network card and its tap device.
#[derive(Debug)]
struct Tap {
    card: Card,
    /// The device's name in its network namespace.
    interface: String,
    /// The device's queues.
    queues: Vec<TunQueue>,
}

/// The guest's network cards, and those of them that are on a tap device.
fn taps(client: &mut Client, process: &Process) -> Result<(Vec<Card>, Vec<Tap>), NetworkError> {
    let cards = cards::read(client)?;
    let failed = |source| NetworkError::Process {
        pid: process.pid(),
        source,
    };
    let mut taps = Vec::new();
    if cards.is_empty() {
        return Ok((cards, taps));
    }
    let interfaces = interfaces::read(process).map_err(failed)?;
    for (card, interface) in interfaces::assign(&cards, &interfaces) {
        let Some(TapInterface { name, descriptors }) = interface else {
            continue;
        };
        let queues = descriptors.iter().map(|&number| process.descriptor(number));
        taps.push(Tap {
            card: card.clone(),
            interface: name.clone(),
            queues: queues
                .map(|queue| queue.map(TunQueue::new))
                .collect::<Result<_, _>>()
                .map_err(failed)?,
        });
    }
    Ok((cards, taps))
}

/// Which packet sockets a tap device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sockets {
    ForAll,
    ForEachQueue,
}

/// The guest's networks.
#[derive(Debug)]
struct OpenedNetworks {
    cards: Vec<TapCard>,
    /// The other network cards, and why they do not take part; for people.
    without: Vec<String>,
}

fn open(
    client: &mut Client,
    process: &Process,
    sockets: Sockets,
) -> Result<Option<OpenedNetworks>, NetworkError> {
    let (cards, mut taps) = taps(client, process)?;
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
        let filters = match u16::try_from(tap.queues.len()) {
            Ok(several @ 2..) if sockets == Sockets::ForEachQueue => {
                (0..several).map(Some).collect()
            }
            _ => vec![None],
        };
        let sockets = filters
            .into_iter()
            .map(|queue| PacketSocket::open(namespace, &tap.interface, queue));
        Ok(TapCard {
            address: tap.card.address,
            guest_address: tap.card.guest_address,
            sockets: sockets
                .collect::<Result<_, _>>()
                .map_err(|source| NetworkError::Open {
                    interface: tap.interface.clone(),
                    card: tap.card.name,
                    source,
                })?,
            queues: tap.queues,
            interface: tap.interface,
        })
    });
    let cards = open.collect::<Result<_, NetworkError>>()?;
    Ok(Some(OpenedNetworks { cards, without }))
}
