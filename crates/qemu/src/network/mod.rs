//! The guest's networks: frames that arrive for it while it is paused.
//!
//! Each network card with a tap device (`cards.rs`, `interfaces.rs`) takes part: the source captures
//! what arrives there ([`capture`]), the destination delivers it to the card with the same address
//! ([`deliver`]). Other backends (user networking, sockets) have no place where frames could be
//! captured or delivered.

mod capture;
mod cards;
mod delivery;
mod interfaces;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use hikkoshi_engine::{FrameCapture, FrameDelivery};
use hikkoshi_frames::{MacAddress, OpenError, PacketSocket, TunQueue};
use hikkoshi_linux::Process;
use thiserror::Error;

use self::capture::TapCapture;
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
    socket: PacketSocket,
    queues: Vec<TunQueue>,
}

/// Opens the networks of the source's guest; `None` if the guest has no network card.
pub(crate) fn capture(
    client: &mut Client,
    process: &Arc<Process>,
) -> Result<Option<Box<dyn FrameCapture>>, NetworkError> {
    let cards = open(client, process)?;
    Ok(cards.map(|cards| Box::new(TapCapture::new(cards)) as Box<dyn FrameCapture>))
}

/// Opens the networks of the destination's machine; `None` if it has no network card.
pub(crate) fn deliver(
    client: &mut Client,
    process: &Arc<Process>,
) -> Result<Option<Box<dyn FrameDelivery>>, NetworkError> {
    let cards = open(client, process)?;
    Ok(cards.map(|cards| Box::new(TapDelivery::new(cards)) as Box<dyn FrameDelivery>))
}

fn open(client: &mut Client, process: &Process) -> Result<Option<Vec<TapCard>>, NetworkError> {
    let cards = cards::read(client)?;
    if cards.is_empty() {
        return Ok(None);
    }
    let failed = |source| NetworkError::Process {
        pid: process.pid(),
        source,
    };
    let interfaces = interfaces::read(process).map_err(failed)?;
    let namespace = interfaces::namespace(process).map_err(failed)?;
    let mut open = Vec::new();
    for (card, interface) in interfaces::assign(&cards, &interfaces) {
        let Some(TapInterface { name, descriptors }) = interface else {
            tracing::info!(
                card = card.name,
                backend = card.backend,
                "frames that arrive for this network card while the guest is paused are lost: it has \
                 no tap device that is known"
            );
            continue;
        };
        let socket = PacketSocket::open(namespace.as_ref().map(AsFd::as_fd), name);
        let socket = socket.map_err(|source| NetworkError::Open {
            interface: name.clone(),
            card: card.name.clone(),
            source,
        })?;
        let queues = descriptors.iter().map(|&number| process.descriptor(number));
        open.push(TapCard {
            address: card.address,
            socket,
            queues: queues
                .map(|queue| queue.map(TunQueue::new))
                .collect::<Result<_, _>>()
                .map_err(failed)?,
        });
    }
    if open.is_empty() {
        let backends: Vec<_> = cards.iter().map(|card| card.backend.as_str()).collect();
        return Err(NetworkError::NoTap {
            backends: backends.join(", "),
        });
    }
    Ok(Some(open))
}
