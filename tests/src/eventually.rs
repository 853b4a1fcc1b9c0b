//! Waiting for a condition.

use crate::LONG;
use std::time::{Duration, Instant};

/// Waits until `look` finds that it is so.
///
/// # Panics
/// When that takes too long, with what it found instead.
pub fn eventually(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + LONG;
    while let Err(instead) = look() {
        assert!(Instant::now() < deadline, "not {what}: {instead}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
