//! The steps of a switchover, with the time of each.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hikkoshi_account::SwitchoverStep;

/// Records the steps of one side.
#[derive(Debug, Default)]
pub(crate) struct SwitchoverSteps(Mutex<Steps>);

#[derive(Debug, Default)]
struct Steps {
    zero: Option<Instant>,
    steps: Vec<SwitchoverStep>,
    /// When the guest was paused at the source, and when it ran again, on either side.
    paused: Option<Instant>,
    resumed: Option<Instant>,
    /// When it likely ran again, if that was before this side knew.
    likely_resumed: Option<Instant>,
}

impl SwitchoverSteps {
    /// Times count from `zero`, when the guest was paused.
    pub(crate) fn begin(&self, zero: Instant) {
        self.begin_with(zero, zero);
    }

    /// Times count from `zero`. The guest was paused at `paused`.
    pub(crate) fn begin_with(&self, zero: Instant, paused: Instant) {
        *self.lock() = Steps {
            zero: Some(zero),
            paused: Some(paused),
            ..Steps::default()
        };
    }

    /// The guest runs again since `at`.
    pub(crate) fn end(&self, at: Instant) {
        self.lock().resumed.get_or_insert(at);
    }

    /// The guest likely ran already at `at`, before [`end`](Self::end).
    pub(crate) fn likely_end(&self, at: Instant) {
        let mut recorded = self.lock();
        if let Some(resumed) = recorded.resumed {
            recorded.likely_resumed.get_or_insert(at.min(resumed));
        }
    }

    /// How long the guest likely was paused. `None`: not known, or it was not.
    pub(crate) fn likely_downtime(&self) -> Option<Duration> {
        let recorded = self.lock();
        let resumed = recorded.likely_resumed?;
        Some(resumed.saturating_duration_since(recorded.paused?))
    }

    /// How long the guest has been paused, or was paused. `None`: it was not.
    pub(crate) fn downtime(&self, now: Instant) -> Option<Duration> {
        let recorded = self.lock();
        let until = recorded.resumed.unwrap_or(now);
        Some(until.saturating_duration_since(recorded.paused?))
    }

    /// For how long the guest has run again. `None`: it does not, or was not paused.
    pub(crate) fn since_resumed(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.lock().resumed?))
    }

    /// Whether the guest is paused for the switchover.
    pub(crate) fn is_paused(&self) -> bool {
        let recorded = self.lock();
        recorded.paused.is_some() && recorded.resumed.is_none()
    }

    /// `step` is done now.
    pub(crate) fn done(&self, step: &'static str) {
        self.done_at(step, Instant::now());
    }

    /// `step` was done at `at`. Does nothing before [`begin`](Self::begin).
    pub(crate) fn done_at(&self, step: &'static str, at: Instant) {
        let mut recorded = self.lock();
        if let Some(zero) = recorded.zero {
            let at_ms = at.saturating_duration_since(zero).as_secs_f64() * 1e3;
            recorded.steps.push(SwitchoverStep {
                step: step.into(),
                at_ms,
            });
            tracing::debug!(step, at_ms, "switchover");
        }
    }

    /// All steps so far, in order.
    pub(crate) fn all(&self) -> Vec<SwitchoverStep> {
        self.lock().steps.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_from_the_beginning() {
        let steps = SwitchoverSteps::default();
        steps.done("early");
        assert_eq!(steps.all(), []);
        let zero = Instant::now();
        steps.begin(zero);
        steps.done_at("paused", zero + Duration::from_millis(2));
        let all = steps.all();
        let [step] = &all[..] else {
            panic!("one step");
        };
        assert_eq!(step.step, "paused");
        assert!((step.at_ms - 2.0).abs() < 1e-6, "{step:?}");
    }

    /// What the other side says about the guest is not believed beyond what this side knows.
    #[test]
    fn the_likely_downtime_is_within_the_known_one() {
        let steps = SwitchoverSteps::default();
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        steps.likely_end(at(1));
        assert_eq!(steps.likely_downtime(), None, "not paused");
        steps.begin(zero);
        steps.likely_end(at(1));
        assert_eq!(steps.likely_downtime(), None, "it is paused");
        assert_eq!(steps.since_resumed(at(200)), None);
        steps.end(at(170));
        steps.likely_end(at(50));
        steps.likely_end(at(60));
        assert_eq!(steps.likely_downtime(), Some(Duration::from_millis(50)));
        assert_eq!(steps.downtime(at(200)), Some(Duration::from_millis(170)));
        assert_eq!(
            steps.since_resumed(at(200)),
            Some(Duration::from_millis(30))
        );
        steps.begin(zero);
        assert_eq!(steps.likely_downtime(), None, "another pause");
        steps.end(at(170));
        steps.likely_end(at(3_600_000));
        assert_eq!(steps.likely_downtime(), Some(Duration::from_millis(170)));
    }
}
