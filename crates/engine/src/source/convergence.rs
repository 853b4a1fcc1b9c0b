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
/// whose rounds differ by a quarter (a test), and did in 20 of 20 moves (docs/control.md).
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
    /// For how long the paused guest would wait until its dirty log is read, if that alone is more
    /// than the downtime allows. Fewer dirty pages do not change that.
    pub slow_log: Option<Duration>,
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
        if let Some(reading) = self.slow_log {
            return write!(
                f,
                "pre-copy does not converge: however little is dirty, the paused guest would wait \
                 for about {} ms until its dirty log is read, which is longer than the downtime \
                 allowed",
                reading.as_millis()
            );
        }
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

    /// Whether so many pages can be sent within the downtime. The pause takes a `drain` of it.
    pub fn fits(&self, dirty: u64, downtime: Duration, drain: Duration) -> bool {
        self.may_pause(dirty, downtime, drain, Duration::ZERO)
    }

    /// Whether the guest may be paused: so many pages [fit](Self::fits), although the paused guest
    /// also waits until its log is read.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn may_pause(
        &self,
        dirty: u64,
        downtime: Duration,
        drain: Duration,
        reading: Duration,
    ) -> bool {
        if is_slow_log(reading, downtime) {
            return false;
        }
        let mut rest = budget(downtime).saturating_sub(reading);
        if !drain.is_zero() {
            // There is no budget for storage that takes longer than that to drain.
            rest = rest.saturating_sub(drain).max(downtime / 10);
        }
        (dirty * hikkoshi_pages::PAGE_BYTES) as f64 <= self.rate * rest.as_secs_f64()
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

    /// The limit of the downtime with which the guest [may likely be paused](Self::may_pause) after
    /// the next rounds. `None`: none that can be set.
    fn sufficient_downtime(&self, drain: Duration, reading: Duration) -> Option<Duration> {
        let most = self.left.iter().copied().fold(0.0, f64::max);
        let varies = (most + reading.as_secs_f64()) * MARGIN;
        let varies = Duration::try_from_secs_f64(varies).unwrap_or(Duration::MAX);
        let downtime = varies.saturating_add(SWITCHOVER_COST).saturating_add(drain);
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

    /// What is wrong with a migration that still has `dirty` dirty pages after `rounds` rounds, and
    /// whose guest [may not be paused](Self::may_pause).
    pub(crate) fn failure(
        &self,
        (rounds, dirty): (u32, u64),
        downtime: Duration,
        drain: Duration,
        reading: Duration,
    ) -> NotConverging {
        // Rates and sizes in MiB: far inside the range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mib_per_second = (self.rate / (1 << 20) as f64) as u64;
        NotConverging {
            rounds,
            dirty_mib: (dirty * hikkoshi_pages::PAGE_BYTES) >> 20,
            mib_per_second,
            downtime: self.sufficient_downtime(drain, reading),
            slow_log: is_slow_log(reading, downtime).then_some(reading),
        }
    }
}

/// The part of the downtime in which pages can be sent.
fn budget(downtime: Duration) -> Duration {
    downtime.saturating_sub(SWITCHOVER_COST).max(downtime / 2)
}

/// Whether the paused guest would wait for too long until its log is read. A downtime shorter than
/// the switchover itself is kept by no migration, so a log that is read within that time is quick.
fn is_slow_log(reading: Duration, downtime: Duration) -> bool {
    reading > budget(downtime).max(SWITCHOVER_COST)
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

    /// The guest waits for the log while it is paused: a log that takes longer than the downtime
    /// leaves no time for pages, and none for a pause.
    #[test]
    fn reading_the_log_counts_as_downtime() {
        let ms = Duration::from_millis;
        let may_pause = |dirty, downtime, reading| {
            let none = Duration::ZERO;
            let failure = fast().failure((1, dirty), ms(downtime), none, ms(reading));
            let may = fast().may_pause(dirty, ms(downtime), none, ms(reading));
            assert!(!may || failure.slow_log.is_none());
            (may, failure.slow_log.is_some())
        };
        // 1 ms is 262 pages.
        assert_eq!(may_pause(21_000, 300, 200), (false, false));
        assert_eq!(may_pause(20_900, 300, 200), (true, false));
        assert_eq!(may_pause(0, 150, 130), (true, false));
        assert_eq!(may_pause(1, 150, 130), (false, false));
        assert_eq!(may_pause(0, 150, 200), (false, true));
        // No downtime is that short.
        assert_eq!(may_pause(0, 1, 20), (true, false));
        assert_eq!(may_pause(0, 1, 21), (false, true));
        // Storage that takes long to drain does not make it longer.
        let slow_storage = |reading| fast().may_pause(3900, ms(150), ms(500), ms(reading));
        assert!(slow_storage(120) && !slow_storage(200));
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
            let reading = Duration::from_millis(between(0, 50));
            let mut convergence = Convergence::default();
            let mut round = |convergence: &mut Convergence| {
                let rate = rate * between(75, 125) / 100;
                convergence.measure(rate, Duration::from_secs(1));
                let left = dirty * between(75, 125) / 100;
                convergence.leaves(left);
                let varies = u32::try_from(between(75, 125)).unwrap();
                (left, reading * varies / 100)
            };
            for _ in 0..30 {
                round(&mut convergence);
            }
            let failure = convergence.failure((30, dirty), Duration::ZERO, drain, reading);
            let downtime = failure.downtime.unwrap();
            // The next two.
            let mut fits = || {
                let (left, reading) = round(&mut convergence);
                convergence.may_pause(left, downtime, drain, reading)
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
        let fails = |convergence: &Convergence| {
            let none = Duration::ZERO;
            convergence.failure((3, 1), DOWNTIME, none, none)
        };
        let longest = |seconds: u64| (seconds << 30) / hikkoshi_pages::PAGE_BYTES;
        convergence.leaves(longest(470));
        let failure = fails(&convergence);
        assert_eq!(failure.downtime, Some(Duration::from_secs(588)));
        assert_eq!(
            failure.advice_now("hikkoshi set web"),
            "`hikkoshi set web --max-downtime 588000` likely lets it converge, Ctrl-C cancels"
        );
        convergence.leaves(longest(1024));
        let failure = fails(&convergence);
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
