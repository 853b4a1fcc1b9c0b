//! Changes of what is specific to a host in a domain's description: paths of disks, bridges.

use std::fmt;
use std::str::FromStr;

use roxmltree::{Attribute, Node};

use super::description::{Description, DescriptionError, child};

/// A change of a domain's description. libvirt refuses it where the guest would notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Another image for a disk, by the disk's target.
    Disk {
        /// The target: `vda`.
        target: String,
        /// The image.
        path: String,
    },
    /// Another network for a network card, by the card's address.
    Interface {
        /// The address: `52:54:00:12:34:56`.
        address: String,
        /// Which attribute of the source: `bridge`, `network` or `dev`.
        kind: NetworkKind,
        /// The name.
        name: String,
    },
}

/// What a network card is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkKind {
    /// A bridge of the host.
    Bridge,
    /// A network of libvirt.
    Network,
    /// A device of the host.
    Device,
}

impl NetworkKind {
    fn attribute(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Network => "network",
            Self::Device => "dev",
        }
    }
}

/// How a change is written on the command line.
const FORM: &str = "a change has the form disk=TARGET,path=PATH or \
     interface=ADDRESS,bridge=NAME (or network=NAME, dev=NAME)";

impl FromStr for Change {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (what, new) = text.split_once(',').ok_or(FORM)?;
        let (what, which) = what.split_once('=').ok_or(FORM)?;
        let (key, value) = new.split_once('=').ok_or(FORM)?;
        if which.is_empty() || value.is_empty() {
            return Err(FORM);
        }
        let (which, value) = (which.to_owned(), value.to_owned());
        let interface = |kind| Self::Interface {
            address: which.to_lowercase(),
            kind,
            name: value.clone(),
        };
        match (what, key) {
            ("disk", "path") => Ok(Self::Disk {
                target: which,
                path: value,
            }),
            ("interface", "bridge") => Ok(interface(NetworkKind::Bridge)),
            ("interface", "network") => Ok(interface(NetworkKind::Network)),
            ("interface", "dev") => Ok(interface(NetworkKind::Device)),
            _ => Err(FORM),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { target, path } => write!(f, "disk={target},path={path}"),
            Self::Interface {
                address,
                kind,
                name,
            } => write!(f, "interface={address},{}={name}", kind.attribute()),
        }
    }
}

/// The description for libvirt, with those of the changes that can be made.
pub(super) fn apply_where_possible(
    description: &Description<'_>,
    changes: &[Change],
) -> Result<String, DescriptionError> {
    let edits = changes
        .iter()
        .filter_map(|change| edit(description, change).ok());
    description.text(&edits.collect())
}

/// The description for libvirt, with these changes.
pub(super) fn apply(
    description: &Description<'_>,
    changes: &[Change],
) -> Result<String, DescriptionError> {
    let edits = changes.iter().map(|change| edit(description, change));
    description.text(&edits.collect::<Result<_, _>>()?)
}

/// Where the change is made in the description, and what is written there.
fn edit<'a>(
    description: &Description<'_>,
    change: &'a Change,
) -> Result<(usize, &'a str), DescriptionError> {
    let mut devices = description.devices();
    let (attribute, value, what) = match change {
        Change::Disk { target, path } => (
            devices.find_map(|node| disk_source(node, target)),
            path,
            format!("disk with the target {target} and an image"),
        ),
        Change::Interface {
            address,
            kind,
            name,
        } => (
            devices.find_map(|node| network_source(node, address, *kind)),
            name,
            format!(
                "network card with the address {address} that is connected to a {}",
                kind.attribute()
            ),
        ),
    };
    let attribute = attribute.ok_or_else(|| DescriptionError::NothingToSet {
        change: change.to_string(),
        what,
    })?;
    Ok((attribute.range_value().start, value))
}

/// Where the image of the disk with this target is named.
fn disk_source<'a, 'input>(node: Node<'a, 'input>, target: &str) -> Option<Attribute<'a, 'input>> {
    let is_disk = node.has_tag_name("disk")
        && child(node, "target").and_then(|node| node.attribute("dev")) == Some(target);
    let source = child(node, "source").filter(|_| is_disk)?;
    let named = ["file", "dev", "dir", "name"];
    named.iter().find_map(|name| source.attribute_node(*name))
}

/// Where the network of the card with this address is named.
fn network_source<'a, 'input>(
    node: Node<'a, 'input>,
    address: &str,
    kind: NetworkKind,
) -> Option<Attribute<'a, 'input>> {
    let found = child(node, "mac")?.attribute("address")?;
    let is_card = node.has_tag_name("interface") && found.eq_ignore_ascii_case(address);
    let source = child(node, "source").filter(|_| is_card)?;
    source.attribute_node(kind.attribute())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";

    /// As it is written for libvirt.
    fn xml() -> String {
        format!(
            "<domain type=\"kvm\"><name>guest</name><uuid>{UUID}</uuid><metadata><disk>\
             <source file=\"/m\"/><target dev=\"vda\"/></disk></metadata><devices>\
             <disk type=\"file\"><source file=\"/a\" index=\"1\"/><target dev=\"vda\"/></disk>\
             <disk type=\"block\"><source dev=\"/dev/b\"/><target dev=\"vdb\"/></disk>\
             <disk device=\"cdrom\"><target dev=\"sda\"/></disk><interface type=\"bridge\">\
             <mac address=\"52:54:00:AA:bb:cc\"/><source bridge=\"br0\"/></interface>\
             </devices></domain>"
        )
    }

    fn set(all: &[&str]) -> Result<String, DescriptionError> {
        let changes: Vec<Change> = all.iter().map(|text| text.parse().unwrap()).collect();
        for (change, text) in changes.iter().zip(all) {
            assert_eq!(change.to_string().to_lowercase(), text.to_lowercase());
        }
        let xml = xml();
        let description = Description::check(&xml, "guest", UUID, false).unwrap();
        let possible = apply_where_possible(&description, &changes).unwrap();
        let applied = apply(&description, &changes);
        assert!(applied.is_err() || applied == Ok(possible));
        applied
    }

    #[test]
    fn only_the_named_parts_change() {
        assert_eq!(set(&[]).unwrap(), xml());
        let changed = set(&[
            "interface=52:54:00:aa:BB:cc,bridge=br1",
            "disk=vda,path=/images/it's <new> & long",
            "disk=vdb,path=/dev/c",
        ]);
        let expected = xml()
            .replace("\"/a\"", "\"/images/it&apos;s &lt;new&gt; &amp; long\"")
            .replace("/dev/b", "/dev/c")
            .replace("br0", "br1");
        assert_eq!(changed.unwrap(), expected);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        for (change, what) in [
            ("disk=vdc,path=/x", "no disk with the target vdc"),
            (
                "disk=sda,path=/x",
                "no disk with the target sda and an image",
            ),
            ("interface=1,bridge=b", "no network card with the address 1"),
            (
                "interface=52:54:00:aa:bb:cc,network=n",
                "connected to a network",
            ),
        ] {
            let error = set(&[change]).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert!(error.starts_with(&format!("--set {change}: ")), "{error}");
        }
        for bad in [
            "",
            "disk=vda",
            "disk=vda,file=/x",
            "disk=,path=/x",
            "disk=vda,path=",
        ] {
            assert_eq!(bad.parse::<Change>().unwrap_err(), FORM);
        }
    }
}
