//! All moves, simulated from event to event.

use hikkoshi_engine::Mode;

use crate::placement::Placed;
use crate::predictions::{Case, Predictions};

/// When a move begins and ends, and what its guest feels, s.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Timing {
    pub(crate) begins: f64,
    pub(crate) ends: f64,
    pub(crate) downtime: f64,
    pub(crate) felt: f64,
}

impl Timing {
    /// How long the move takes, s.
    pub(crate) fn seconds(&self) -> f64 {
        match self.ends.is_finite() {
            true => self.ends - self.begins,
            false => f64::INFINITY,
        }
    }
}

/// A move that is under way.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    at: usize,
    /// How long it still prepares, if no other one does, s.
    prepares: f64,
    /// Which part of it is done.
    done: f64,
}

/// How many times as long it takes to prepare so many moves at the same time: a move that prepares
/// keeps about one processor busy.
fn contention(moves: usize, processors: u32) -> f64 {
    #[allow(clippy::cast_precision_loss)] // Some moves.
    let needed = moves as f64;
    (needed / f64::from(processors.max(1))).max(1.0)
}

/// Simulates `moves`, which begin in their order, at most `at_once` at a time. One whose
/// destination has as many as it may have lets later ones begin. Moves that never end have an
/// infinite end, and so have those that wait for them.
pub(crate) fn simulate(
    predictions: &mut Predictions<'_>,
    moves: &[(Placed, Mode)],
    at_once: usize,
    case: Case,
) -> Vec<Timing> {
    let evacuation = predictions.evacuation();
    let mut timings = vec![Timing::default(); moves.len()];
    let mut waiting: Vec<usize> = (0..moves.len()).collect();
    let mut under_way: Vec<UnderWay> = Vec::new();
    let mut now = 0.0;
    loop {
        waiting.retain(|&at| {
            let to = moves[at].0.destination;
            let there = under_way
                .iter()
                .filter(|it| moves[it.at].0.destination == to);
            let most = evacuation.destinations[to].most_at_once();
            if under_way.len() >= at_once.max(1) || there.count() >= most {
                return true;
            }
            timings[at].begins = now;
            under_way.push(UnderWay {
                at,
                prepares: case.of(evacuation.guests[moves[at].0.guest].prepare),
                done: 0.0,
            });
            false
        });
        if under_way.is_empty() {
            return timings;
        }
        let sending: Vec<_> = under_way.iter().filter(|it| it.prepares <= 0.0).collect();
        let slower = contention(under_way.len() - sending.len(), evacuation.processors);
        let to: Vec<_> = sending
            .iter()
            .map(|it| moves[it.at].0.destination)
            .collect();
        let mut shares = evacuation.shares(&to).into_iter();
        let predicted: Vec<_> = under_way
            .iter()
            .map(|it| {
                let (placed, mode) = moves[it.at];
                let share = if it.prepares <= 0.0 {
                    shares.next()
                } else {
                    None
                };
                share.map(|share| predictions.of(placed, mode, share))
            })
            .collect();
        // How long until the next event of each.
        let left: Vec<_> = under_way
            .iter()
            .zip(&predicted)
            .map(|(it, predicted)| match predicted {
                Some(predicted) => (1.0 - it.done) * case.of(predicted.total),
                None => it.prepares * slower,
            })
            .collect();
        let step = left.iter().copied().fold(f64::INFINITY, f64::min);
        if !step.is_finite() {
            for &at in &waiting {
                timings[at].begins = f64::INFINITY;
            }
            for at in under_way.iter().map(|it| it.at).chain(waiting) {
                timings[at].ends = f64::INFINITY;
                timings[at].downtime = f64::INFINITY;
                timings[at].felt = f64::INFINITY;
            }
            return timings;
        }
        now += step;
        let mut ended = Vec::new();
        for ((it, predicted), left) in under_way.iter_mut().zip(&predicted).zip(&left) {
            let Some(predicted) = predicted else {
                it.prepares = match *left <= step {
                    true => 0.0,
                    false => it.prepares - step / slower,
                };
                continue;
            };
            let total = case.of(predicted.total);
            if !total.is_finite() {
                continue;
            }
            let ends = *left <= step;
            let part = match ends {
                true => 1.0 - it.done,
                false => step / total,
            };
            let timing = &mut timings[it.at];
            timing.downtime += part * case.of(predicted.downtime);
            timing.felt += part * case.of(predicted.felt);
            it.done += part;
            if ends {
                timing.ends = now;
                ended.push(it.at);
            }
        }
        under_way.retain(|it| !ended.contains(&it.at));
    }
}
