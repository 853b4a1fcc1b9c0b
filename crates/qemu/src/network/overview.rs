//! The guest's network cards, for people.

use hikkoshi_linux::Process;
use serde::Serialize;

use super::{cards, interfaces};
use crate::qmp::{Client, QmpError};

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CardPart {
    /// QEMU's name of the card.
    pub name: String,
    /// The type of its backend, as for `-netdev`.
    pub backend: String,
    /// The tap device, where frames that arrive during the switchover are captured. `None`: it has
    /// none, or which one is not known for certain.
    pub interface: Option<String>,
}

/// The network cards that are connected. A process whose descriptors cannot be read has no known
/// tap devices.
pub(crate) fn cards(client: &mut Client, process: &Process) -> Result<Vec<CardPart>, QmpError> {
    let cards = cards::read(client)?;
    let interfaces = interfaces::read(process).unwrap_or_default();
    let assigned = interfaces::assign(&cards, &interfaces).into_iter();
    let part = |(card, interface): (&cards::Card, Option<&interfaces::TapInterface>)| CardPart {
        name: card.name.clone(),
        backend: card.backend.clone(),
        interface: interface.map(|interface| interface.name.clone()),
    };
    Ok(assigned.map(part).collect())
}
