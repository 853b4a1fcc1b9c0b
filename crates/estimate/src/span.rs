//! A number that is not known exactly: [`Span`].

/// A value and the range in which it is expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The low end.
    pub low: f64,
    /// The most likely value.
    pub likely: f64,
    /// The high end; infinite if there is no bound.
    pub high: f64,
}

/// One run of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Every input is at the end that makes a migration easy.
    Easy,
    /// Every input is the likely one.
    Likely,
    /// Every input is at the end that makes a migration hard.
    Hard,
}

impl Scenario {
    pub(crate) const ALL: [Self; 3] = [Self::Easy, Self::Likely, Self::Hard];
}

impl Span {
    /// Nothing.
    pub const ZERO: Self = Self::exactly(0.0);

    /// A value that is known.
    #[must_use]
    pub const fn exactly(value: f64) -> Self {
        Self {
            low: value,
            likely: value,
            high: value,
        }
    }

    /// The value and its ends: `low` times and `high` times the value.
    #[must_use]
    pub fn within(likely: f64, low: f64, high: f64) -> Self {
        Self {
            low: likely * low,
            likely,
            high: likely * high,
        }
    }

    /// The span of three results, in any order; `likely` is that of the likely inputs.
    pub(crate) fn ordered(easy: f64, likely: f64, hard: f64) -> Self {
        Self {
            low: easy.min(likely).min(hard),
            likely,
            high: easy.max(likely).max(hard),
        }
    }

    /// The value in a scenario, if more of it makes a migration harder.
    pub(crate) fn cost(self, scenario: Scenario) -> f64 {
        match scenario {
            Scenario::Easy => self.low,
            Scenario::Likely => self.likely,
            Scenario::Hard => self.high,
        }
    }

    /// The value in a scenario, if more of it makes a migration easier.
    pub(crate) fn benefit(self, scenario: Scenario) -> f64 {
        match scenario {
            Scenario::Easy => self.high,
            Scenario::Likely => self.likely,
            Scenario::Hard => self.low,
        }
    }
}
