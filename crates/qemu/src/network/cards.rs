//! The guest's network cards and their backends, as QEMU's `info network` prints them.

use hikkoshi_network_frames::MacAddress;
use serde_json::json;

use crate::qmp::{Client, QmpError};

/// A network card of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    /// QEMU's name of the card.
    pub(super) name: String,
    /// The address that it was configured with, from [`configured`](super::configured); the guest's
    /// if that is not known.
    pub(super) address: MacAddress,
    /// The address that the guest has given it.
    pub(super) guest_address: MacAddress,
    /// The type of its backend, as for `-netdev`.
    pub(super) backend: String,
    /// The tap device that QEMU opened.
    pub(super) interface: Option<String>,
    /// The descriptor of the tap device that was passed to QEMU.
    pub(super) descriptor: Option<i32>,
}

/// All network cards that are connected.
pub(super) fn read(client: &mut Client) -> Result<Vec<Card>, QmpError> {
    let command = json!({ "command-line": "info network" });
    let answer = client.execute("human-monitor-command", command)?;
    Ok(parse(answer.as_str().unwrap_or_default()))
}

/// `virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:…`, and in the next line the
/// backend: ` \ n0: index=0,type=tap,ifname=tap0,script=no,downscript=no`. A card with several
/// queues has such a pair of lines for each, of which the first has the address; without `id=` each
/// line has another name. Lines of another form are skipped: frames of a card that is not
/// understood are not kept.
fn parse(text: &str) -> Vec<Card> {
    let mut cards: Vec<Card> = Vec::new();
    let mut last: Option<(String, MacAddress)> = None;
    for line in text.lines() {
        let line = line.trim();
        let backend = line.strip_prefix('\\').map(str::trim_start);
        let Some((name, fields)) = backend.unwrap_or(line).split_once(": index=") else {
            last = None;
            continue;
        };
        let field = |key: &str| {
            let mut fields = fields.split(',');
            fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
        };
        if backend.is_none() {
            let address = field("macaddr").and_then(parse_address);
            last = address
                .filter(|_| field("type") == Some("nic") && fields.starts_with("0,"))
                .map(|address| (name.to_owned(), address));
            continue;
        }
        let Some((name, address)) = last.take() else {
            continue;
        };
        cards.push(Card {
            name,
            address,
            guest_address: address,
            backend: field("type").unwrap_or("unknown").to_owned(),
            interface: field("ifname").map(str::to_owned),
            descriptor: field("fd").and_then(|number| number.parse().ok()),
        });
    }
    cards
}

pub(super) fn parse_address(text: &str) -> Option<MacAddress> {
    let mut address = MacAddress::default();
    let mut bytes = text.split(':');
    for byte in &mut address {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    bytes.next().is_none().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_with_their_backends() {
        let captured = "hub 1\r\n \\ h2: u2: index=0,type=user,net=10.0.2.0,restrict=off\r\n\
            s: index=0,type=socket,\r\n\
            net0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \
            \\ n0: index=0,type=tap,ifname=tap0,script=no,downscript=no\r\n\
            net0: index=1,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\r\n \
            \\ n0: index=1,type=tap,ifname=tap0,script=no,downscript=no\r\n\
            e1000.0: index=0,type=nic,model=e1000,macaddr=52:54:00:ff:34:57\r\n \
            \\ n1: index=0,type=tap,fd=31\r\n\
            virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:60\r\n \
            \\ n3: index=0,type=tap,fd=33\r\n\
            virtio-net-pci.1: index=1,type=nic,\r\n \
            \\ n3: index=1,type=tap,fd=34\r\n\
            e1000.1: index=0,type=nic,model=e1000,macaddr=52:54:00:12:34:58\r\n \
            \\ n2: index=0,type=user,net=10.0.2.0,restrict=off\r\n\
            e1000.2: index=0,type=nic,model=e1000,macaddr=52:54:00:12:34:59\r\n";
        let card = |name: &str, last, backend: &str, interface: Option<&str>, descriptor| {
            let middle = if last == 0x57 { 0xff } else { 0x12 };
            let address = [0x52, 0x54, 0, middle, 0x34, last];
            Card {
                name: name.to_owned(),
                address,
                guest_address: address,
                backend: backend.to_owned(),
                interface: interface.map(str::to_owned),
                descriptor,
            }
        };
        assert_eq!(
            parse(captured),
            [
                card("net0", 0x56, "tap", Some("tap0"), None),
                card("e1000.0", 0x57, "tap", None, Some(31)),
                card("virtio-net-pci.0", 0x60, "tap", None, Some(33)),
                card("e1000.1", 0x58, "user", None, None),
            ]
        );
        assert_eq!(parse(""), []);
    }

    #[test]
    fn odd_lines_are_skipped() {
        for line in [
            " \\ n0: index=0,type=tap,ifname=tap0",
            "net0: index=0,type=nic,macaddr=52:54:00\r\n \\ n0: index=0,type=tap,ifname=tap0",
            "net0: index=0,type=nic,macaddr=52:54:00:12:34:56:78\r\n \\ n0: index=0,type=tap",
            "net0: index=0,type=nic\r\n \\ n0: index=0,type=tap,ifname=tap0",
        ] {
            assert_eq!(parse(line), [], "{line}");
        }
    }
}
