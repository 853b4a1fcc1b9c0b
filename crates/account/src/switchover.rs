//! The steps of the switchover.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A step of the switchover that is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwitchoverStep {
    /// What was done.
    pub step: Cow<'static, str>,
    /// When it was done: milliseconds after the guest was paused, or, at the destination, after the
    /// first message that the source sent since then.
    pub at_ms: f64,
}

/// Steps in a [`State`](crate::State): there, `at_ms` is another time.
pub(crate) mod in_state {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::SwitchoverStep;

    #[derive(Serialize, Deserialize)]
    struct Step<'a> {
        step: Cow<'a, str>,
        after_pause_ms: f64,
    }

    pub(crate) fn serialize<S: Serializer>(
        steps: &[SwitchoverStep],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(steps.iter().map(|done| Step {
            step: Cow::Borrowed(&*done.step),
            after_pause_ms: done.at_ms,
        }))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SwitchoverStep>, D::Error> {
        let steps = Vec::<Step<'static>>::deserialize(deserializer)?;
        let step = |done: Step<'static>| SwitchoverStep {
            step: done.step,
            at_ms: done.after_pause_ms,
        };
        Ok(steps.into_iter().map(step).collect())
    }
}
