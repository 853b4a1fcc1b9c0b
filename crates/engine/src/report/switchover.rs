//! The steps of a switchover, with the time of each.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A step of the switchover that is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchoverStep {
    /// What was done.
    pub step: &'static str,
    /// When it was done: milliseconds after the guest stopped, or, at the destination, after the
    /// source's message that everything has been sent.
    pub at_ms: f64,
}

/// Records the steps of one side.
#[derive(Debug, Default)]
pub(crate) struct SwitchoverSteps(Mutex<Steps>);

#[derive(Debug, Default)]
struct Steps {
    zero: Option<Instant>,
    steps: Vec<SwitchoverStep>,
}

impl SwitchoverSteps {
    /// Times count from `zero`.
    pub(crate) fn begin(&self, zero: Instant) {
        *self.lock() = Steps {
            zero: Some(zero),
            steps: Vec::new(),
        };
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
            recorded.steps.push(SwitchoverStep { step, at_ms });
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
    use std::time::Duration;

    #[test]
    fn steps_count_from_the_beginning() {
        let steps = SwitchoverSteps::default();
        steps.done("early");
        assert_eq!(steps.all(), []);
        let zero = Instant::now();
        steps.begin(zero);
        steps.done_at("paused", zero + Duration::from_millis(2));
        let [step] = steps.all()[..] else {
            panic!("one step");
        };
        assert_eq!(step.step, "paused");
        assert!((step.at_ms - 2.0).abs() < 1e-6, "{step:?}");
    }
}
