//! The timeline of a page fault.

use serde::{Deserialize, Serialize};

/// The steps of an asynchronous page fault, in the order of their medians.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FaultTimeline {
    /// Faults of which every step is known.
    pub faults: usize,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A step.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Step {
    /// Where it takes place.
    pub place: Place,
    /// What happens.
    pub what: String,
    /// How long after the first step, µs: the median.
    pub median_us: f64,
    /// Nine of ten took at most this, µs.
    pub p90_us: f64,
}

/// Where a step takes place.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
pub(crate) enum Place {
    /// The guest.
    Guest,
    /// The destination's kernel.
    Kernel,
    /// The destination's engine.
    Destination,
    /// The source's engine.
    Source,
}

impl Place {
    /// All of them, from the guest outwards.
    pub(crate) const ALL: [Self; 4] = [Self::Guest, Self::Kernel, Self::Destination, Self::Source];

    /// The name in tables and plots.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Kernel => "kernel (KVM)",
            Self::Destination => "destination engine",
            Self::Source => "source engine",
        }
    }
}
