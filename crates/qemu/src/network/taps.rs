//! The guest's network cards that are on a tap device.

use hikkoshi_linux::Process;
use hikkoshi_network_frames::TunQueue;

use super::cards::Card;
use super::configured::read_cards;
use super::error::NetworkError;
use super::interfaces::{self, TapInterface};
use crate::qmp::Client;

/// A network card and its tap device.
#[derive(Debug)]
pub(super) struct Tap {
    pub(super) card: Card,
    /// The device's name in its network namespace.
    pub(super) interface: String,
    /// The device's queues.
    pub(super) queues: Vec<TunQueue>,
}

/// The guest's network cards, and those of them that are on a tap device.
pub(super) fn taps(
    client: &mut Client,
    process: &Process,
) -> Result<(Vec<Card>, Vec<Tap>), NetworkError> {
    taps_of(read_cards(client)?, process)
}

/// These cards, and those of them that are on a tap device.
pub(super) fn taps_of(
    cards: Vec<Card>,
    process: &Process,
) -> Result<(Vec<Card>, Vec<Tap>), NetworkError> {
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
