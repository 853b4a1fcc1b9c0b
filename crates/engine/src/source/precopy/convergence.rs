//! Whether pre-copy has converged: whether the dirty pages fit into the downtime. `hikkoshi
//! estimate` simulates rounds by the same rules.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::source::options::SourceOptions;
use hikkoshi_wire::Mode;

/// The longest limit of the downtime that can be set.
pub const MAX_DOWNTIME: Duration = Duration::from_secs(600);

/// The part of the downtime that is not sending dirty pages: pausing, saving
/// and loading the device state, resuming. 17 ms were measured for QEMU.
const SWITCHOVER_COST: Duration = Duration::from_millis(20);

/// Although the dirty pages fit into the downtime, another round is worthwhile if
/// they are at most this fraction of those of the round before, …
const SHRINKING: f64 = 0.5;

/// … and sending them takes longer than this, which is less than QEMU's share of the
/// downtime. So the guest is paused for a small part of the allowed downtime, and
/// the additional rounds take at most twice that downtime in total.
const NEGLIGIBLE_DOWNTIME: Duration = Duration::from_millis(2);

/// The newest rounds, of which that with the most to send says which downtime would suffice: what
/// they leave varies.
const NEWEST: usize = 5;

/// And it may vary more. With both, the downtime suffices in the next rounds of 19 of 20 guests
/// whose rounds differ by a quarter (a test).
const MARGIN: f64 = 1.25;

/// How pre-copy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrecopyResult {
    /// The dirty pages fit into the downtime: send them with the guest paused.
    Converged,
    /// The dirty pages follow after the switchover.
    StartPostcopy,
}

/// Estimates the downtime from the rate of the rounds.
#[derive(Debug, Default)]
pub struct Convergence {
    /// Bytes a second, in the last round that was large enough to measure.
    rate: f64,
    /// How long it would have taken to send what each of the newest rounds has left, in seconds.
    left: VecDeque<f64>,
}

/// Rounds that have not converged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotConverging {
    /// Rounds done.
    pub rounds: u32,
    /// Dirty memory, in MiB: an estimate.
    pub dirty_mib: u64,
    /// The measured rate, in MiB/s.
    pub mib_per_second: u64,
    /// The limit of the downtime with which they would likely converge. `None`: it would be longer
    /// than [`MAX_DOWNTIME`].
    pub downtime: Option<Duration>,
}

impl NotConverging {
    /// What to do before the next migration, for the operator.
    pub(crate) fn advice(&self) -> String {
        match self.downtime {
            Some(downtime) => format!(
                "allow more downtime (--max-downtime {}), or use --mode hybrid",
                downtime.as_millis()
            ),
            None => "no downtime that can be set suffices: use --mode hybrid".to_owned(),
        }
    }

    /// What to do while the migration runs. `set` is the command that changes its limits.
    pub(crate) fn advice_now(&self, set: &str) -> String {
        match self.downtime {
            Some(downtime) => format!(
                "`{set} --max-downtime {}` likely lets it converge, Ctrl-C cancels",
                downtime.as_millis()
            ),
            None => {
                "no downtime that can be set suffices: use --mode hybrid. Ctrl-C cancels".to_owned()
            }
        }
    }
}

impl fmt::Display for NotConverging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pre-copy does not converge: after {} rounds about {} MiB are still dirty, and at {} \
             MiB/s they need longer than the downtime allowed",
            self.rounds, self.dirty_mib, self.mib_per_second
        )
    }
}

impl Convergence {
    /// Records a round that sent `bytes` in `time`.
    #[allow(clippy::cast_precision_loss)]
    pub fn measure(&mut self, bytes: u64, time: Duration) {
        // A short round measures buffers rather than the link.
        if bytes > 8 << 20 || self.rate == 0.0 {
            self.rate = bytes as f64 / time.as_secs_f64().max(1e-6);
        }
    }

    /// Whether pre-copy ends after this `round`, if so many pages are `dirty` and sending them is
    /// preceded by a `drain`; `before` are those of the round before.
    pub fn has_converged(
        &self,
        options: &SourceOptions,
        round: u32,
        dirty: u64,
        before: u64,
        drain: Duration,
    ) -> bool {
        options.mode == Mode::Precopy
            && self.fits(dirty, options.max_downtime, drain)
            && !(round < options.max_rounds && self.worth_another_round(dirty, before, drain))
    }

    /// Whether so many pages can be sent within the downtime. The pause takes a `drain` of it, or
    /// another time until they are sent.
    #[allow(clippy::cast_precision_loss)]
    pub fn fits(&self, dirty: u64, downtime: Duration, drain: Duration) -> bool {
        let budget = downtime.saturating_sub(SWITCHOVER_COST).max(downtime / 2);
        // There is no budget for storage that takes longer than that to drain.
        let budget = budget.saturating_sub(drain).max(downtime / 10);
        (dirty * hikkoshi_pages::PAGE_BYTES) as f64 <= self.rate * budget.as_secs_f64()
    }

    /// Whether another round makes the downtime much shorter: the last one sent
    /// `before` dirty pages, and `dirty` are dirty now. A round that consists mostly
    /// of its `drain` does not.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn worth_another_round(&self, dirty: u64, before: u64, drain: Duration) -> bool {
        let left = (dirty * hikkoshi_pages::PAGE_BYTES) as f64;
        left > self.rate * NEGLIGIBLE_DOWNTIME.max(drain).as_secs_f64()
            && dirty as f64 <= before as f64 * SHRINKING
    }

    /// Records what a round has left.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn leaves(&mut self, dirty: u64) {
        if self.left.len() == NEWEST {
            self.left.pop_front();
        }
        let bytes = (dirty * hikkoshi_pages::PAGE_BYTES) as f64;
        self.left.push_back(bytes / self.rate.max(1.0));
    }

    /// The limit of the downtime with which the next rounds likely [fit](Self::fits). `None`: none
    /// that can be set.
    fn sufficient_downtime(&self, drain: Duration) -> Option<Duration> {
        let most = self.left.iter().copied().fold(0.0, f64::max);
        let sending = Duration::try_from_secs_f64(most * MARGIN).unwrap_or(Duration::MAX);
        let downtime = sending
            .saturating_add(SWITCHOVER_COST)
            .saturating_add(drain);
        // Two digits.
        let step = match downtime {
            long if long >= Duration::from_secs(10) => 1000,
            long if long >= Duration::from_secs(1) => 100,
            _ => 10,
        };
        let millis = u64::try_from(downtime.as_millis()).unwrap_or(u64::MAX);
        let rounded = Duration::from_millis((millis / step + 1).saturating_mul(step));
        (rounded <= MAX_DOWNTIME).then_some(rounded)
    }

    /// What is wrong with a migration that still has `dirty` dirty pages after `rounds` rounds.
    pub(crate) fn failure(&self, rounds: u32, dirty: u64, drain: Duration) -> NotConverging {
        // Rates and sizes in MiB: far inside the range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mib_per_second = (self.rate / (1 << 20) as f64) as u64;
        NotConverging {
            rounds,
            dirty_mib: (dirty * hikkoshi_pages::PAGE_BYTES) >> 20,
            mib_per_second,
            downtime: self.sufficient_downtime(drain),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[allow(clippy::cast_precision_loss)]
mod tests {
    use super::*;

    const DOWNTIME: Duration = Duration::from_millis(300);

    /// 1 GiB/s: 2 ms are 524 pages, and 280 ms 73,400.
    fn fast() -> Convergence {
        let mut convergence = Convergence::default();
        convergence.measure(1 << 30, Duration::from_secs(1));
        convergence
    }

    #[test]
    fn what_fits_into_the_downtime() {
        let none = Duration::ZERO;
        assert!(fast().fits(73_000, DOWNTIME, none));
        assert!(!fast().fits(74_000, DOWNTIME, none));
        // Disks that take 200 ms to drain.
        let drain = Duration::from_millis(200);
        assert!(!fast().fits(22_000, DOWNTIME, drain));
        assert!(fast().fits(20_000, DOWNTIME, drain));
    }

    /// Guests and lines that differ from round to round by a quarter, at random.
    #[test]
    fn the_downtime_that_is_named_suffices_in_19_of_20_cases() {
        let mut random = 7_u64;
        let mut between = |low: u64, high: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            low + random % (high - low)
        };
        let mut suffices = 0;
        for _ in 0..1000 {
            // From 4 MiB to 4 GiB, at 20 MiB to 10 GiB a second: a downtime that can be set.
            let (dirty, rate) = (between(1 << 10, 1 << 20), between(20 << 20, 10 << 30));
            let drain = Duration::from_millis(between(0, 50));
            let mut convergence = Convergence::default();
            let mut round = |convergence: &mut Convergence| {
                let rate = rate * between(75, 125) / 100;
                convergence.measure(rate, Duration::from_secs(1));
                let left = dirty * between(75, 125) / 100;
                convergence.leaves(left);
                left
            };
            for _ in 0..30 {
                round(&mut convergence);
            }
            let downtime = convergence.failure(30, dirty, drain).downtime;
            let downtime = downtime.unwrap();
            // The next two.
            let mut fits = || {
                let left = round(&mut convergence);
                convergence.fits(left, downtime, drain)
            };
            suffices += u32::from(fits() || fits());
            // And is not much more than that.
            let needed = (dirty << 12) as f64 / rate as f64;
            let most = needed * 1.25 / 0.75 * MARGIN * 1.1 + 0.2;
            assert!(downtime.as_secs_f64() < most, "{downtime:?} for {needed} s");
        }
        assert!(suffices >= 950, "{suffices} of 1000");
    }

    /// 1 TiB a round, at 1 GiB/s.
    #[test]
    fn no_downtime_is_named_that_cannot_be_set() {
        let mut convergence = fast();
        let longest = |seconds: u64| (seconds << 30) / hikkoshi_pages::PAGE_BYTES;
        convergence.leaves(longest(470));
        let failure = convergence.failure(3, 1, Duration::ZERO);
        assert_eq!(failure.downtime, Some(Duration::from_secs(588)));
        assert_eq!(
            failure.advice_now("hikkoshi set web"),
            "`hikkoshi set web --max-downtime 588000` likely lets it converge, Ctrl-C cancels"
        );
        convergence.leaves(longest(1024));
        let failure = convergence.failure(3, 1, Duration::ZERO);
        assert_eq!(failure.downtime, None);
        for advice in [failure.advice(), failure.advice_now("hikkoshi set web")] {
            let says = "no downtime that can be set suffices: use --mode hybrid";
            assert!(advice.starts_with(says), "{advice}");
        }
    }

    #[test]
    fn another_round_must_make_the_downtime_much_shorter() {
        let worth = |dirty, before| fast().worth_another_round(dirty, before, Duration::ZERO);
        assert!(worth(10_000, 20_000));
        assert!(!worth(10_000, 19_999), "it does not shrink");
        assert!(worth(530, 2000));
        assert!(!worth(520, 2000), "sent in 2 ms");
        let drain = Duration::from_millis(100);
        assert!(!fast().worth_another_round(20_000, 100_000, drain));
    }
}
