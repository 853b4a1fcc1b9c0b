//! What an account is made of.

use std::time::{Duration, Instant};

use hikkoshi_account::GuestState;
use hikkoshi_handover::History;

/// The state of a guest that was to run at the destination, or to stay paused. `shut_down`: whether
/// it has shut itself down, if that is known.
pub(crate) fn guest_state(running: bool, shut_down: Option<bool>) -> GuestState {
    match (shut_down, running) {
        (Some(true), _) => GuestState::ShutDown,
        (_, false) => GuestState::Paused,
        (Some(false), true) => GuestState::Running,
        (None, true) => GuestState::Unknown,
    }
}

/// A time in whole milliseconds.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time in milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// How long the migration took that this engine has worked on since `begun`, in milliseconds.
/// `history`: that of a migration that another engine began.
pub(crate) fn total_ms(begun: Instant, history: Option<&History>) -> f64 {
    let here = begun.elapsed();
    // The clock may have been set back.
    let total = history.and_then(|history| history.begun.elapsed().ok());
    millis(total.unwrap_or(here).max(here))
}
