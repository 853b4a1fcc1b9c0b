//! Whether pre-copy converges, by its rounds so far.

use std::time::Duration;

use hikkoshi_account::{Converges, Phase, Stage};
use hikkoshi_engine::report::Snapshot;
use hikkoshi_engine::{Convergence, Mode, WhenStalled};

use super::time_left::Plan;

/// A round makes progress if it leaves at most this part of what any round before has left.
const FEWER: f64 = 0.9;

/// The newest rounds, of which one has to make progress: what one leaves varies.
const NEWEST: usize = 2;

/// Whether pre-copy ends by itself. `None`: it does not have to, or this side does not know its
/// rounds.
///
/// It does if the pages that are dirty fit into the downtime at the rate of the last rounds (by the
/// engine's rule), or if one of the two newest rounds has made progress. It does not if neither is
/// so. Before there are two such rounds and one before them, that is not known. If it does not, and
/// post-copy follows after some rounds, it switches.
///
/// The rates of the guest and of the line do not answer this. If pre-copy does not converge, each
/// round sends what was dirtied in a round, so that both rates are about the same.
pub(super) fn converges(now: &Snapshot, plan: &Plan) -> Option<Converges> {
    let is_source = matches!(now.state.stage, Stage::Source(_));
    if !is_source || now.state.phase != Phase::Precopy || plan.mode != Mode::Precopy {
        return None;
    }
    let (mut rate, mut left) = (Convergence::default(), Vec::new());
    for round in &now.state.rounds {
        if let (Some(ended), Some(dirty)) = (round.ended_ms, round.dirty_pages) {
            let took = ended.saturating_sub(round.begun_ms);
            rate.measure(round.bytes, Duration::from_millis(took));
            left.push(dirty);
        }
    }
    let fits = |&dirty: &u64| rate.fits(dirty, plan.max_downtime, Duration::ZERO);
    if left.last().is_some_and(fits) {
        return Some(Converges::Yes);
    }
    // One round at least is before the newest ones.
    let newest = NEWEST.min(left.len().saturating_sub(1));
    let (before, newest) = left.split_at(left.len() - newest);
    let least = |rounds: &[u64]| rounds.iter().min().copied();
    #[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
    let progress = match (least(before), least(newest)) {
        (Some(before), Some(newest)) => newest as f64 <= before as f64 * FEWER,
        _ => false,
    };
    Some(match progress {
        true => Converges::Yes,
        false if newest.len() < NEWEST => Converges::Unknown,
        false if plan.when_stalled == WhenStalled::Switch => Converges::Switches,
        false => Converges::No,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sampler::tests::snapshot;
    use hikkoshi_account::Round;
    use hikkoshi_handover::DestinationStage;

    fn plan(mode: Mode, when_stalled: WhenStalled) -> Plan {
        Plan {
            mode,
            max_downtime: Duration::from_millis(300),
            bandwidth: None,
            when_stalled,
            max_rounds: 30,
        }
    }

    /// Rounds of one second at 100 MiB a second that have left so many MiB, and one that runs.
    /// Within the downtime, 28 MiB can be sent.
    fn after(left_mib: &[u64], when_stalled: WhenStalled) -> Option<Converges> {
        let mut now = snapshot();
        let round = |number: usize, left: Option<&u64>| Round {
            round: u32::try_from(number + 1).unwrap(),
            begun_ms: number as u64 * 1000,
            ended_ms: left.map(|_| (number as u64 + 1) * 1000),
            pages: 0,
            zero: 0,
            bytes: left.map_or(0, |_| 100 << 20),
            dirty_pages: left.map(|mib| mib << 8),
        };
        let ended = left_mib.iter().enumerate();
        now.state.rounds = ended
            .map(|(number, left)| round(number, Some(left)))
            .collect();
        now.state.rounds.push(round(left_mib.len(), None));
        converges(&now, &plan(Mode::Precopy, when_stalled))
    }

    #[test]
    fn it_converges_if_the_dirty_pages_fit_or_become_fewer() {
        for (left, expected) in [
            (&[][..], Converges::Unknown),
            // In the first round all memory was sent: what it leaves says nothing.
            (&[600], Converges::Unknown),
            (&[27], Converges::Yes),
            (&[600, 540], Converges::Yes),
            (&[600, 560], Converges::Unknown),
            (&[600, 600, 600], Converges::No),
            (&[600, 580, 550], Converges::No),
            // One of the two newest.
            (&[600, 500, 700], Converges::Yes),
            (&[600, 500, 700, 490], Converges::No),
            (&[600, 500, 700, 450], Converges::Yes),
            (&[600, 600, 600, 27], Converges::Yes),
            (&[0, 0], Converges::Yes),
        ] {
            for when_stalled in [
                WhenStalled::Continue,
                WhenStalled::Stop,
                WhenStalled::Switch,
            ] {
                let expected = match (expected, when_stalled) {
                    (Converges::No, WhenStalled::Switch) => Converges::Switches,
                    _ => expected,
                };
                let found = after(left, when_stalled);
                assert_eq!(found, Some(expected), "{left:?}, {when_stalled:?}");
            }
        }
    }

    #[test]
    fn only_pre_copy_has_to_converge() {
        let plan = |mode| plan(mode, WhenStalled::Switch);
        let mut now = snapshot();
        assert_eq!(converges(&now, &plan(Mode::Hybrid)), None);
        now.state.phase = Phase::Switchover;
        assert_eq!(converges(&now, &plan(Mode::Precopy)), None);
        now.state.phase = Phase::Precopy;
        now.state.stage = Stage::Destination(DestinationStage::Receiving);
        assert_eq!(converges(&now, &plan(Mode::Precopy)), None);
    }
}
