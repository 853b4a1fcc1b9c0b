//! A goal and its limit.

use serde::Serialize;

/// Up to which number, or from which on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Limit {
    /// At most that.
    AtMost(f64),
    /// Less than that.
    Below(f64),
    /// At least that.
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

/// One aim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// In words.
    pub what: String,
    /// What was measured; none when every run of it failed or has no such number.
    pub value: Option<f64>,
    /// Of what it is, or `x`.
    pub unit: &'static str,
    /// What it should be.
    pub limit: Limit,
    /// Whether it is.
    pub reached: bool,
    /// The numbers behind it; if it is missed, they show what bounds it.
    pub shown_by: String,
}
