//! A guest that a management daemon owns, as described to the other side's daemon.

use serde::{Deserialize, Serialize};

use super::bounded::{Bytes, List, Name};

/// The longest description of a domain, in bytes. One with a hundred disks has some 100 KiB.
pub const MAX_DOMAIN_XML: usize = 256 << 10;

/// The most snapshots of a domain. Each description has two of the domain: some 20 KiB. What all
/// take together is limited by the message.
pub const MAX_SNAPSHOTS: usize = 128;

/// A libvirt domain: what the destination's daemon needs to create it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its name.
    #[serde(with = "Name")]
    pub name: String,
    /// Its UUID, in libvirt's form.
    #[serde(with = "Name")]
    pub uuid: String,
    /// The migratable XML of the running domain; at most [`MAX_DOMAIN_XML`] bytes.
    #[serde(with = "Bytes::<MAX_DOMAIN_XML>")]
    pub xml: Vec<u8>,
    /// The XML that the destination defines, so that the domain is persistent there; at most
    /// [`MAX_DOMAIN_XML`] bytes. Empty: the domain is transient there.
    #[serde(with = "Bytes::<MAX_DOMAIN_XML>")]
    pub persistent: Vec<u8>,
    /// Whether the destination starts the domain when its host boots. Only with `persistent`.
    pub autostart: bool,
    /// What the source's daemon knows of its snapshots, each behind the one that it is based on; at
    /// most [`MAX_SNAPSHOTS`].
    #[serde(with = "List::<MAX_SNAPSHOTS>")]
    pub snapshots: Vec<DomainSnapshot>,
}

/// A snapshot of a domain. Its content is in images that both hosts have, also that of the memory:
/// the source refuses others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainSnapshot {
    /// libvirt's XML of it; at most [`MAX_DOMAIN_XML`] bytes.
    #[serde(with = "Bytes::<MAX_DOMAIN_XML>")]
    pub xml: Vec<u8>,
    /// Whether the domain is based on it.
    pub current: bool,
}
