//! What `migrate` and its guard write to each other.

/// What the guard writes when it watches.
pub const READY: &str = "ready";

/// What `migrate` writes when it ends normally.
pub const OVER: &str = "over";

/// The longest message in bytes.
pub const MAX_MESSAGE: usize = 64;
