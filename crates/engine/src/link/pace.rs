//! `--bandwidth`: a ceiling on background bytes a second.

use std::time::{Duration, Instant};

/// How far sending may run ahead of the ceiling: what a burst may hold.
const BURST: Duration = Duration::from_millis(10);

/// A token bucket. Urgent pages never pass through one.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    /// The instant at which all that was sent so far is paid for.
    paid: Instant,
}

impl Pace {
    /// No more than `bytes_per_second`; `None`: as fast as it goes.
    pub fn new(bytes_per_second: Option<u64>, now: Instant) -> Self {
        Self {
            bytes_per_second,
            paid: now,
        }
    }

    /// Books `bytes` that leave now; gives how long to wait before more do.
    pub fn spend(&mut self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else {
            return Duration::ZERO;
        };
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.paid = self.paid.max(now).checked_add(cost).unwrap_or(self.paid);
        (self.paid - now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_to_the_ceiling() {
        let begin = Instant::now();
        let mut now = begin;
        let mut pace = Pace::new(Some(1_000_000), now);
        for _ in 0..100 {
            now += pace.spend(64 << 10, now);
        }
        let seconds = (now - begin).as_secs_f64();
        let bytes = 100.0 * 65536.0;
        assert!((seconds - bytes / 1e6).abs() < 0.1, "{seconds}");
    }

    #[test]
    fn without_a_ceiling_nobody_waits() {
        let now = Instant::now();
        let mut pace = Pace::new(None, now);
        assert_eq!(pace.spend(u64::MAX, now), Duration::ZERO);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let now = Instant::now();
        let mut pace = Pace::new(Some(1_000_000), now);
        let later = now + Duration::from_secs(100);
        assert!(pace.spend(1_000_000, later) > Duration::from_millis(900));
    }
}
