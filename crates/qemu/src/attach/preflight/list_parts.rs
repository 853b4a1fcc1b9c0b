//! What each device, network backend and disk means for a move, for people.

use super::block::{self, Node};
use super::devices::{self, MemoryWrites};
use super::known_types::is_of_the_board;
use super::qom_tree::{DEVICE_FOLDERS, Object, UNATTACHED};
use super::{Allowed, check_devices};
use super::{network, pinning};
use crate::guest_parts::{GuestPart, Verdict};
use crate::qmp::{Client, QmpError};

fn verdict(writes: MemoryWrites, kind: &str, allowed: &Allowed) -> Verdict {
    match writes {
        MemoryWrites::Tracked => Verdict::Moves,
        MemoryWrites::UntilPause(why) => Verdict::PostcopyOnly(why),
        MemoryWrites::Refused(why) => Verdict::Refused(why),
        MemoryWrites::Unknown if allowed.has_type(kind) => Verdict::Allowed,
        MemoryWrites::Unknown => Verdict::Unknown,
    }
}

/// The devices that users added, those that QEMU made for a short option or by default, and all
/// others that are an obstacle.
pub(crate) fn devices(client: &mut Client, allowed: &Allowed) -> Result<Vec<GuestPart>, QmpError> {
    let mut found: Vec<GuestPart> = Vec::new();
    let objects = check_devices::objects(client)?;
    for object in &objects {
        let is_part = |whole: &GuestPart| {
            matches!(whole.verdict, Verdict::Refused(_)) && object.is_below(&whole.name)
        };
        if found.iter().any(is_part) {
            continue;
        }
        let writes = match devices::of_type(&object.kind) {
            MemoryWrites::Tracked if check_devices::has_scsi_passthrough(client, object)? => {
                MemoryWrites::UntilPause(devices::SG_IO)
            }
            writes => writes,
        };
        let verdict = verdict(writes, &object.kind, allowed);
        if verdict != Verdict::Moves || is_added(&object.path) || is_made_by_qemu(object, &objects)
        {
            found.push(GuestPart {
                name: object.path.clone(),
                kind: object.kind.clone(),
                detail: String::new(),
                verdict,
            });
        }
    }
    Ok(found)
}

/// Whether a user added this device, and it is not a part of another one.
fn is_added(path: &str) -> bool {
    DEVICE_FOLDERS.iter().any(|folder| {
        let name = path
            .strip_prefix(folder)
            .and_then(|rest| rest.strip_prefix('/'));
        name.is_some_and(|name| !name.contains('/'))
    })
}

/// Whether QEMU made this device itself, for an option such as `-nic` or by default, and it is
/// neither of the board nor a part of another device.
fn is_made_by_qemu(object: &Object, all: &[Object]) -> bool {
    let mut above = all.iter().filter(|other| object.is_below(&other.path));
    object.is_below(UNATTACHED)
        && !is_of_the_board(&object.kind)
        // QEMU 10.0 has the USB controller of `-usb` below the south bridge.
        && above.all(|other| is_of_the_board(&other.kind))
}

/// The network backends.
pub(crate) fn networks(client: &mut Client, allowed: &Allowed) -> Result<Vec<GuestPart>, QmpError> {
    let peers = network::peers(client)?.into_iter();
    let backends = peers.filter(|peer| peer.kind != "nic");
    let part = |peer: network::Peer| GuestPart {
        verdict: verdict(
            devices::of_network(&peer.kind, &peer.info),
            &peer.kind,
            allowed,
        ),
        name: peer.name,
        kind: peer.kind,
        detail: String::new(),
    };
    Ok(backends.map(part).collect())
}

/// What the disks are read by: the nodes below the image formats.
pub(crate) fn disks(client: &mut Client, allowed: &Allowed) -> Result<Vec<GuestPart>, QmpError> {
    let nodes = block::nodes(client)?;
    let pid = client.peer();
    let part = |node: Node| {
        let verdict = match verdict(block::of_node(&node), &node.driver, allowed) {
            Verdict::Moves if pinning::first(std::slice::from_ref(&node), pid).is_some() => {
                Verdict::Drained
            }
            verdict => verdict,
        };
        GuestPart {
            name: node.name,
            kind: node.driver,
            detail: node.file,
            verdict,
        }
    };
    let below_formats = nodes
        .into_iter()
        .filter(|node| !block::is_layer(&node.driver));
    Ok(below_formats.map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_devices_are_not_devices_that_were_added() {
        assert!(is_added("/machine/peripheral/net0"));
        assert!(is_added("/machine/peripheral-anon/device[0]"));
        for path in [
            "/machine/peripheral/net0/virtio-backend",
            "/machine/unattached/device[1]",
            "/machine/peripheralx/a",
        ] {
            assert!(!is_added(path), "{path}");
        }
    }

    #[test]
    fn devices_of_short_options_are_listed_without_the_board() {
        let objects = [
            ("/machine/i440fx/ioapic", "ioapic"),
            ("/machine/peripheral/a", "e1000"),
            ("/machine/unattached/device[0]", "qemu64-x86_64-cpu"),
            ("/machine/unattached/device[0]/lapic", "kvm-apic"),
            ("/machine/unattached/device[3]", "PIIX3"),
            ("/machine/unattached/device[3]/ide", "piix3-ide"),
            ("/machine/unattached/device[3]/uhci", "piix3-usb-uhci"),
            ("/machine/unattached/device[5]", "isa-serial"),
            ("/machine/unattached/device[5]/serial", "serial"),
            ("/machine/unattached/device[20]", "virtio-net-pci"),
            (
                "/machine/unattached/device[20]/virtio-backend",
                "virtio-net-device",
            ),
        ]
        .map(|(path, kind)| Object {
            path: path.to_owned(),
            kind: kind.to_owned(),
        });
        let listed = objects
            .iter()
            .filter(|object| is_made_by_qemu(object, &objects));
        let kinds: Vec<_> = listed.map(|object| object.kind.as_str()).collect();
        assert_eq!(kinds, ["piix3-usb-uhci", "isa-serial", "virtio-net-pci"]);
    }
}
