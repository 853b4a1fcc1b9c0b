//! What clients can use.

use std::time::Duration;

/// What clients can use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. Further ones wait.
    pub connections: usize,
    /// Readers of `/events` at once. Further ones get status 503.
    pub event_streams: usize,
    /// How long the head of a request may take, also the first on an idle connection.
    pub head: Duration,
    /// How long a client may accept nothing of a response.
    pub write: Duration,
    /// When a reader of `/events` has got nothing for this long, a comment is sent.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            event_streams: 16,
            head: Duration::from_secs(15),
            write: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
        }
    }
}
