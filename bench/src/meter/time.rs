//! Time differences as numbers.

use std::time::Instant;

/// From `zero` to `at` in seconds; negative when it comes before.
pub fn seconds_between(zero: Instant, at: Instant) -> f64 {
    match at.checked_duration_since(zero) {
        Some(after) => after.as_secs_f64(),
        None => -zero.duration_since(at).as_secs_f64(),
    }
}
