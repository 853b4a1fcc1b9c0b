//! What a domain's XML says, and what of it is refused.

#[cfg(any(feature = "libvirt", test))]
use hikkoshi_qemu::OwnedCard;
use hikkoshi_wire::MAX_DOMAIN_XML;
use roxmltree::{Document, Node};
use thiserror::Error;

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
    /// Two parts of the offer differ.
    #[error(
        "the source offers the domain {offered}, and its description has the {what} {described}"
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
    /// It has a TPM.
    #[error(
        "the domain has a TPM (<tpm>). Memory that QEMU shares with the guest's firmware for it \
         (tpm-ppi) is in QEMU's heap, where it cannot be found without QEMU's monitor, which \
         libvirt does not lend while it creates a domain (move the domain with 'virsh migrate', or \
         to a QEMU without libvirt with 'hikkoshi receive --qmp')"
    )]
    Tpm,
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

/// Parses the XML of a domain.
pub(super) fn parse(xml: &str) -> Result<Document<'_>, DescriptionError> {
    let syntax = |what: String| DescriptionError::Syntax { what };
    if xml.len() > MAX_DOMAIN_XML {
        return Err(syntax(format!("it has more than {MAX_DOMAIN_XML} bytes")));
    }
    if xml.contains('\0') {
        return Err(syntax("it has a zero byte".to_owned()));
    }
    Document::parse(xml).map_err(|error| syntax(error.to_string()))
}

/// Checks that this is the XML of the domain `name` with this UUID, and that its source may decide
/// everything in it.
pub(super) fn check(
    xml: &str,
    name: &str,
    uuid: &str,
    allow_arguments: bool,
) -> Result<(), DescriptionError> {
    let document = parse(xml)?;
    let root = document.root_element();
    if !is_uuid(uuid) {
        return Err(DescriptionError::Missing { element: "uuid" });
    }
    let is_domain =
        root.has_tag_name("domain") && matches!(root.attribute("type"), Some("kvm" | "qemu"));
    if !is_domain {
        return Err(DescriptionError::Missing { element: "domain" });
    }
    for (what, offered) in [("name", name), ("uuid", uuid)] {
        let described = text(root, what).ok_or(DescriptionError::Missing { element: what })?;
        if described != offered {
            return Err(DescriptionError::Differs {
                offered: format!("{name} ({uuid})"),
                what,
                described: described.to_owned(),
            });
        }
    }
    let mut extensions = root
        .descendants()
        .filter(|node| node.tag_name().namespace() == Some(QEMU_NAMESPACE));
    match extensions.next() {
        Some(node) if !allow_arguments => Err(DescriptionError::Arguments {
            element: format!("qemu:{}", node.tag_name().name()),
        }),
        _ => Ok(()),
    }
}

/// Checks that a domain with this XML can be received.
pub(super) fn check_devices(xml: &str) -> Result<(), DescriptionError> {
    let document = parse(xml)?;
    let mut devices = child(document.root_element(), "devices")
        .into_iter()
        .flat_map(|devices| devices.children());
    match devices.any(|device| device.has_tag_name("tpm")) {
        true => Err(DescriptionError::Tpm),
        false => Ok(()),
    }
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

pub(super) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn text<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    child(node, name)?.text().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const XML: &str = "<domain type='qemu' id='3'><name>guest</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid><devices>
        <interface type='bridge'><mac address='52:54:00:aa:bb:cc'/><source bridge='br0'/>
        <target dev='vnet4'/><model type='virtio'/><alias name='net0'/></interface>
        <interface type='user'><mac address='52:54:00:aa:bb:cd'/><alias name='net1'/></interface>
        </devices></domain>";

    #[test]
    fn a_description_must_be_of_the_offered_domain() {
        assert_eq!(
            check(XML, "guest", "6695eb01-f6a4-8304-79aa-97f2502e193f", false),
            Ok(())
        );
        let error = |xml: &str| {
            check(xml, "guest", "6695eb01-f6a4-8304-79aa-97f2502e193f", false).unwrap_err()
        };
        assert!(matches!(error("<domain"), DescriptionError::Syntax { .. }));
        let other = error(&XML.replace(
            "6695eb01-f6a4-8304-79aa-97f2502e193f",
            "6695eb01-f6a4-8304-79aa-97f2502e1930",
        ))
        .to_string();
        assert_eq!(
            other,
            "the source offers the domain guest (6695eb01-f6a4-8304-79aa-97f2502e193f), and its description has the uuid 6695eb01-f6a4-8304-79aa-97f2502e1930"
        );
        for without in [
            XML.replace("'qemu'", "'lxc'"),
            XML.replace("domain", "network"),
            XML.replace("<name>guest</name>", ""),
        ] {
            let missing = error(&without);
            assert!(
                matches!(missing, DescriptionError::Missing { .. }),
                "{missing}"
            );
        }
        // Neither external entities nor expansions.
        let entity = "<!DOCTYPE d [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><domain>&e;</domain>";
        assert!(matches!(error(entity), DescriptionError::Syntax { .. }));
        let long = format!("<domain>{}</domain>", " ".repeat(MAX_DOMAIN_XML));
        assert!(matches!(error(&long), DescriptionError::Syntax { .. }));
        assert!(matches!(
            error("<domain>\0"),
            DescriptionError::Syntax { .. }
        ));
    }

    #[test]
    fn qemus_own_arguments_are_refused() {
        let with = XML.replace("<devices>", "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:arg value='-drive'/></q:commandline><devices>");
        let error = check(
            &with,
            "guest",
            "6695eb01-f6a4-8304-79aa-97f2502e193f",
            false,
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("<qemu:commandline>"), "{error}");
        assert_eq!(
            check(&with, "guest", "6695eb01-f6a4-8304-79aa-97f2502e193f", true),
            Ok(())
        );
    }

    #[test]
    fn a_tpm_is_refused() {
        assert_eq!(check_devices(XML), Ok(()));
        let tpm = "<devices><tpm model='tpm-crb'><backend type='emulator'/></tpm>";
        let with = XML.replace("<devices>", tpm);
        assert_eq!(check_devices(&with), Err(DescriptionError::Tpm));
        // Not a device.
        let metadata = XML.replace("<devices>", "<metadata><tpm/></metadata><devices>");
        assert_eq!(check_devices(&metadata), Ok(()));
    }

    #[test]
    fn cards_have_their_devices() {
        let cards = cards(XML);
        let names: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
        assert_eq!(names, ["net0", "net1"]);
        assert_eq!(cards[0].address, [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]);
        assert_eq!(cards[0].interface.as_deref(), Some("vnet4"));
        assert_eq!(cards[1].interface, None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_description_or_not(text: String) {
            let _ = check(&text, "guest", "6695eb01-f6a4-8304-79aa-97f2502e193f", false);
            prop_assert!(cards(&text).is_empty());
        }
    }
}
