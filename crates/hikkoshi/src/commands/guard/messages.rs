//! What `migrate` and its guard write to each other.

/// What the guard writes when it watches.
pub(super) const READY: &str = "ready";

/// What `migrate` writes when it ends normally.
pub(super) const OVER: &str = "over";

/// The longest message in bytes.
pub(super) const MAX_MESSAGE: usize = 64;
