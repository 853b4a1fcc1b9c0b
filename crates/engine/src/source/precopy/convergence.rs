//! Whether pre-copy has converged: whether the dirty pages fit into the downtime. `hikkoshi
//! estimate` simulates rounds by the same rules.

use std::time::Duration;

use crate::source::error::SourceFailure;
use crate::source::options::SourceOptions;
use hikkoshi_wire::Mode;

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

    /// Whether so many pages can be sent within the downtime. The pause takes a
    /// `drain` of it.
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

    /// The error for a migration that still has `dirty` dirty pages after `rounds` rounds.
    pub(crate) fn failure(&self, rounds: u32, dirty: u64) -> SourceFailure {
        // Rates and sizes in MiB: far inside the range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mib_per_second = (self.rate / (1 << 20) as f64) as u64;
        SourceFailure::NotConverging {
            rounds,
            dirty_mib: (dirty * hikkoshi_pages::PAGE_BYTES) >> 20,
            mib_per_second,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
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
