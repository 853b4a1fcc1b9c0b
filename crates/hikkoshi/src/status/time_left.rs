//! How long a migration still takes, as far as its rates say.

use hikkoshi_engine::Mode;
use hikkoshi_engine::report::{Phase, Snapshot, Stage};
use hikkoshi_estimate::WorkingSet;
use hikkoshi_status::TimeLeft;

use super::rates::Rates;

/// What is known of the guest's writes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Writes<'a> {
    /// Pages that the guest dirties per second, from the second round on.
    pub(super) dirty_rate: Option<f64>,
    /// Pages that are dirty now.
    pub(super) dirty: u64,
    /// What was measured before the migration.
    pub(super) working_set: Option<&'a WorkingSet>,
}

/// An estimate. `rates`: pages that are done per second.
///
/// In pre-copy, each round leaves what the guest dirties meanwhile. With `r` pages sent and `d`
/// dirtied per second, the rest of a round of `n` pages and all rounds after it take `n / (r - d)`,
/// if `d < r`. That is pessimistic, because the shorter a round, the more often the guest writes to
/// the same pages. Hybrid sends the rest of the round, and then what is dirty once.
pub(super) fn time_left(
    now: &Snapshot,
    mode: Mode,
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
        (Phase::Precopy, Stage::Source(_)) if mode == Mode::Hybrid => hybrid(now, rates, writes),
        (Phase::Precopy, Stage::Source(_)) => precopy(now, rates, writes),
        _ => None,
    }
}

fn precopy(now: &Snapshot, rates: Rates, writes: &Writes<'_>) -> Option<TimeLeft> {
    let dirtied = writes.dirty_rate.unwrap_or(0.0);
    let time = |rate: f64| quotient(rest(now), rate - dirtied);
    Some(TimeLeft {
        low_s: time(rates.best)?,
        likely_s: time(rates.present)?,
        // In the first round nothing says how many follow.
        high_s: writes.dirty_rate.and_then(|_| time(rates.worst)),
    })
}

/// In the first round, which is often the only one, it is not known what the guest has dirtied. At
/// least that is nothing, at most everything that the round sends. What is likely follows from the
/// working sets, if they were measured; otherwise it is like the least.
fn hybrid(now: &Snapshot, rates: Rates, writes: &Writes<'_>) -> Option<TimeLeft> {
    let guest = pages(now.pages.guest);
    let all = pages(now.total_pages).min(guest);
    let time = |rate: f64, dirty_in_first_round: &dyn Fn(f64) -> f64| {
        let round = quotient(rest(now), rate)?;
        let left = match writes.dirty_rate {
            Some(dirtied) => (pages(writes.dirty) + dirtied * round).min(guest),
            None => dirty_in_first_round(round).min(all),
        };
        Some(round + left / rate)
    };
    let likely = |round: f64| match writes.working_set {
        Some(measured) => {
            let begun = now.rounds.last().map_or(now.at, |round| round.begun);
            left_dirty(measured, now.at.saturating_sub(begun).as_secs_f64() + round)
        }
        None => 0.0,
    };
    Some(TimeLeft {
        low_s: time(rates.best, &|_| 0.0)?,
        likely_s: time(rates.present, &likely)?,
        high_s: time(rates.worst, &|_| all),
    })
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
    use hikkoshi_handover::DestinationStage;
    use std::time::Duration;

    const RATES: Rates = Rates {
        present: 100.0,
        worst: 50.0,
        best: 200.0,
    };

    /// Low, likely, and high. 100 pages are dirty.
    fn left(now: &Snapshot, mode: Mode, dirty_rate: Option<f64>) -> Option<[Option<f64>; 3]> {
        let writes = Writes {
            dirty_rate,
            dirty: 100,
            working_set: None,
        };
        let left = time_left(now, mode, RATES, &writes)?;
        Some([Some(left.low_s), Some(left.likely_s), left.high_s])
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
        let left = time_left(&now, Mode::Hybrid, RATES, &writes).unwrap();
        assert!(
            (left.likely_s - (5.0 + 300.0 / 100.0)).abs() < 1e-6,
            "{left:?}"
        );
        assert_eq!((left.low_s, left.high_s), (2.5, Some(30.0)));
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
