//! How long a migration still takes, as far as its rates say.

use std::time::Duration;

use hikkoshi_engine::report::{Phase, Snapshot, Stage};
use hikkoshi_engine::{Mode, WhenStalled};
use hikkoshi_estimate::WorkingSet;
use hikkoshi_status::TimeLeft;

use super::cells::Written;
use super::rates::Rates;

/// What the migration is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    /// The limit of the downtime.
    pub(super) max_downtime: Duration,
    /// What follows after so many rounds of pre-copy that does not converge.
    pub(super) when_stalled: WhenStalled,
    pub(super) max_rounds: u32,
}

/// What is known of the guest's writes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Writes<'a> {
    /// By the dirty log.
    pub(super) now: Written,
    /// What was measured before the migration.
    pub(super) working_set: Option<&'a WorkingSet>,
}

/// Rounds after which a simulated pre-copy is said not to converge.
const PATIENCE: u32 = 100;

/// An estimate. `rates`: pages that are done per second.
///
/// In pre-copy, each round leaves what the guest dirties meanwhile. With `r` pages sent and `d`
/// dirtied per second, the rest of a round of `n` pages and all rounds after it take `n / (r - d)`,
/// if `d < r`. That is pessimistic, because the shorter a round, the more often the guest writes to
/// the same pages. If the working sets were measured before, the rounds are simulated with them.
/// If post-copy follows after some rounds, each round that is left is as long as the last one.
/// Hybrid sends the rest of the round, and then what is dirty once.
pub(super) fn time_left(
    now: &Snapshot,
    plan: &Plan,
    rates: Rates,
    writes: &Writes<'_>,
) -> Option<TimeLeft> {
    match (now.phase, now.stage) {
        (Phase::Postcopy, _) => {
            let missing = pages(now.missing?);
            Some(TimeLeft {
                low_s: quotient(missing, rates.best)?,
                likely_s: quotient(missing, rates.present)?,
                high_s: quotient(missing, rates.worst),
            })
        }
        // The destination does not know the rounds.
        (Phase::Precopy, Stage::Source(_)) if plan.mode == Mode::Hybrid => {
            hybrid(now, rates, writes)
        }
        (Phase::Precopy, Stage::Source(_)) => shorter(
            precopy(now, plan, rates, writes),
            until_postcopy(now, plan, rates),
        ),
        _ => None,
    }
}

/// What comes first.
fn shorter(one: Option<TimeLeft>, other: Option<TimeLeft>) -> Option<TimeLeft> {
    let (Some(one), Some(other)) = (one, other) else {
        return one.or(other);
    };
    let high = one.high_s.into_iter().chain(other.high_s);
    Some(TimeLeft {
        low_s: one.low_s.min(other.low_s),
        likely_s: one.likely_s.min(other.likely_s),
        high_s: high.reduce(f64::min),
    })
}

fn precopy(now: &Snapshot, plan: &Plan, rates: Rates, writes: &Writes<'_>) -> Option<TimeLeft> {
    let dirtied = writes.now.rate.unwrap_or(0.0);
    let time = |rate: f64| quotient(rest(now), rate - dirtied);
    let likely_s = match writes.working_set {
        Some(measured) => simulated(now, plan, rates.present, measured)?,
        None => time(rates.present)?,
    };
    // In the first round nothing says how many follow.
    let high = writes.now.rate.and_then(|_| time(rates.worst));
    Some(TimeLeft {
        low_s: time(rates.best).map_or(likely_s, |low| low.min(likely_s)),
        likely_s,
        high_s: high.map(|high| high.max(likely_s)),
    })
}

/// The rest of this round and the rounds after it, of which each sends what the guest writes in the
/// one before. `None`: they do not end.
fn simulated(now: &Snapshot, plan: &Plan, rate: f64, measured: &WorkingSet) -> Option<f64> {
    let mut all = quotient(rest(now), rate)?;
    let mut round = since_begin(now) + all;
    for number in now.round..now.round.saturating_add(PATIENCE) {
        let next = left_dirty(measured, round) / rate;
        all += next;
        // The last one is sent while the guest is paused, or follows in post-copy.
        let switches = plan.when_stalled == WhenStalled::Switch && number >= plan.max_rounds;
        if next <= plan.max_downtime.as_secs_f64() || switches {
            return Some(all);
        }
        round = next;
    }
    None
}

/// Pre-copy that does not converge, and that post-copy follows: so many rounds as are left, of
/// which each sends about what the last one has left dirty, and the same in post-copy. At best the
/// present one is the last one.
fn until_postcopy(now: &Snapshot, plan: &Plan, rates: Rates) -> Option<TimeLeft> {
    if plan.when_stalled != WhenStalled::Switch {
        return None;
    }
    let left = now
        .rounds
        .iter()
        .rev()
        .find_map(|round| round.dirty_pages)?;
    let rounds = f64::from(plan.max_rounds.saturating_sub(now.round));
    let pages = |rounds: f64| rest(now) + pages(left) * (rounds + 1.0);
    Some(TimeLeft {
        low_s: quotient(pages(0.0), rates.best)?,
        likely_s: quotient(pages(rounds), rates.present)?,
        high_s: quotient(pages(rounds), rates.worst),
    })
}

/// In the first round, which is often the only one, it is not known until near its end what the
/// guest has dirtied. At least that is nothing, at most everything that the round sends. What is
/// likely follows from the working sets, if they were measured; otherwise it is like the least.
fn hybrid(now: &Snapshot, rates: Rates, writes: &Writes<'_>) -> Option<TimeLeft> {
    let guest = pages(now.pages.guest);
    let all = pages(now.total_pages).min(guest);
    let time = |rate: f64, dirty_in_first_round: &dyn Fn(f64) -> f64| {
        let round = quotient(rest(now), rate)?;
        let left = match writes.now.rate {
            Some(dirtied) => (writes.now.dirty + dirtied * round).min(guest),
            None => dirty_in_first_round(round).min(all),
        };
        Some(round + left / rate)
    };
    let likely = |round: f64| match writes.working_set {
        Some(measured) => left_dirty(measured, since_begin(now) + round),
        None => 0.0,
    };
    Some(TimeLeft {
        low_s: time(rates.best, &|_| 0.0)?,
        likely_s: time(rates.present, &likely)?,
        high_s: time(rates.worst, &|_| all),
    })
}

/// Seconds since the present round began.
fn since_begin(now: &Snapshot) -> f64 {
    let begun = now.rounds.last().map_or(now.at, |round| round.begun);
    now.at.saturating_sub(begun).as_secs_f64()
}

/// How many pages a round of so many seconds leaves dirty. The log of each part of the memory is
/// taken at another time of the round, and what is written from then on stays: the mean of the
/// working sets of all windows up to the whole round.
fn left_dirty(measured: &WorkingSet, seconds: f64) -> f64 {
    const PARTS: u32 = 16;
    let middle = |part: u32| (f64::from(part) + 0.5) / f64::from(PARTS);
    let windows = (0..PARTS).map(|part| measured.pages(seconds * middle(part)));
    windows.sum::<f64>() / f64::from(PARTS)
}

/// Pages of this round that are not done.
fn rest(now: &Snapshot) -> f64 {
    pages(now.total_pages.saturating_sub(now.done_pages))
}

#[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
fn pages(pages: u64) -> f64 {
    pages as f64
}

/// The time for so many pages; `None`: it would not end.
fn quotient(pages: f64, rate: f64) -> Option<f64> {
    (rate > 0.0).then(|| pages / rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sampler::tests::snapshot;
    use hikkoshi_dirty_rate::{Cost, Measurement, PagesPerSecond, Rates as MeasuredRates, Window};
    use hikkoshi_engine::report::RoundAccount;
    use hikkoshi_handover::DestinationStage;

    const RATES: Rates = Rates {
        present: 100.0,
        worst: 50.0,
        best: 200.0,
    };

    fn plan(mode: Mode, when_stalled: WhenStalled) -> Plan {
        Plan {
            mode,
            max_downtime: Duration::from_millis(300),
            when_stalled,
            max_rounds: 5,
        }
    }

    /// 100 pages are dirty.
    fn written(rate: Option<f64>) -> Writes<'static> {
        Writes {
            now: Written { rate, dirty: 100.0 },
            working_set: None,
        }
    }

    fn of(left: TimeLeft) -> [Option<f64>; 3] {
        [Some(left.low_s), Some(left.likely_s), left.high_s]
    }

    /// Low, likely, and high.
    fn left(now: &Snapshot, mode: Mode, rate: Option<f64>) -> Option<[Option<f64>; 3]> {
        let writes = written(rate);
        time_left(now, &plan(mode, WhenStalled::GoOn), RATES, &writes).map(of)
    }

    fn half_of_a_round() -> Snapshot {
        let mut now = snapshot();
        (now.phase, now.done_pages, now.total_pages) = (Phase::Precopy, 500, 1000);
        now
    }

    #[test]
    fn precopy_ends_when_the_rounds_become_short() {
        let now = half_of_a_round();
        let first = left(&now, Mode::Precopy, None).unwrap();
        assert_eq!(first, [Some(2.5), Some(5.0), None]);
        let steady = left(&now, Mode::Precopy, Some(0.0)).unwrap();
        assert_eq!(steady, [Some(2.5), Some(5.0), Some(10.0)]);
        // At the worst rate it would not end.
        let some = left(&now, Mode::Precopy, Some(50.0)).unwrap();
        assert_eq!(some[1..], [Some(10.0), None]);
        assert_eq!(left(&now, Mode::Precopy, Some(150.0)), None);
    }

    fn round(number: u32, begun: u64, dirty_pages: Option<u64>) -> RoundAccount {
        RoundAccount {
            round: number,
            begun: Duration::from_secs(begun),
            ended: dirty_pages.map(|_| Duration::from_secs(begun + 10)),
            pages: 1000,
            zero: 0,
            bytes: 1000 << 12,
            dirty_pages,
        }
    }

    /// Round 3 of 5: the rest of it, two more, and as many pages in post-copy.
    #[test]
    fn precopy_that_post_copy_follows_ends() {
        let mut now = half_of_a_round();
        (now.round, now.at) = (3, Duration::from_secs(25));
        now.rounds = vec![
            round(1, 0, Some(2000)),
            round(2, 10, Some(1000)),
            round(3, 20, None),
        ];
        let writes = written(Some(150.0));
        let left = |when| time_left(&now, &plan(Mode::Precopy, when), RATES, &writes).map(of);
        let all = 500.0 + 3.0 * 1000.0;
        let expected = [Some(1500.0 / 200.0), Some(all / 100.0), Some(all / 50.0)];
        assert_eq!(left(WhenStalled::Switch), Some(expected));
        assert_eq!(left(WhenStalled::GoOn), None);
        assert_eq!(left(WhenStalled::Stop), None);
    }

    #[test]
    fn hybrid_sends_dirty_pages_once() {
        let hybrid = left(&half_of_a_round(), Mode::Hybrid, Some(50.0)).unwrap();
        assert_eq!(hybrid[1], Some(5.0 + (100.0 + 250.0) / 100.0));
        assert_eq!(hybrid[2], Some(10.0 + (100.0 + 500.0) / 50.0));
    }

    /// The first round is the only one by default: nothing that it sends may be sent again, or all.
    #[test]
    fn the_first_round_of_hybrid_has_an_upper_bound() {
        let mut now = half_of_a_round();
        let first = left(&now, Mode::Hybrid, None).unwrap();
        assert_eq!(first, [Some(2.5), Some(5.0), Some(10.0 + 1000.0 / 50.0)]);
        // The pages of a round are at most those of the guest.
        now.pages.guest = 600;
        let first = left(&now, Mode::Hybrid, None).unwrap();
        assert_eq!(first[2], Some(10.0 + 600.0 / 50.0));
    }

    /// A guest that writes the same 300 pages all the time.
    fn hot_pages() -> WorkingSet {
        let window = |length: u64| Window {
            intervals: u32::try_from(length / 50).unwrap(),
            mean_length: Duration::from_millis(length),
            windows: 4,
            mean: 300.0,
            max: 300.0,
        };
        WorkingSet::of(&Measurement {
            interval: Duration::from_millis(50),
            intervals: 30,
            elapsed: Duration::from_millis(1500),
            ended: None,
            total: MeasuredRates {
                pages: 1000,
                measured_pages: 1000,
                pages_per_second: PagesPerSecond::default(),
                windows: vec![window(50), window(1500)],
            },
            blocks: Vec::new(),
            ranges: Vec::new(),
            cost: Cost::default(),
            cancelled: false,
        })
    }

    #[test]
    fn what_was_measured_before_makes_a_likely_value() {
        let now = half_of_a_round();
        let measured = hot_pages();
        let writes = Writes {
            working_set: Some(&measured),
            ..Writes::default()
        };
        let of = |mode, when, rates| time_left(&now, &plan(mode, when), rates, &writes);
        let left = of(Mode::Hybrid, WhenStalled::GoOn, RATES).unwrap();
        assert!(
            (left.likely_s - (5.0 + 300.0 / 100.0)).abs() < 1e-6,
            "{left:?}"
        );
        assert_eq!((left.low_s, left.high_s), (2.5, Some(30.0)));
        // Pre-copy: 300 pages take 3 s at this rate in each round, and fit into the downtime at a
        // higher one.
        assert_eq!(of(Mode::Precopy, WhenStalled::GoOn, RATES), None);
        let left = of(Mode::Precopy, WhenStalled::Switch, RATES).unwrap();
        assert!((left.likely_s - (5.0 + 5.0 * 3.0)).abs() < 1e-6, "{left:?}");
        let fast = Rates {
            present: 2000.0,
            ..RATES
        };
        let left = of(Mode::Precopy, WhenStalled::GoOn, fast).unwrap();
        assert!((left.likely_s - (0.25 + 0.15)).abs() < 1e-6, "{left:?}");
        assert_eq!(left.high_s, None);
    }

    #[test]
    fn postcopy_ends_with_the_last_missing_page() {
        let mut now = snapshot();
        (now.phase, now.missing) = (Phase::Postcopy, Some(300));
        let all = left(&now, Mode::Postcopy, None).unwrap();
        assert_eq!(all, [Some(1.5), Some(3.0), Some(6.0)]);
        now.phase = Phase::Switchover;
        assert_eq!(left(&now, Mode::Postcopy, None), None);
    }

    #[test]
    fn the_destination_does_not_know_the_rounds() {
        let mut now = half_of_a_round();
        now.stage = Stage::Destination(DestinationStage::Receiving);
        assert_eq!(left(&now, Mode::Precopy, Some(0.0)), None);
        assert_eq!(left(&now, Mode::Hybrid, Some(0.0)), None);
    }
}
