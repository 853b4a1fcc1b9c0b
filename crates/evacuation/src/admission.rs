//! Which destination may have which guest.

use std::fmt;

use hikkoshi_engine::Mode;

use crate::inputs::{Destination, Evacuation, Guest};

/// Why a destination cannot have a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// There is not enough memory left.
    Memory {
        /// What the guest needs, in bytes.
        needed: u64,
        /// What is left there, in bytes.
        left: u64,
    },
    /// The guest has more processors than the host.
    Processors {
        /// Of the guest.
        guest: u32,
        /// Of the host.
        host: u32,
    },
    /// The guest may use features that its processors do not have.
    Features(Vec<String>),
    /// The destination does not take it.
    Refuses(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { needed, left } => write!(
                f,
                "it needs {} of memory, and {} are left",
                mebibytes(*needed),
                mebibytes(*left)
            ),
            Self::Processors { guest, host } => {
                write!(f, "it has {guest} processors, and the host {host}")
            }
            Self::Features(missing) => {
                write!(f, "the processors there lack {}", missing.join(", "))
            }
            Self::Refuses(why) => f.write_str(why),
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Why a guest is not moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be moved in the mode, or in any.
    Mode {
        /// The mode; `None`: in any.
        mode: Option<Mode>,
        /// The reasons.
        obstacles: Vec<String>,
    },
    /// No destination can have it: for each one the reason, in their order.
    Nowhere(Vec<Obstacle>),
}

/// Why the guest cannot be moved in the mode that is wanted, if so.
pub(crate) fn refusal(evacuation: &Evacuation, guest: &Guest) -> Option<Refusal> {
    let can = match evacuation.mode {
        Some(mode) => guest.modes.contains(&mode),
        None => !guest.modes.is_empty(),
    };
    (!can).then(|| Refusal::Mode {
        mode: evacuation.mode,
        obstacles: guest.obstacles.clone(),
    })
}

/// Why `destination`, where so much memory is left, cannot have `guest`; `None`: it can.
pub(crate) fn obstacle(guest: &Guest, destination: &Destination, left: u64) -> Option<Obstacle> {
    if let Some(why) = destination.refuses.get(&guest.name) {
        return Some(Obstacle::Refuses(why.clone()));
    }
    let (vcpus, processors) = (guest.measured.vcpus, destination.processors);
    if vcpus > processors {
        return Some(Obstacle::Processors {
            guest: vcpus,
            host: processors,
        });
    }
    if let Some(features) = &destination.features {
        let missing: Vec<_> = guest.features.difference(features).cloned().collect();
        if !missing.is_empty() {
            return Some(Obstacle::Features(missing));
        }
    }
    let needed = guest.needs();
    (needed > left).then_some(Obstacle::Memory { needed, left })
}
