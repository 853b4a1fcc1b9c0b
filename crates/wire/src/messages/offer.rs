//! A guest, as a source offers it to a destination.

use serde::{Deserialize, Serialize};

use super::disks::GuestDisks;
use super::domain::Domain;
use super::guest::GuestDescription;
use super::machine::Machine;
use super::processors::Processors;
use super::subject::Subject;

/// A guest that a source offers, or asks about: everything that the destination compares, and what
/// it needs to create a machine for the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedGuest {
    /// What libvirt at the destination needs to create the guest, if it is a domain.
    pub domain: Option<Domain>,
    /// The machine as the destination must provide it.
    pub description: GuestDescription,
    /// Its devices and auxiliary memory.
    pub machine: Machine,
    /// Its virtual processors.
    pub processors: Processors,
    /// Whether it may move to processors that it can distinguish from these. The destination then
    /// reports the differences ([`Warning`](crate::ToSource::Warning)) instead of refusing the
    /// guest.
    pub allow_cpu_mismatch: bool,
    /// Its disks: which both sides must have, and which the source copies before the switchover.
    /// For each of those the source opens a link with [`Role::Disk`](crate::Role::Disk).
    pub disks: GuestDisks,
}

impl OfferedGuest {
    /// A guest without disks, whose devices are not compared, and whose processors say nothing.
    #[must_use]
    pub fn from_description(description: GuestDescription) -> Self {
        Self {
            domain: None,
            description,
            machine: Machine::default(),
            processors: Processors::default(),
            allow_cpu_mismatch: false,
            disks: GuestDisks::default(),
        }
    }

    /// What makes an offer of this guest too long: the first part that cannot be encoded, or the
    /// longest part.
    pub(crate) fn longest_part(&self) -> Subject {
        let parts = [
            (Subject::Domain, length(&self.domain)),
            (Subject::Memory, length(&self.description)),
            (Subject::Machine, length(&self.machine)),
            (Subject::Processors, length(&self.processors)),
            (Subject::Disks, length(&self.disks)),
        ];
        let refused = parts.iter().find(|(_, length)| length.is_none());
        let longest = refused.or_else(|| parts.iter().max_by_key(|(_, length)| *length));
        longest.map_or(Subject::Other, |(subject, _)| *subject)
    }
}

/// The length of a part in bytes; `None` if it is out of its bounds.
fn length(part: &impl Serialize) -> Option<usize> {
    postcard::to_allocvec(part).ok().map(|bytes| bytes.len())
}
