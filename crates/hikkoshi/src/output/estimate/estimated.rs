//! What an estimate is made of.

use std::time::Duration;

use hikkoshi_dirty_rate::Measurement;
use hikkoshi_estimate::{Choice, CompressedPages, Guest, Line, Prediction};
use hikkoshi_memory::ContentSample;

/// What was measured, and what follows from it.
#[derive(Debug)]
pub(crate) struct Estimated {
    pub(crate) pid: u32,
    pub(crate) measurement: Measurement,
    pub(crate) content: ContentSample,
    pub(crate) guest: Guest,
    /// What each method makes of its content.
    pub(crate) compressed: Vec<CompressedPages>,
    pub(crate) line: Line,
    /// Bytes of the probe, and its time; `None`: the line was given.
    pub(crate) probed: Option<(u64, Duration)>,
    pub(crate) modes: Vec<EstimatedMode>,
    pub(crate) choice: Option<Choice>,
    pub(crate) notes: Vec<String>,
}

/// One mode.
#[derive(Debug)]
pub(crate) struct EstimatedMode {
    pub(crate) prediction: Prediction,
    /// Why it is not possible.
    pub(crate) obstacles: Vec<String>,
}
