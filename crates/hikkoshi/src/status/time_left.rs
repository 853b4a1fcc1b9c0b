//! How long a migration still takes, as far as its rates say.

use hikkoshi_engine::Mode;
use hikkoshi_engine::report::{Phase, Snapshot, Stage};
use hikkoshi_status::TimeLeft;

use super::rates::Rates;

/// An estimate. `rates`: pages that are done per second. `dirty_rate`: pages that the guest dirties
/// per second. `dirty`: pages that are dirty now.
///
/// In pre-copy, each round leaves what the guest dirties meanwhile. With `r` pages sent and `d`
/// dirtied per second, the rest of a round of `n` pages and all rounds after it take `n / (r - d)`,
/// if `d < r`. That is pessimistic, because the shorter a round, the more often the guest writes to
/// the same pages. Hybrid sends the rest of the round, and then what is dirty once.
#[allow(clippy::cast_precision_loss)]
pub(super) fn time_left(
    now: &Snapshot,
    mode: Mode,
    rates: Rates,
    dirty_rate: Option<f64>,
    dirty: u64,
) -> Option<TimeLeft> {
    let rest = now.total_pages.saturating_sub(now.done_pages) as f64;
    let time = |rate: f64| -> Option<f64> {
        if rate <= 0.0 {
            return None;
        }
        match (now.phase, mode, dirty_rate) {
            (Phase::Postcopy, ..) => Some(now.missing? as f64 / rate),
            (Phase::Precopy, Mode::Hybrid, _) => {
                let round = rest / rate;
                let dirtied = dirty_rate.unwrap_or(0.0) * round;
                let left = (dirty as f64 + dirtied).min(now.pages.guest as f64);
                Some(round + left / rate)
            }
            (Phase::Precopy, _, Some(dirtied)) => (dirtied < rate).then(|| rest / (rate - dirtied)),
            (Phase::Precopy, ..) => Some(rest / rate),
            _ => None,
        }
    };
    // The destination does not know the rounds.
    if now.phase == Phase::Precopy && matches!(now.stage, Stage::Destination(_)) {
        return None;
    }
    // In the first round of pre-copy nothing says how many follow.
    let unknown_rounds =
        now.phase == Phase::Precopy && mode == Mode::Precopy && dirty_rate.is_none();
    Some(TimeLeft {
        low_s: time(rates.best)?,
        likely_s: time(rates.present)?,
        high_s: time(rates.worst).filter(|_| !unknown_rounds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sampler::tests::snapshot;

    const RATES: Rates = Rates {
        present: 100.0,
        worst: 50.0,
        best: 200.0,
    };

    fn left(now: &Snapshot, mode: Mode, dirty_rate: Option<f64>) -> Option<[Option<f64>; 3]> {
        let left = time_left(now, mode, RATES, dirty_rate, 100)?;
        Some([Some(left.low_s), Some(left.likely_s), left.high_s])
    }

    #[test]
    fn precopy_ends_when_the_rounds_become_short() {
        let mut now = snapshot();
        (now.phase, now.done_pages, now.total_pages) = (Phase::Precopy, 500, 1000);
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
        let mut now = snapshot();
        (now.phase, now.done_pages, now.total_pages) = (Phase::Precopy, 500, 1000);
        let hybrid = left(&now, Mode::Hybrid, Some(50.0)).unwrap();
        assert_eq!(hybrid[1], Some(5.0 + (100.0 + 250.0) / 100.0));
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
}
