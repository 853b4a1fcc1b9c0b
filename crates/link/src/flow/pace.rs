//! A ceiling on bytes a second: of what is sent in the background (`--bandwidth`),
//! or of huge pages that are rebuilt.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// How far it may run ahead of the ceiling: what a burst may hold.
const BURST: Duration = Duration::from_millis(10);

/// A token bucket. All background links of a migration share one; urgent pages
/// never pass through it.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: u64,
    zero: Instant,
    /// When all that was sent so far is paid for, in nanoseconds since `zero`.
    paid: AtomicU64,
}

impl Pace {
    /// No more than `bytes_per_second`.
    pub fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            zero: now,
            paid: AtomicU64::new(0),
        }
    }

    /// Books `bytes` that leave now.
    pub fn spend(&self, bytes: u64, now: Instant) {
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let now = self.since(now);
        // Only a number, which nothing else depends on.
        let _ = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| {
                Some(paid.max(now).saturating_add(cost))
            });
    }

    /// How long to wait, as of `now`, before more may leave.
    pub fn wait(&self, now: Instant) -> Duration {
        let paid = self.paid.load(Ordering::Relaxed);
        Duration::from_nanos(paid.saturating_sub(self.since(now))).saturating_sub(BURST)
    }

    fn since(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.zero).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn keeps_to_the_ceiling() {
        let begin = Instant::now();
        let mut now = begin;
        let pace = Pace::new(1_000_000, now);
        for _ in 0..100 {
            now += pace.wait(now);
            pace.spend(64 << 10, now);
        }
        let seconds = (now - begin).as_secs_f64();
        let bytes = 99.0 * 65536.0;
        assert!((seconds - bytes / 1e6).abs() < 0.1, "{seconds}");
    }

    #[test]
    fn what_is_sent_last_is_not_waited_for() {
        let now = Instant::now();
        let pace = Pace::new(1_000_000, now);
        assert_eq!(pace.wait(now), Duration::ZERO);
        pace.spend(1_000_000, now);
        assert_eq!(pace.wait(now), Duration::from_millis(990));
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let now = Instant::now();
        let pace = Pace::new(1_000_000, now);
        let later = now + Duration::from_secs(100);
        pace.spend(1_000_000, later);
        assert_eq!(pace.wait(later), Duration::from_millis(990));
    }

    #[test]
    fn an_absurd_amount_is_only_a_long_wait() {
        let now = Instant::now();
        let pace = Pace::new(0, now);
        pace.spend(u64::MAX, now);
        pace.spend(u64::MAX, now);
        assert!(pace.wait(now) > Duration::from_secs(1 << 30));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two links send at once: both pay.
    #[test]
    fn loom_everything_that_is_sent_is_paid_for() {
        loom::model(|| {
            let now = Instant::now();
            let pace = Arc::new(Pace::new(1000, now));
            let other = Arc::clone(&pace);
            let thread = thread::spawn(move || other.spend(1000, now));
            pace.spend(2000, now);
            thread.join().unwrap();
            assert_eq!(pace.wait(now), Duration::from_millis(2990));
        });
    }
}
