//! Time differences as numbers.

use std::time::Instant;

/// Seconds from `zero` to `at`; negative when `at` is earlier.
pub(crate) fn seconds_between(zero: Instant, at: Instant) -> f64 {
    match at.checked_duration_since(zero) {
        Some(after) => after.as_secs_f64(),
        None => -zero.duration_since(at).as_secs_f64(),
    }
}
