//! One move with a share of the line, by `hikkoshi-estimate`.

use std::collections::BTreeMap;

use hikkoshi_engine::{Mode, SourceOptions};
use hikkoshi_estimate::{Prediction, Span, choose_compression, choose_mode, predict};

use crate::inputs::Evacuation;
use crate::placement::Placed;

/// A share this near to all of the line is all of it.
const ALL: f64 = 0.999;

/// What is simulated: all moves are fast, as is likely, or slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Low,
    Likely,
    High,
}

impl Case {
    pub(crate) const ALL: [Self; 3] = [Self::Low, Self::Likely, Self::High];

    pub(crate) fn of(self, span: Span) -> f64 {
        match self {
            Self::Low => span.low,
            Self::Likely => span.likely,
            Self::High => span.high,
        }
    }
}

/// A move that has its share of the line all the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Predicted {
    /// From the first byte to the last page, s.
    pub(crate) total: Span,
    /// How long the guest is paused, s.
    pub(crate) downtime: Span,
    /// What the guest loses of its time: the pause, and the time of page faults, s.
    pub(crate) felt: Span,
}

/// Predicts moves, each one once.
#[derive(Debug)]
pub(crate) struct Predictions<'a> {
    evacuation: &'a Evacuation,
    known: BTreeMap<Key, Prediction>,
}

/// Guest, destination, mode, and share of the line.
type Key = (usize, usize, u8, u64);

const fn number(mode: Mode) -> u8 {
    match mode {
        Mode::Precopy => 0,
        Mode::Postcopy => 1,
        Mode::Hybrid => 2,
    }
}

impl<'a> Predictions<'a> {
    pub(crate) fn new(evacuation: &'a Evacuation) -> Self {
        Self {
            evacuation,
            known: BTreeMap::new(),
        }
    }

    pub(crate) fn evacuation(&self) -> &'a Evacuation {
        self.evacuation
    }

    /// A move in this mode, with `share` bytes a second of the line.
    pub(crate) fn of(&mut self, placed: Placed, mode: Mode, share: f64) -> Predicted {
        let rate = self.evacuation.destinations[placed.destination].line.rate;
        predicted(&self.estimate(placed, mode, share), rate)
    }

    fn estimate(&mut self, placed: Placed, mode: Mode, share: f64) -> Prediction {
        let key = (
            placed.guest,
            placed.destination,
            number(mode),
            share.to_bits(),
        );
        let compute = || estimate(self.evacuation, placed, mode, share);
        *self.known.entry(key).or_insert_with(compute)
    }

    /// The mode of this move with such a share.
    pub(crate) fn mode(&mut self, placed: Placed, share: f64) -> Mode {
        if let Some(mode) = self.evacuation.mode {
            return mode;
        }
        let modes = &self.evacuation.guests[placed.guest].modes;
        let predicted: Vec<_> = modes
            .iter()
            .map(|&mode| self.estimate(placed, mode, share))
            .collect();
        let chosen = choose_mode(&predicted).map(|choice| choice.mode);
        chosen.unwrap_or(self.evacuation.options.mode)
    }
}

/// Pages that the guest waits for have the whole line: the share is a limit of the background, as
/// it is when the guests are moved.
fn estimate(evacuation: &Evacuation, placed: Placed, mode: Mode, share: f64) -> Prediction {
    let guest = &evacuation.guests[placed.guest];
    let line = &evacuation.destinations[placed.destination].line;
    let limited = share < line.rate.likely * ALL;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive, below 2^53.
    let options = SourceOptions {
        mode,
        bandwidth: limited.then_some(share.max(1.0) as u64),
        ..evacuation.options.clone()
    };
    let mut measured = guest.measured.clone();
    measured.compression =
        choose_compression(&guest.compressed, measured.read_page, line, &options);
    predict(&measured, line, &options)
}

fn predicted(it: &Prediction, rate: Span) -> Predicted {
    // If the line turns out to be slower, all shares of it are.
    let (faster, slower) = match it.limit {
        Some(_) => (
            rate.likely / rate.high.max(1.0),
            rate.likely / rate.low.max(1.0),
        ),
        None => (1.0, 1.0),
    };
    let total = Span {
        low: it.total.low * faster.min(1.0),
        likely: it.total.likely,
        high: it.total.high * slower.max(1.0),
    };
    let felt = |total: f64, downtime: f64, slowdown: f64| {
        if !total.is_finite() {
            return f64::INFINITY;
        }
        downtime + slowdown * (total - downtime).max(0.0)
    };
    let slowdown = it.slowdown;
    Predicted {
        total,
        downtime: it.downtime,
        felt: Span {
            low: felt(total.low, it.downtime.low, slowdown.low),
            likely: felt(total.likely, it.downtime.likely, slowdown.likely),
            high: felt(total.high, it.downtime.high, slowdown.high),
        },
    }
}
