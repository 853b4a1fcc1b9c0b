//! What a domain's XML says, and what of it is refused.
//!
//! libvirt reads XML by libxml2, which differs from the parser here: it follows the declared
//! encoding, and libvirt compares most names without their namespace. So libvirt does not get the
//! text that was checked, but what the checks have read, written again ([`write()`]).

#[cfg(any(feature = "libvirt", test))]
use std::path::{Path, PathBuf};

#[cfg(any(feature = "libvirt", test))]
use hikkoshi_qemu::OwnedCard;
use hikkoshi_wire::MAX_DOMAIN_XML;
use quick_xml::Reader;
use quick_xml::events::Event;
use roxmltree::{Document, Node};
use thiserror::Error;

use super::write_description::{Edits, write};

/// A source's description of a domain that is not used here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DescriptionError {
    /// It is not XML.
    #[error("reading the description of the domain: {what}")]
    Syntax {
        /// What is wrong with it.
        what: String,
    },
    /// It does not describe a domain for QEMU.
    #[error("the description of the domain has no <{element}> that can be used")]
    Missing {
        /// What is missing.
        element: &'static str,
    },
    /// It has an element twice of which libvirt uses one.
    #[error("the description of the domain has more than one <{element}>")]
    Repeated {
        /// The element.
        element: &'static str,
    },
    /// It has an element or attribute that is not libvirt's.
    #[error(
        "the description of the domain has {name} of the namespace '{namespace}' outside of \
         <metadata>, which libvirt may read as its own"
    )]
    Foreign {
        /// The element, or the attribute.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// Two parts of the offer differ.
    #[error(
        "the source offers the domain {offered}, and its description has the {what} {described:?}"
    )]
    Differs {
        /// The offered domain.
        offered: String,
        /// What differs.
        what: &'static str,
        /// What the description says.
        described: String,
    },
    /// It passes arguments to QEMU that libvirt does not check.
    #[error(
        "the description of the domain passes arguments directly to QEMU (<{element}>), which \
         libvirt does not check: pass a description without it with --xml, or allow it with \
         --allow-qemu-arguments"
    )]
    Arguments {
        /// The element.
        element: String,
    },
    /// It has snapshots that would not fit.
    #[error(
        "the domain has snapshots, whose descriptions name the images of its disks at the source: \
         with '--set disk=' they would not be those of the domain here (use the same paths at both \
         hosts, or let the source's libvirt forget them: 'virsh snapshot-delete --metadata')"
    )]
    Snapshots,
    /// There is nothing to be changed.
    #[error("--set {change}: the domain has no {what}")]
    NothingToSet {
        /// The option's value.
        change: String,
        /// What was looked for.
        what: String,
    },
}

/// libvirt's extension of domains for QEMU's own options.
const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Where libvirt keeps the state of an emulated TPM, by the domain's UUID, if no other place is
/// named.
#[cfg(any(feature = "libvirt", test))]
const TPM_STATES: &str = "/var/lib/libvirt/swtpm";

/// The deepest nesting, and the most namespaces that are declared at one place. libxml2 has the
/// same limit of depth; libvirt declares one namespace, and programs a few in `<metadata>`.
const MAX_DEPTH: usize = 256;
const MAX_NAMESPACES: usize = 64;

/// Elements of `<domain>` of which there may be one: checks here read them, and libvirt reads the
/// first of some, and all of others.
const UNIQUE: [&str; 4] = ["name", "uuid", "devices", "metadata"];

/// Elements of a snapshot that describe the domain: as it ran, and as it would have been started.
const SNAPSHOT_DOMAINS: [&str; 2] = ["domain", "inactiveDomain"];

/// A description that was checked.
#[derive(Debug)]
pub(super) struct Description<'a>(Document<'a>);

impl<'a> Description<'a> {
    /// Checks that this is the XML of the domain `name` with this UUID, and that its source may
    /// decide everything in it.
    pub(super) fn check(
        xml: &'a str,
        name: &str,
        uuid: &str,
        allow_arguments: bool,
    ) -> Result<Self, DescriptionError> {
        let document = parse(xml)?;
        let root = document.root_element();
        check_names(root, Place::Domain)?;
        if !root.has_tag_name("domain") {
            return Err(DescriptionError::Missing { element: "domain" });
        }
        check_domain(root, name, uuid, allow_arguments)?;
        Ok(Self(document))
    }

    /// Checks that this is the XML of a snapshot of the domain `name` with this UUID. What it says
    /// of the domain at that time is checked as a description of the domain is.
    pub(super) fn check_snapshot(
        xml: &'a str,
        name: &str,
        uuid: &str,
        allow_arguments: bool,
    ) -> Result<Self, DescriptionError> {
        let document = parse(xml)?;
        let root = document.root_element();
        check_names(root, Place::Snapshot)?;
        if !root.has_tag_name("domainsnapshot") {
            let element = "domainsnapshot";
            return Err(DescriptionError::Missing { element });
        }
        for element in SNAPSHOT_DOMAINS {
            let mut found = root.children().filter(|child| is(*child, element));
            if let Some(domain) = found.next() {
                check_domain(domain, name, uuid, allow_arguments)?;
            }
            if found.next().is_some() {
                return Err(DescriptionError::Repeated { element });
            }
        }
        Ok(Self(document))
    }

    /// Where libvirt keeps the states of the domain's emulated TPMs.
    #[cfg(any(feature = "libvirt", test))]
    pub(super) fn tpm_folders(&self, uuid: &str) -> Vec<PathBuf> {
        let tpms = self.devices().filter(|device| is(*device, "tpm"));
        let backends = tpms.filter_map(|tpm| child(tpm, "backend"));
        let emulated = backends.filter(|backend| backend.attribute("type") == Some("emulator"));
        let folders = emulated.map(|backend| {
            let source = child(backend, "source").and_then(|source| source.attribute("path"));
            source.map_or_else(|| Path::new(TPM_STATES).join(uuid), PathBuf::from)
        });
        folders.collect()
    }

    /// The domain's devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = Node<'_, 'a>> {
        let devices = child(self.0.root_element(), "devices");
        devices.into_iter().flat_map(|devices| devices.children())
    }

    /// The text for libvirt, with these changes.
    pub(super) fn text(&self, edits: &Edits<'_>) -> Result<String, DescriptionError> {
        write(&self.0, edits).map_err(|error| DescriptionError::Syntax {
            what: format!("writing it: {error}"),
        })
    }
}

/// Checks an element that describes the domain `name` with this UUID.
fn check_domain(
    element: Node<'_, '_>,
    name: &str,
    uuid: &str,
    allow_arguments: bool,
) -> Result<(), DescriptionError> {
    if !is_uuid(uuid) {
        return Err(DescriptionError::Missing { element: "uuid" });
    }
    if !matches!(element.attribute("type"), Some("kvm" | "qemu")) {
        return Err(DescriptionError::Missing { element: "domain" });
    }
    for unique in UNIQUE {
        let found = element.children().filter(|child| is(*child, unique));
        if found.count() > 1 {
            return Err(DescriptionError::Repeated { element: unique });
        }
    }
    for (what, offered) in [("name", name), ("uuid", uuid)] {
        let described = text(element, what).ok_or(DescriptionError::Missing { element: what })?;
        if described != offered {
            return Err(DescriptionError::Differs {
                offered: format!("{name} ({uuid})"),
                what,
                described,
            });
        }
    }
    let mut extensions = element
        .descendants()
        .filter(|node| namespace(*node) == Some(QEMU_NAMESPACE));
    match extensions.next() {
        Some(node) if !allow_arguments => Err(DescriptionError::Arguments {
            element: format!("qemu:{}", node.tag_name().name()),
        }),
        _ => Ok(()),
    }
}

/// Parses the XML of a domain.
fn parse(xml: &str) -> Result<Document<'_>, DescriptionError> {
    let syntax = |what: String| DescriptionError::Syntax { what };
    if xml.len() > MAX_DOMAIN_XML {
        return Err(syntax(format!("it has more than {MAX_DOMAIN_XML} bytes")));
    }
    if xml.contains('\0') {
        return Err(syntax("it has a zero byte".to_owned()));
    }
    check_depth(xml)?;
    Document::parse(xml).map_err(|error| syntax(error.to_string()))
}

/// Checks how deep the elements are, before the parser calls itself for each level: 80,000 of them,
/// for which a description has room, need more than its thread's stack.
fn check_depth(xml: &str) -> Result<(), DescriptionError> {
    let syntax = |what: String| DescriptionError::Syntax { what };
    let mut reader = Reader::from_str(xml);
    let mut depth = 0_usize;
    loop {
        match reader.read_event() {
            Ok(Event::Start(_)) if depth == MAX_DEPTH => {
                return Err(syntax(format!("it is more than {MAX_DEPTH} elements deep")));
            }
            Ok(Event::Start(_)) => depth += 1,
            Ok(Event::End(_)) => depth = depth.saturating_sub(1),
            Ok(Event::Eof) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(syntax(error.to_string())),
        }
    }
}

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A snapshot of the domain.
    Snapshot,
    /// The domain itself.
    Domain,
    /// One of libvirt's.
    Libvirts,
    /// One of libvirt's extension for QEMU.
    Qemus,
    /// Any program's, which libvirt keeps and does not read.
    Metadata,
}

/// Checks that libvirt's elements and attributes are in no namespace, as libvirt compares most of
/// their names without it, and those of its extension for QEMU in that.
fn check_names(node: Node<'_, '_>, place: Place) -> Result<(), DescriptionError> {
    // Elsewhere, each is compared with those of the element above.
    if node.namespaces().nth(MAX_NAMESPACES).is_some() {
        return Err(DescriptionError::Syntax {
            what: format!("more than {MAX_NAMESPACES} namespaces are declared at one place"),
        });
    }
    let foreign = |name: String, namespace: &str| DescriptionError::Foreign {
        name,
        namespace: namespace.to_owned(),
    };
    let uri = namespace(node);
    let expected = (place == Place::Qemus).then_some(QEMU_NAMESPACE);
    if place != Place::Metadata {
        if uri != expected {
            let name = format!("<{}>", node.tag_name().name());
            return Err(foreign(name, uri.unwrap_or_default()));
        }
        let mut attributes = node.attributes();
        let found = attributes.find_map(|found| Some((found.name(), found.namespace()?)));
        if let Some((name, uri)) = found {
            return Err(foreign(format!("the attribute '{name}'"), uri));
        }
    }
    for below in node.children().filter(Node::is_element) {
        let below_place = match place {
            Place::Snapshot if SNAPSHOT_DOMAINS.iter().any(|name| is(below, name)) => Place::Domain,
            Place::Snapshot => Place::Libvirts,
            Place::Domain if is(below, "metadata") => Place::Metadata,
            Place::Domain if namespace(below) == Some(QEMU_NAMESPACE) => Place::Qemus,
            Place::Domain => Place::Libvirts,
            other => other,
        };
        check_names(below, below_place)?;
    }
    Ok(())
}

/// The network cards of a running domain.
#[cfg(any(feature = "libvirt", test))]
pub(super) fn cards(xml: &str) -> Vec<OwnedCard> {
    let Ok(document) = parse(xml) else {
        return Vec::new();
    };
    let interfaces = document
        .descendants()
        .filter(|node| node.has_tag_name("interface"));
    interfaces
        .filter_map(|interface| {
            let attribute = |element, name| child(interface, element)?.attribute(name);
            Some(OwnedCard {
                name: attribute("alias", "name")?.to_owned(),
                address: address(attribute("mac", "address")?)?,
                interface: attribute("target", "dev").map(str::to_owned),
            })
        })
        .collect()
}

/// The name of this snapshot, and the file with the guest's memory, if that is not in an image.
#[cfg(feature = "libvirt")]
pub(crate) fn external_memory(snapshot: &[u8]) -> Option<(String, String)> {
    let document = parse(std::str::from_utf8(snapshot).ok()?).ok()?;
    let root = document.root_element();
    let memory = child(root, "memory")?;
    (memory.attribute("snapshot") == Some("external")).then(|| {
        let file = memory.attribute("file").unwrap_or("another file");
        (text(root, "name").unwrap_or_default(), file.to_owned())
    })
}

/// Whether it has libvirt's form, in which it is part of file names here.
fn is_uuid(text: &str) -> bool {
    text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(any(feature = "libvirt", test))]
fn address(text: &str) -> Option<[u8; 6]> {
    let mut address = [0; 6];
    let mut bytes = text.split(':');
    for byte in &mut address {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    bytes.next().is_none().then_some(address)
}

/// The namespace of an element. An empty one (`xmlns=""`) is none.
fn namespace<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    node.tag_name().namespace().filter(|uri| !uri.is_empty())
}

/// Whether it is libvirt's element `name`.
fn is(node: Node<'_, '_>, name: &str) -> bool {
    node.has_tag_name(name) && namespace(node).is_none()
}

pub(super) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| is(*child, name))
}

/// All of the text in the element `name`; `None` if there is none, or it has elements.
fn text(node: Node<'_, '_>, name: &str) -> Option<String> {
    let element = child(node, name)?;
    if element.children().any(|child| child.is_element()) {
        return None;
    }
    let parts = element.children().filter(Node::is_text);
    Some(parts.filter_map(|part| part.text()).collect())
}

#[cfg(test)]
#[path = "description_tests.rs"]
mod tests;
