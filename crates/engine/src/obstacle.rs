//! What prevents a move at the destination.

use hikkoshi_wire::Mode;

/// Why a destination would refuse a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationObstacle {
    /// The reason, for people.
    pub reason: String,
    /// Whether it accepts the guest if it is moved by pre-copy alone.
    pub postcopy_only: bool,
}

impl DestinationObstacle {
    /// Whether it prevents a move by this mode.
    pub fn excludes(&self, mode: Mode) -> bool {
        !self.postcopy_only || mode != Mode::Precopy
    }
}
