//! Waiting for a condition.

use crate::LONG;
use std::time::{Duration, Instant};

/// Waits until `look` returns `Ok`.
///
/// # Panics
/// When that takes too long, with the last error.
pub fn eventually(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + LONG;
    while let Err(instead) = look() {
        assert!(
            Instant::now() < deadline,
            "timed out waiting for {what}: {instead}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
