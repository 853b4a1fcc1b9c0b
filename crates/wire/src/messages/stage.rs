//! How far each side is, as it is said when a migration is resumed.

use serde::{Deserialize, Serialize};

/// How far a source is in giving its guest away; `docs/protocol.md` has what it
/// means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceStage {
    /// The guest is the source's.
    Keeps,
    /// *Commit* may have been sent.
    Committed,
    /// The destination runs the guest.
    Gone,
    /// The destination has everything.
    Done,
}

/// How far a destination is in taking a guest in; `docs/protocol.md` has what
/// it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DestinationStage {
    /// Nothing was promised.
    Arriving,
    /// The guest could run here.
    Ready,
    /// The guest is the destination's; pages may be missing.
    Runs,
    /// All of it is here.
    Whole,
    /// The guest was never run here and never will be.
    Declined,
}
