//! The addresses that the network cards were configured with.
//!
//! A guest may give its card another address, which `info network` then prints. The destination's
//! machine has the configured one until the guest is loaded, so cards are compared by that.

use hikkoshi_network_frames::MacAddress;
use serde_json::Value;

use super::cards::{self, Card, parse_address};
use crate::qmp::{Client, QmpError, qom};

/// Where devices are that have an `id`, and those that have none.
const NAMED: &str = "/machine/peripheral";
const UNNAMED: &str = "/machine/peripheral-anon";

/// The guest's network cards, with the configured addresses where the device is known.
pub(super) fn read_cards(client: &mut Client) -> Result<Vec<Card>, QmpError> {
    let mut cards = cards::read(client)?;
    let named = qom::children(client, NAMED)?;
    let unnamed = qom::children(client, UNNAMED)?;
    let names: Vec<_> = cards.iter().map(|card| card.name.clone()).collect();
    for card in &mut cards {
        let Some(path) = path(&card.name, &names, &named, &unnamed) else {
            continue;
        };
        let configured = qom::property(client, &path, "mac")?;
        card.address = address(configured.as_ref()).unwrap_or(card.address);
    }
    Ok(cards)
}

fn address(property: Option<&Value>) -> Option<MacAddress> {
    parse_address(property?.as_str()?)
}

/// The object of a card. QEMU calls a card without an `id` `TYPE.NUMBER`, and its object
/// `device[N]`; both count in the order in which the devices were made.
fn path(
    card: &str,
    cards: &[String],
    named: &[(String, String)],
    unnamed: &[(String, String)],
) -> Option<String> {
    if named.iter().any(|(name, _)| name == card) {
        return Some(format!("{NAMED}/{card}"));
    }
    let (kind, number) = numbered(card)?;
    let mut numbers: Vec<_> = cards
        .iter()
        .filter(|name| named.iter().all(|(other, _)| other != *name))
        .filter_map(|name| numbered(name))
        .filter_map(|(other, number)| (other == kind).then_some(number))
        .collect();
    numbers.sort_unstable();
    let of_kind = unnamed.iter().filter(|(_, other)| other == kind);
    let mut devices: Vec<u32> = of_kind
        .filter_map(|(name, _)| {
            name.strip_prefix("device[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        })
        .collect();
    devices.sort_unstable();
    // Otherwise one of them is not connected, and it is not known which.
    let complete = numbers.len() == devices.len();
    let index = numbers.iter().position(|other| *other == number)?;
    let device = devices.get(index).filter(|_| complete)?;
    Some(format!("{UNNAMED}/device[{device}]"))
}

/// `virtio-net-pci.1` as type and number.
fn numbered(name: &str) -> Option<(&str, u32)> {
    let (kind, number) = name.rsplit_once('.')?;
    Some((kind, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(listed: &[(&str, &str)]) -> Vec<(String, String)> {
        let listed = listed.iter();
        listed
            .map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned()))
            .collect()
    }

    #[test]
    fn cards_are_found_by_name_and_by_order() {
        let named = devices(&[("net0", "virtio-net-pci"), ("a.b.1", "e1000e")]);
        let unnamed = devices(&[
            ("type", "string"),
            ("device[10]", "virtio-net-pci"),
            ("device[2]", "virtio-net-pci"),
            ("device[3]", "e1000e"),
        ]);
        let cards = [
            "net0",
            "a.b.1",
            "virtio-net-pci.3",
            "virtio-net-pci.1",
            "e1000e.0",
        ]
        .map(str::to_owned);
        let of = |card: &str| path(card, &cards, &named, &unnamed);
        let at = |path: &str| Some(path.to_owned());
        assert_eq!(of("net0"), at("/machine/peripheral/net0"));
        assert_eq!(of("a.b.1"), at("/machine/peripheral/a.b.1"));
        assert_eq!(
            of("virtio-net-pci.1"),
            at("/machine/peripheral-anon/device[2]")
        );
        assert_eq!(
            of("virtio-net-pci.3"),
            at("/machine/peripheral-anon/device[10]")
        );
        assert_eq!(of("e1000e.0"), at("/machine/peripheral-anon/device[3]"));
        assert_eq!(of("other"), None);
        let fewer = &cards[..3];
        let of_fewer = path("virtio-net-pci.3", fewer, &named, &unnamed);
        assert_eq!(of_fewer, None, "one of two is not connected");
    }
}
