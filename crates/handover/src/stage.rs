//! How far each side is. Each machine is reported the stage of the other side.

use serde::{Deserialize, Serialize};

/// How far the source is in handing the guest over. Recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceStage {
    /// The source owns the guest.
    Owned,
    /// *Commit* may have been sent: the destination decides who owns the guest.
    Committed,
    /// The destination runs the guest. Pages may be missing there.
    HandedOver,
    /// The destination has every page.
    Done,
}

impl SourceStage {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Owned, Self::Committed, Self::HandedOver, Self::Done];

    /// Its name, as records and labels have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Committed => "committed",
            Self::HandedOver => "handed_over",
            Self::Done => "done",
        }
    }
}

/// How far the destination is in taking the guest over. Recorded from
/// [`Ready`](Self::Ready) on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DestinationStage {
    /// Memory and device state arrive. *Ready* has not been sent.
    Receiving,
    /// The guest could run here. *Ready* may have been sent, so the source may
    /// have handed the guest over.
    Ready,
    /// The destination owns the guest. Pages may be missing.
    Running,
    /// The destination owns the guest and needs nothing more from the source:
    /// every page is here, or the guest shut itself down here.
    Complete,
    /// The guest never ran here and never will.
    Declined,
}

impl DestinationStage {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [
        Self::Receiving,
        Self::Ready,
        Self::Running,
        Self::Complete,
        Self::Declined,
    ];

    /// Its name, as records and labels have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receiving => "receiving",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Declined => "declined",
        }
    }
}
