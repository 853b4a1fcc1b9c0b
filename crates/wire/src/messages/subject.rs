//! What makes a control message too long.

use std::fmt;

/// What the length of a control message depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// The guest's memory.
    Memory,
    /// The guest's processors.
    Processors,
    /// The guest's devices and auxiliary memory.
    Machine,
    /// The guest's disks.
    Disks,
    /// The guest's libvirt domain.
    Domain,
    /// Anything else. hikkoshi keeps these messages short.
    Other,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "the description of the guest's memory",
            Self::Processors => "the description of the guest's processors",
            Self::Machine => "the description of the guest's devices",
            Self::Disks => "the description of the guest's disks",
            Self::Domain => "the description of the guest's domain",
            Self::Other => "a control message",
        })
    }
}

impl Subject {
    /// What to do if a message about it is too long.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Memory => "shorten the names of the guest's memory backends or use fewer of them",
            Self::Processors => {
                "start the guest with fewer virtual CPUs, or with fewer that differ from the others"
            }
            Self::Machine => "shorten the names of the guest's devices or use fewer of them",
            Self::Disks => {
                "shorten the paths of the guest's disks and of their backing files, or use fewer of \
                 them"
            }
            Self::Domain => {
                "let libvirt forget some of the domain's snapshots ('virsh snapshot-delete \
                 --metadata')"
            }
            Self::Other => "this is an error in hikkoshi; report it",
        }
    }
}
