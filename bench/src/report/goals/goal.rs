//! A goal and its limit.

use serde::Serialize;

/// An upper or lower limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) enum Limit {
    /// At most this value.
    AtMost(f64),
    /// Less than this value.
    Below(f64),
    /// At least this value.
    AtLeast(f64),
}

impl Limit {
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

/// One goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    /// The description.
    pub what: String,
    /// The measured value; `None` when every run failed or has no such value.
    pub value: Option<f64>,
    /// The unit; `x` for a ratio.
    pub unit: &'static str,
    /// The limit.
    pub limit: Limit,
    /// Whether the value is within the limit.
    pub within_limit: bool,
    /// How many runs did not fail, of a ratio the fewer of both. The value may be of fewer, where a
    /// run does not have it.
    pub runs: usize,
    /// The numbers behind the value; for a missed goal, they show what limits it.
    pub shown_by: String,
}
