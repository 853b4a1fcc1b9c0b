//! The plan: [`plan`].

use hikkoshi_engine::Mode;
use hikkoshi_estimate::Span;

use crate::admission::Refusal;
use crate::inputs::Evacuation;
use crate::placement::{Fit, Placed, Placement, place};
use crate::predictions::{Case, Predictions};
use crate::simulate::{Timing, simulate};

/// The order in which moves begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the guests were named.
    Named,
    /// Those that take the least time first.
    Shortest,
    /// Those that take the most time first.
    Longest,
}

/// One move of a plan. Times are in seconds, from the start of the evacuation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Move {
    /// The number of the guest.
    pub guest: usize,
    /// The number of the destination.
    pub destination: usize,
    /// How it is moved.
    pub mode: Mode,
    /// When it begins.
    pub begins: Span,
    /// When it ends.
    pub ends: Span,
    /// How long it takes.
    pub total: Span,
    /// How long the guest is paused.
    pub downtime: Span,
    /// What the guest loses of its time: the pause, and the time of page faults.
    pub felt: Span,
}

/// A guest that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The number of the guest.
    pub guest: usize,
    /// Why.
    pub why: Refusal,
}

/// Who goes where, when, and how long it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The moves, in the order in which they begin.
    pub moves: Vec<Move>,
    /// The guests that stay.
    pub refused: Vec<Refused>,
    /// How many are under way at a time.
    pub at_once: usize,
    /// In which order they begin.
    pub order: Order,
    /// The time of the whole.
    pub total: Span,
    /// What all guests lose of their time, together.
    pub felt: Span,
}

impl Plan {
    /// What is as small as can be: the time of the whole, and what the guests feel, in seconds.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.total.likely + self.felt.likely
    }
}

/// Plans an evacuation: places each guest that can be moved, and chooses how many are moved at once
/// and in which order. The same evacuation has the same plan.
#[must_use]
pub fn plan(evacuation: &Evacuation) -> Plan {
    let mut predictions = Predictions::new(evacuation);
    let most = evacuation
        .most_at_once()
        .min(evacuation.guests.len().max(1));
    let orders = [Order::Shortest, Order::Longest, Order::Named];
    let mut best: Option<(f64, Candidate)> = None;
    let placement = placement(evacuation);
    for at_once in 1..=most {
        let moves = in_modes(&mut predictions, &placement, at_once);
        for order in orders {
            let moves = ordered(&mut predictions, &moves, order);
            let timings = simulate(&mut predictions, &moves, at_once, Case::Likely);
            let cost = last_end(&timings) + timings.iter().map(|it| it.felt).sum::<f64>();
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                let candidate = Candidate {
                    placement: placement.clone(),
                    moves,
                    at_once,
                    order,
                };
                best = Some((cost, candidate));
            }
        }
    }
    let candidate = best.map_or_else(|| Candidate::empty(evacuation), |(_, best)| best);
    candidate.plan(&mut predictions)
}

/// The plan with this order and so many moves at once, as far as the destinations allow.
#[must_use]
pub fn plan_as(evacuation: &Evacuation, at_once: usize, order: Order) -> Plan {
    let mut predictions = Predictions::new(evacuation);
    let placement = placement(evacuation);
    let moves = in_modes(&mut predictions, &placement, at_once);
    let moves = ordered(&mut predictions, &moves, order);
    let candidate = Candidate {
        placement,
        moves,
        at_once,
        order,
    };
    candidate.plan(&mut predictions)
}

/// Guests are spread over the destinations, unless only the best fit places more of them.
fn placement(evacuation: &Evacuation) -> Placement {
    let spread = place(evacuation, Fit::Loosest);
    if spread.refused.is_empty() {
        return spread;
    }
    let packed = place(evacuation, Fit::Tightest);
    match packed.placed.len() > spread.placed.len() {
        true => packed,
        false => spread,
    }
}

/// The mode of each move, with the share that it has of the line to its destination when as many
/// are under way as can be.
fn in_modes(
    predictions: &mut Predictions<'_>,
    placement: &Placement,
    at_once: usize,
) -> Vec<(Placed, Mode)> {
    let capacities = predictions.evacuation().capacities();
    let placed = placement.placed.iter();
    #[allow(clippy::cast_precision_loss)] // Some moves.
    let of = |placed: &Placed| {
        let share = (capacities[0] / at_once.max(1) as f64).min(capacities[1 + placed.destination]);
        (*placed, predictions.mode(*placed, share))
    };
    placed.map(of).collect()
}

fn ordered(
    predictions: &mut Predictions<'_>,
    moves: &[(Placed, Mode)],
    order: Order,
) -> Vec<(Placed, Mode)> {
    if order == Order::Named {
        return moves.to_vec();
    }
    let capacities = predictions.evacuation().capacities();
    let mut timed: Vec<_> = moves
        .iter()
        .map(|&(placed, mode)| {
            let alone = capacities[0].min(capacities[1 + placed.destination]);
            let total = predictions.of(placed, mode, alone).total.likely;
            (total, (placed, mode))
        })
        .collect();
    timed.sort_by(|one, other| match order {
        Order::Longest => other.0.total_cmp(&one.0),
        Order::Named | Order::Shortest => one.0.total_cmp(&other.0),
    });
    timed.into_iter().map(|(_, it)| it).collect()
}

fn last_end(timings: &[Timing]) -> f64 {
    timings.iter().map(|it| it.ends).fold(0.0, f64::max)
}

/// What is simulated.
#[derive(Debug)]
struct Candidate {
    placement: Placement,
    moves: Vec<(Placed, Mode)>,
    at_once: usize,
    order: Order,
}

impl Candidate {
    fn empty(evacuation: &Evacuation) -> Self {
        Self {
            placement: place(evacuation, Fit::Tightest),
            moves: Vec::new(),
            at_once: 1,
            order: Order::Named,
        }
    }

    fn plan(self, predictions: &mut Predictions<'_>) -> Plan {
        let timings = Case::ALL.map(|case| simulate(predictions, &self.moves, self.at_once, case));
        let span = |value: &dyn Fn(&[Timing]) -> f64| {
            let [low, likely, high] = [&timings[0], &timings[1], &timings[2]].map(|it| value(it));
            // A schedule in which each move is faster may be longer as a whole.
            Span {
                low: low.min(likely).min(high),
                likely,
                high: low.max(likely).max(high),
            }
        };
        let mut moves: Vec<_> = self
            .moves
            .iter()
            .enumerate()
            .map(|(at, &(placed, mode))| Move {
                guest: placed.guest,
                destination: placed.destination,
                mode,
                begins: span(&|all| all[at].begins),
                ends: span(&|all| all[at].ends),
                total: span(&|all| all[at].seconds()),
                downtime: span(&|all| all[at].downtime),
                felt: span(&|all| all[at].felt),
            })
            .collect();
        moves.sort_by(|one, other| one.begins.likely.total_cmp(&other.begins.likely));
        let refused = self.placement.refused.into_iter();
        Plan {
            moves,
            refused: refused.map(|(guest, why)| Refused { guest, why }).collect(),
            at_once: self.at_once.min(self.moves.len()).max(1),
            order: self.order,
            total: span(&last_end),
            felt: span(&|all| all.iter().map(|it| it.felt).sum()),
        }
    }
}
