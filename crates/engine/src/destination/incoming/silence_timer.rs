//! Limits how long a source may be silent.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::destination::error::DestinationFailure;
use crate::disks::{Waiting, patience};
use crate::report::Counters;
use hikkoshi_link::LinkError;

/// How long the source has been silent. Before *ready* the destination may give the migration up at
/// any time, and does so after a time limit.
#[derive(Debug)]
pub(super) struct SilenceTimer {
    limit: Duration,
    /// For what the source waits for while disks are copied, as [`patience`] says.
    stall_timeout: Duration,
    at: Instant,
    carried: u64,
}

impl SilenceTimer {
    pub(super) fn new(limit: Duration, stall_timeout: Duration) -> Self {
        Self {
            limit,
            stall_timeout,
            at: Instant::now(),
            carried: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        self.at = Instant::now();
    }

    /// Also counts what has arrived on the other links, and answers about disks. `waiting` is what
    /// the source's machine waits for, for each disk: while the machine here owes it an answer, it
    /// is silent for that reason.
    pub(super) fn check(
        &mut self,
        counters: &Counters,
        waiting: impl Iterator<Item = Waiting>,
        doing: &'static str,
    ) -> Result<(), DestinationFailure> {
        match self.is_silent(counters, waiting, Instant::now()) {
            true => Err(DestinationFailure::link(doing)(LinkError::TooSlow)),
            false => Ok(()),
        }
    }

    fn is_silent(
        &mut self,
        counters: &Counters,
        waiting: impl Iterator<Item = Waiting>,
        now: Instant,
    ) -> bool {
        let answers = counters.disk_answer_bytes.load(Ordering::Relaxed);
        let carried = counters.received().wrapping_add(answers);
        if carried != self.carried {
            (self.carried, self.at) = (carried, now);
        }
        // A wait that is too long the source ends itself, and says why. Whether its guest is paused
        // is not known here.
        let owed = waiting.filter_map(|waiting| patience(self.stall_timeout, waiting, false));
        let owed = owed.max().unwrap_or_default();
        now.saturating_duration_since(self.at) > self.limit.saturating_add(owed)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);
    const STALL: Duration = Duration::from_secs(20);
    const SECOND: Duration = Duration::from_secs(1);

    /// Whether a source is given up that has been silent for so long.
    fn is_given_up(silent: Duration, waiting: &[Waiting]) -> bool {
        let mut timer = SilenceTimer::new(LIMIT, STALL);
        let now = timer.at + silent;
        timer.is_silent(&Counters::default(), waiting.iter().copied(), now)
    }

    #[test]
    fn a_source_that_waits_for_the_disk_here_is_not_silent() {
        for (waiting, patience) in [
            (vec![], LIMIT),
            (vec![Waiting::Nothing, Waiting::Over], LIMIT),
            (vec![Waiting::Nothing, Waiting::Request], LIMIT + STALL),
            // A flush, for instance.
            (
                vec![Waiting::LongRequest, Waiting::Request],
                LIMIT + 15 * STALL,
            ),
        ] {
            assert!(!is_given_up(patience, &waiting), "{waiting:?}");
            assert!(is_given_up(patience + SECOND, &waiting), "{waiting:?}");
        }
    }

    #[test]
    fn an_answer_of_the_disk_is_a_sign_of_life() {
        let mut timer = SilenceTimer::new(LIMIT, STALL);
        let counters = Counters::default();
        let begun = timer.at;
        let mut is_silent = |now| timer.is_silent(&counters, std::iter::empty(), now);
        Counters::add(&counters.disk_answer_bytes, 16);
        assert!(!is_silent(begun + LIMIT + SECOND));
        assert!(!is_silent(begun + 2 * LIMIT));
        assert!(is_silent(begun + 2 * LIMIT + 2 * SECOND));
    }
}
