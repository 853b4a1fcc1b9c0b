//! A limit on the lines of another host that are shown: it may print without end.

use std::time::{Duration, Instant};

/// Lines that are shown at once.
const BURST: u32 = 256;

/// The interval after which one more line may be shown.
const INTERVAL: Duration = Duration::from_millis(100);

/// A burst of lines, later ones at intervals. The others are counted.
#[derive(Debug, Default)]
pub(super) struct LineLimit {
    /// How many lines of the [`BURST`] are used up, and the time up to which intervals were
    /// credited.
    used: u32,
    since: Option<Instant>,
    /// Lines that were not shown since the last one that was.
    left_out: u64,
}

impl LineLimit {
    /// Whether one more line may be shown, and how many were left out before it.
    pub(super) fn allow(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let intervals = now.saturating_duration_since(since).as_millis() / INTERVAL.as_millis();
        if intervals > 0 {
            let credit = u32::try_from(intervals).unwrap_or(u32::MAX);
            self.used = self.used.saturating_sub(credit);
            self.since = Some(now);
        }
        if self.used == BURST {
            self.left_out += 1;
            return None;
        }
        self.used += 1;
        Some(self.left_out())
    }

    /// How many lines were left out since the last one that was shown. They are counted once.
    pub(super) fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_shown_and_then_one_line_an_interval() {
        let mut limit = LineLimit::default();
        let mut now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(limit.allow(now), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(limit.allow(now), None);
        }
        now += INTERVAL;
        assert_eq!(limit.allow(now), Some(1000));
        assert_eq!(limit.allow(now), None);
        assert_eq!((limit.left_out(), limit.left_out()), (1, 0));
        // After a long time the burst is as large as at first, not larger.
        now += 1_000_000 * INTERVAL;
        for _ in 0..BURST {
            assert_eq!(limit.allow(now), Some(0));
        }
        assert_eq!(limit.allow(now), None);
    }
}
