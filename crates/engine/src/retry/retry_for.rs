//! How long a side tries to get lost links back.

use std::time::Duration;

/// How long to retry after links were lost, once the guest may run at the destination.
///
/// It depends on whether the guest runs there before all of its pages have arrived: in post-copy a
/// lost link stops the guest at the first missing page, and it can only continue when both sides
/// are connected again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryFor {
    precopy: Duration,
    postcopy: Duration,
    /// The least for a destination that is *ready*.
    ready: Duration,
}

impl RetryFor {
    /// A lost link ends this side's part at once. Another engine can resume.
    pub const NEVER: Self = Self::always(Duration::ZERO);

    /// 15 minutes in a migration that ends in post-copy, and none in one that does not: there,
    /// every page has arrived before a retry could help. A destination that is *ready* waits 15 s
    /// in any mode: its source may connect to report that it keeps the guest.
    pub const BY_MODE: Self = Self {
        precopy: Duration::ZERO,
        postcopy: Duration::from_secs(15 * 60),
        ready: Duration::from_secs(15),
    };

    /// This time in every mode.
    pub const fn always(time: Duration) -> Self {
        Self {
            precopy: time,
            postcopy: time,
            ready: time,
        }
    }

    /// How long a destination that is *ready* waits for its source at least.
    pub(crate) const fn at_ready(self) -> Duration {
        self.ready
    }

    /// The time for a migration that ends in post-copy, or does not.
    pub(crate) const fn within(self, postcopy: bool) -> Duration {
        if postcopy {
            self.postcopy
        } else {
            self.precopy
        }
    }
}

impl From<Duration> for RetryFor {
    fn from(time: Duration) -> Self {
        Self::always(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_postcopy_is_retried_unasked() {
        assert_eq!(RetryFor::BY_MODE.within(true), Duration::from_secs(900));
        assert_eq!(RetryFor::BY_MODE.within(false), Duration::ZERO);
        let minute = Duration::from_secs(60);
        assert_eq!(RetryFor::from(minute).within(false), minute);
        assert_eq!(RetryFor::from(minute).within(true), minute);
        assert_eq!(RetryFor::NEVER.within(true), Duration::ZERO);
        assert_eq!(RetryFor::NEVER.at_ready(), Duration::ZERO);
        assert_eq!(RetryFor::BY_MODE.at_ready(), Duration::from_secs(15));
    }
}
