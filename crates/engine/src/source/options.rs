//! The options of a migration at the source.

use std::time::Duration;

use hikkoshi_wire::Mode;

use crate::default_links::default_links;
use crate::retry::RetryFor;
use hikkoshi_link::{Compression, DEFAULT_STALL_TIMEOUT};
use hikkoshi_linux::Priority;

/// What to do when pre-copy does not converge within its rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenStalled {
    /// Report it and continue.
    Continue,
    /// Switch over; the other pages follow in post-copy.
    Switch,
    /// Fail; the guest keeps running at the source.
    Stop,
}

/// Which pages around a page request are sent ahead, in post-copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAhead {
    /// Nothing.
    Off,
    /// So many pages on either side of every request (at most 256); nothing
    /// around huge pages.
    Fixed(u32),
    /// 8 pages on either side at first; more where the guest reads sequentially,
    /// fewer where it accesses memory at random.
    Adaptive,
}

/// How to move a guest.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// The mode.
    pub mode: Mode,
    /// How long the guest may be paused, if pre-copy can control it.
    pub max_downtime: Duration,
    /// Limit on background traffic, in bytes a second.
    pub bandwidth: Option<u64>,
    /// Whether background pages are compressed, if the destination supports it.
    pub compression: Compression,
    /// Rounds before the switch in hybrid mode.
    pub precopy_rounds: u32,
    /// Rounds after which pre-copy counts as not converging.
    pub max_rounds: u32,
    /// What to do if pre-copy does not converge.
    pub when_stalled: WhenStalled,
    /// Whether the guest may be moved to processors that it can distinguish from
    /// its present ones.
    pub allow_cpu_mismatch: bool,
    /// Background links, in pre-copy and in post-copy: 1 to
    /// [`MAX_LINKS`](crate::MAX_LINKS). Each has a
    /// separate connection and thread on each side.
    pub links: u16,
    /// Whether devices are drained between taking the dirty log and copying, for
    /// a guest that needs it. Off only for tests and for measuring what it costs:
    /// without it, memory that disks write is lost.
    pub drain: bool,
    /// Whether frames that arrive for the guest while it is paused are sent to the
    /// destination.
    pub keep_frames: bool,
    /// In post-copy, how long after the switchover background pages are held back,
    /// except those that are read ahead. For measurements.
    pub background_delay: Duration,
    /// In post-copy, which pages around a page request are sent ahead.
    pub read_ahead: ReadAhead,
    /// In post-copy after pre-copy: whether pages that were written often are sent
    /// first.
    pub hot_first: bool,
    /// In post-copy: whether background bytes in flight are limited, and less are
    /// sent while a request is unanswered. Off only to measure what that costs.
    pub limit_in_flight: bool,
    /// In post-copy: whether the thread that reads page requests spins instead of
    /// sleeping. That occupies a processor.
    pub poll: bool,
    /// Whether threads that the guest waits for have priority over the others.
    pub priority: Priority,
    /// After *Commit*: how long to try to reconnect to the destination. Time with
    /// links up restores as much of this budget. When it is used up, nothing is
    /// lost: another engine can resume the migration.
    pub retry_for: RetryFor,
    /// How long a link may stall before it counts as lost.
    pub stall_timeout: Duration,
    /// Before *Commit*: how long the destination may accept or acknowledge nothing,
    /// and how much longer than `max_downtime` it may take until it is ready while
    /// the guest is paused. Then the guest is resumed here.
    pub peer_timeout: Duration,
    /// The command that changes the limits of this migration while it runs, for messages.
    pub set_command: String,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Hybrid,
            max_downtime: Duration::from_millis(300),
            bandwidth: None,
            compression: Compression::Auto,
            precopy_rounds: 1,
            max_rounds: 30,
            when_stalled: WhenStalled::Continue,
            allow_cpu_mismatch: false,
            links: default_links(),
            drain: true,
            keep_frames: true,
            background_delay: Duration::ZERO,
            read_ahead: ReadAhead::Adaptive,
            hot_first: true,
            limit_in_flight: true,
            poll: false,
            priority: Priority::ON,
            retry_for: RetryFor::NEVER,
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            peer_timeout: Self::DEFAULT_PEER_TIMEOUT,
            set_command: "hikkoshi set".to_owned(),
        }
    }
}

impl SourceOptions {
    /// The default of `peer_timeout`.
    pub const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(60);

    /// Whether the switchover may come before all memory has arrived.
    pub fn may_postcopy(&self) -> bool {
        self.mode != Mode::Precopy || self.when_stalled == WhenStalled::Switch
    }

    /// The mode with all phases that this migration may have: hybrid for a pre-copy that may
    /// switch to post-copy. The guest must be movable by it.
    pub fn phases(&self) -> Mode {
        match self.mode {
            Mode::Precopy if self.may_postcopy() => Mode::Hybrid,
            mode => mode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_precopy_that_may_switch_has_the_phases_of_hybrid() {
        let options = |mode, when_stalled| SourceOptions {
            mode,
            when_stalled,
            ..SourceOptions::default()
        };
        let switching = options(Mode::Precopy, WhenStalled::Switch);
        assert_eq!(switching.phases(), Mode::Hybrid);
        let plain = options(Mode::Precopy, SourceOptions::default().when_stalled);
        assert!(!plain.may_postcopy());
        assert_eq!(plain.phases(), Mode::Precopy);
        let postcopy = options(Mode::Postcopy, WhenStalled::Switch);
        assert_eq!(postcopy.phases(), Mode::Postcopy);
    }
}
