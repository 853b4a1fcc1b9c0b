//! What is told while a migration runs.

use std::fmt::Debug;
use std::time::Duration;

use serde::Serialize;

/// Where a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Links are opened, machines compared.
    Connecting,
    /// Pages follow the running guest.
    Precopy,
    /// The guest is stopped.
    Switchover,
    /// The guest runs at the destination, pages follow.
    Postcopy,
}

/// A moment of a migration.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// The pre-copy round under way, from 1 on.
    pub round: u32,
    /// Pages of this phase (of this round) that are done.
    pub done_pages: u64,
    /// Pages of this phase (of this round) in all.
    pub total_pages: u64,
    /// Bytes sent or received in all.
    pub bytes: u64,
    /// Bytes a second, lately.
    pub bytes_per_second: f64,
}

impl Progress {
    /// How long the rest of this phase (of this round) takes at the present
    /// rate, if that can be said.
    #[allow(clippy::cast_precision_loss)]
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.total_pages.saturating_sub(self.done_pages) as f64 * 4096.0;
        Duration::try_from_secs_f64(left / self.bytes_per_second).ok()
    }
}

/// Somebody who wants to know how it goes. Called often and from several
/// threads: must return at once.
pub trait Observer: Send + Sync + Debug {
    /// The state of things, a few times a second.
    fn progress(&self, progress: &Progress);

    /// Something that a person should read: one sentence.
    fn notice(&self, text: &str);
}

/// Nobody wants to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn progress(&self, _: &Progress) {}
    fn notice(&self, _: &str) {}
}
