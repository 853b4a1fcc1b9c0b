//! A limit in bytes a second: for background data (`--bandwidth`), or for huge pages that are
//! rebuilt.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// How far sending may run ahead of the limit: the size of a burst.
const BURST: Duration = Duration::from_millis(10);

/// A token bucket. All background links of a migration share one ([`Bandwidth`](crate::Bandwidth));
/// urgent pages never use it.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_second: u64,
    epoch: Instant,
    /// When the bytes sent so far are paid for, in nanoseconds since `epoch`.
    paid: AtomicU64,
}

impl RateLimit {
    /// A limit of `bytes_per_second`.
    pub fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            epoch: now,
            paid: AtomicU64::new(0),
        }
    }

    /// The limit.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Accounts for `bytes` that are sent now.
    pub fn spend(&self, bytes: u64, now: Instant) {
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let now = self.since(now);
        // A single number, on which no other memory depends.
        let _ = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| {
                Some(paid.max(now).saturating_add(cost))
            });
    }

    /// How long to wait, from `now` on, before more may be sent.
    pub fn wait(&self, now: Instant) -> Duration {
        let paid = self.paid.load(Ordering::Relaxed);
        Duration::from_nanos(paid.saturating_sub(self.since(now))).saturating_sub(BURST)
    }

    fn since(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn sending_keeps_to_the_limit() {
        let begin = Instant::now();
        let mut now = begin;
        let limit = RateLimit::new(1_000_000, now);
        for _ in 0..100 {
            now += limit.wait(now);
            limit.spend(64 << 10, now);
        }
        let seconds = (now - begin).as_secs_f64();
        let bytes = 99.0 * 65536.0;
        assert!((seconds - bytes / 1e6).abs() < 0.1, "{seconds}");
    }

    #[test]
    fn the_wait_is_before_the_next_bytes() {
        let now = Instant::now();
        let limit = RateLimit::new(1_000_000, now);
        assert_eq!(limit.wait(now), Duration::ZERO);
        limit.spend(1_000_000, now);
        assert_eq!(limit.wait(now), Duration::from_millis(990));
    }

    #[test]
    fn idle_time_gives_no_credit() {
        let now = Instant::now();
        let limit = RateLimit::new(1_000_000, now);
        let later = now + Duration::from_secs(100);
        limit.spend(1_000_000, later);
        assert_eq!(limit.wait(later), Duration::from_millis(990));
    }

    #[test]
    fn a_huge_amount_is_a_long_wait() {
        let now = Instant::now();
        let limit = RateLimit::new(0, now);
        limit.spend(u64::MAX, now);
        limit.spend(u64::MAX, now);
        assert!(limit.wait(now) > Duration::from_secs(1 << 30));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two links send at the same time: both amounts count.
    #[test]
    fn loom_all_sent_bytes_count() {
        loom::model(|| {
            let now = Instant::now();
            let limit = Arc::new(RateLimit::new(1000, now));
            let other = Arc::clone(&limit);
            let thread = thread::spawn(move || other.spend(1000, now));
            limit.spend(2000, now);
            thread.join().unwrap();
            assert_eq!(limit.wait(now), Duration::from_millis(2990));
        });
    }
}
