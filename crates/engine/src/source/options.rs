//! What the caller may choose.

use std::time::Duration;

use crate::stats::Mode;

/// What to do when pre-copy does not converge within its rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenStalled {
    /// Say so and go on.
    GoOn,
    /// Switch; the rest follows in post-copy.
    Switch,
    /// Give up; the guest runs on at the source.
    Stop,
}

/// How to move a guest.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Which of the three modes.
    pub mode: Mode,
    /// How long the guest may be stopped, where pre-copy has the choice.
    pub max_downtime: Duration,
    /// Ceiling on background traffic, in bytes a second.
    pub bandwidth: Option<u64>,
    /// Rounds before the switch in hybrid mode.
    pub precopy_rounds: u32,
    /// Rounds after which pre-copy counts as not converging.
    pub max_rounds: u32,
    /// What to do then.
    pub when_stalled: WhenStalled,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Hybrid,
            max_downtime: Duration::from_millis(300),
            bandwidth: None,
            precopy_rounds: 1,
            max_rounds: 30,
            when_stalled: WhenStalled::GoOn,
        }
    }
}

impl SourceOptions {
    /// Whether the switch may come before all memory has arrived.
    pub fn may_postcopy(&self) -> bool {
        self.mode != Mode::Precopy || self.when_stalled == WhenStalled::Switch
    }
}
