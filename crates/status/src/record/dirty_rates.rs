//! How fast the guest wrote to each cell, over the whole of pre-copy.

use serde::{Deserialize, Serialize};

/// Dirty rates by cell, in pages per second: of all states in which those of nearly all memory were
/// known, not only of those in the frames. That is from the end of the first round on. Lists are
/// empty where nothing was measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyRates {
    /// For how long rates were known.
    pub measured_ms: u64,
    /// The highest rate.
    pub highest: Vec<u64>,
    /// The mean over that time.
    pub mean: Vec<u64>,
}
