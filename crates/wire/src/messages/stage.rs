//! How far each side is, as sent when a migration is resumed.

use serde::{Deserialize, Serialize};

/// How far the source is in handing its guest over. `docs/protocol.md` defines
/// the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceStage {
    /// The guest belongs to the source.
    Owned,
    /// The source may have sent *Commit*.
    Committed,
    /// The destination runs the guest.
    HandedOver,
    /// The destination has every page.
    Done,
}

/// How far the destination is in taking the guest over. `docs/protocol.md`
/// defines the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DestinationStage {
    /// It has promised nothing yet.
    Receiving,
    /// The guest is loaded and can run.
    Ready,
    /// The guest belongs to the destination; pages may be missing.
    Running,
    /// The destination has every page.
    Complete,
    /// The destination never ran the guest and never will.
    Declined,
}
