//! What each device, network backend and disk means for a move, for people.

use super::block::{self, Node};
use super::devices::{self, MemoryWrites};
use super::qom_tree::DEVICE_FOLDERS;
use super::survey::{self, AllowedTypes};
use super::{network, pinning};
use crate::attach::parts::{Part, Verdict};
use crate::qmp::{Client, QmpError};

fn verdict(writes: MemoryWrites, kind: &str, allowed: &AllowedTypes) -> Verdict {
    match writes {
        MemoryWrites::Tracked => Verdict::Moves,
        MemoryWrites::UntilPause(why) => Verdict::PostcopyOnly(why),
        MemoryWrites::Refused(why) => Verdict::Refused(why),
        MemoryWrites::Unknown if allowed.contains(kind) => Verdict::Allowed,
        MemoryWrites::Unknown => Verdict::Unknown,
    }
}

/// The devices that users added, and all others that are an obstacle.
pub(crate) fn devices(client: &mut Client, allowed: &AllowedTypes) -> Result<Vec<Part>, QmpError> {
    let mut found: Vec<Part> = Vec::new();
    for object in survey::objects(client)? {
        let is_part = |whole: &Part| {
            matches!(whole.verdict, Verdict::Refused(_)) && object.is_below(&whole.name)
        };
        if found.iter().any(is_part) {
            continue;
        }
        let writes = match devices::of_type(&object.kind) {
            MemoryWrites::Tracked if survey::has_scsi_passthrough(client, &object)? => {
                MemoryWrites::UntilPause(devices::SG_IO)
            }
            writes => writes,
        };
        let verdict = verdict(writes, &object.kind, allowed);
        if verdict != Verdict::Moves || is_added(&object.path) {
            found.push(Part {
                name: object.path,
                kind: object.kind,
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

/// The network backends.
pub(crate) fn networks(client: &mut Client, allowed: &AllowedTypes) -> Result<Vec<Part>, QmpError> {
    let peers = network::peers(client)?.into_iter();
    let backends = peers.filter(|peer| peer.kind != "nic");
    let part = |peer: network::Peer| Part {
        verdict: verdict(devices::of_network(&peer.kind), &peer.kind, allowed),
        name: peer.name,
        kind: peer.kind,
        detail: String::new(),
    };
    Ok(backends.map(part).collect())
}

/// What the disks are read by: the nodes below the image formats.
pub(crate) fn disks(client: &mut Client, allowed: &AllowedTypes) -> Result<Vec<Part>, QmpError> {
    let nodes = block::nodes(client)?;
    let pid = client.peer();
    let part = |node: Node| {
        let verdict = match verdict(block::of_node(&node), &node.driver, allowed) {
            Verdict::Moves if pinning::first(std::slice::from_ref(&node), pid).is_some() => {
                Verdict::Drained
            }
            verdict => verdict,
        };
        Part {
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
}
