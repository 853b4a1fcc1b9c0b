//! Changes of what is specific to a host in a domain's description: paths of disks, bridges.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use roxmltree::Node;

use super::description::{DescriptionError, child, parse};

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

/// The description with those of the changes that can be made.
pub(super) fn apply_where_possible(
    xml: &str,
    changes: &[Change],
) -> Result<String, DescriptionError> {
    changes.iter().try_fold(xml.to_owned(), |xml, change| {
        match apply(&xml, std::slice::from_ref(change)) {
            Err(DescriptionError::NothingToSet { .. }) => Ok(xml),
            applied => applied,
        }
    })
}

/// The description with these changes.
pub(super) fn apply(xml: &str, changes: &[Change]) -> Result<String, DescriptionError> {
    let document = parse(xml)?;
    let mut edits: Vec<(Range<usize>, &str)> = Vec::new();
    for change in changes {
        let mut nodes = document.descendants();
        let (attribute, value, what) = match change {
            Change::Disk { target, path } => (
                nodes.find_map(|node| disk_source(node, target)),
                path,
                format!("disk with the target {target} and an image"),
            ),
            Change::Interface {
                address,
                kind,
                name,
            } => (
                nodes.find_map(|node| network_source(node, address, *kind)),
                name,
                format!(
                    "network card with the address {address} that is connected to a {}",
                    kind.attribute()
                ),
            ),
        };
        let range = attribute.ok_or_else(|| DescriptionError::NothingToSet {
            change: change.to_string(),
            what,
        })?;
        edits.push((range, value));
    }
    // From the end, so that the ranges before stay valid.
    edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    let mut changed = xml.to_owned();
    for (range, value) in edits {
        changed.replace_range(range, &escaped(value));
    }
    Ok(changed)
}

/// Where the image of the disk with this target is named.
fn disk_source(node: Node<'_, '_>, target: &str) -> Option<Range<usize>> {
    let is_disk = node.has_tag_name("disk")
        && child(node, "target").and_then(|node| node.attribute("dev")) == Some(target);
    let source = child(node, "source").filter(|_| is_disk)?;
    let named = ["file", "dev", "dir", "name"];
    let attribute = named.iter().find_map(|name| source.attribute_node(*name))?;
    Some(attribute.range_value())
}

/// Where the network of the card with this address is named.
fn network_source(node: Node<'_, '_>, address: &str, kind: NetworkKind) -> Option<Range<usize>> {
    let found = child(node, "mac")?.attribute("address")?;
    let is_card = node.has_tag_name("interface") && found.eq_ignore_ascii_case(address);
    let source = child(node, "source").filter(|_| is_card)?;
    Some(source.attribute_node(kind.attribute())?.range_value())
}

/// As the value of an attribute in any quotes.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for letter in value.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<domain><devices>
        <disk type='file'><source file='/a' index='1'/><target dev='vda'/></disk>
        <disk type='block'><source dev=\"/dev/b\"/><target dev='vdb'/></disk>
        <disk device='cdrom'><target dev='sda'/></disk>
        <interface type='bridge'><mac address='52:54:00:AA:bb:cc'/><source bridge='br0'/></interface>
        </devices></domain>";

    fn set(all: &[&str]) -> Result<String, DescriptionError> {
        let changes: Vec<Change> = all.iter().map(|text| text.parse().unwrap()).collect();
        for (change, text) in changes.iter().zip(all) {
            assert_eq!(change.to_string().to_lowercase(), text.to_lowercase());
        }
        apply(XML, &changes)
    }

    #[test]
    fn only_the_named_parts_change() {
        assert_eq!(set(&[]).unwrap(), XML);
        let changed = set(&[
            "interface=52:54:00:aa:BB:cc,bridge=br1",
            "disk=vda,path=/images/it's <new> & long",
            "disk=vdb,path=/dev/c",
        ]);
        let expected = XML
            .replace("'/a'", "'/images/it&apos;s &lt;new> &amp; long'")
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
