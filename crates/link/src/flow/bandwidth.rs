//! The limit of a migration's background traffic, which can be changed while links send.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::RateLimit;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// A limit in bytes a second for all background links together, or none (`--bandwidth`).
///
/// A change replaces the [`RateLimit`]: what was sent under the limit before is forgotten. So a
/// link that waits because of a low limit sends as soon as the limit is raised, within a
/// [`TICK`](crate::TICK). Clones share the limit.
#[derive(Debug, Clone)]
pub struct Bandwidth(Arc<State>);

#[derive(Debug)]
struct State {
    /// Grows with each change, after `limit` was replaced.
    version: AtomicU64,
    limit: Mutex<Option<Arc<RateLimit>>>,
}

/// The limit as one link knows it. It looks for a change before each use, which is one load.
#[derive(Debug)]
pub(crate) struct PresentLimit {
    bandwidth: Bandwidth,
    version: u64,
    limit: Option<Arc<RateLimit>>,
}

impl Bandwidth {
    /// A limit of `bytes_per_second`; `None`: there is none.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        let now = Instant::now();
        Self(Arc::new(State {
            version: AtomicU64::new(0),
            limit: Mutex::new(limit(bytes_per_second, now)),
        }))
    }

    /// No limit.
    pub fn unlimited() -> Self {
        Self::new(None)
    }

    /// Changes the limit, and returns what it was.
    pub fn set(&self, bytes_per_second: Option<u64>) -> Option<u64> {
        let new = limit(bytes_per_second, Instant::now());
        let mut present = self.0.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *present, new);
        // While the lock is held: a link that sees the new version finds the new limit.
        self.0.version.fetch_add(1, Ordering::Release);
        old.map(|old| old.bytes_per_second())
    }

    /// The limit, in bytes a second.
    pub fn get(&self) -> Option<u64> {
        let present = self.0.limit.lock().unwrap_or_else(PoisonError::into_inner);
        present.as_ref().map(|limit| limit.bytes_per_second())
    }

    /// The present limit, as one link sees it.
    pub(crate) fn present_limit(&self) -> PresentLimit {
        let (version, limit) = self.read();
        PresentLimit {
            bandwidth: self.clone(),
            version,
            limit,
        }
    }

    fn read(&self) -> (u64, Option<Arc<RateLimit>>) {
        let present = self.0.limit.lock().unwrap_or_else(PoisonError::into_inner);
        (self.0.version.load(Ordering::Relaxed), present.clone())
    }
}

impl PresentLimit {
    /// The limit at present, if there is one.
    pub(crate) fn get(&mut self) -> Option<&RateLimit> {
        if self.bandwidth.0.version.load(Ordering::Acquire) != self.version {
            (self.version, self.limit) = self.bandwidth.read();
        }
        self.limit.as_deref()
    }
}

fn limit(bytes_per_second: Option<u64>, now: Instant) -> Option<Arc<RateLimit>> {
    bytes_per_second.map(|rate| Arc::new(RateLimit::new(rate, now)))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_change_reaches_a_link_that_has_used_the_limit() {
        let bandwidth = Bandwidth::unlimited();
        let mut link = bandwidth.present_limit();
        assert!(link.get().is_none() && bandwidth.get().is_none());
        assert_eq!(bandwidth.set(Some(1000)), None);
        assert_eq!(link.get().map(RateLimit::bytes_per_second), Some(1000));
        assert_eq!(bandwidth.set(Some(2000)), Some(1000));
        assert_eq!(bandwidth.get(), Some(2000));
        assert_eq!(link.get().map(RateLimit::bytes_per_second), Some(2000));
        assert_eq!(bandwidth.set(None), Some(2000));
        assert!(link.get().is_none());
    }

    #[test]
    fn a_link_does_not_wait_for_what_was_sent_under_a_lower_limit() {
        let bandwidth = Bandwidth::new(Some(1));
        let mut link = bandwidth.present_limit();
        let now = Instant::now();
        link.get().unwrap().spend(1 << 20, now);
        assert!(link.get().unwrap().wait(now) > Duration::from_secs(1 << 19));
        bandwidth.set(Some(1 << 30));
        assert_eq!(link.get().unwrap().wait(now), Duration::ZERO);
    }

    #[test]
    fn links_share_a_limit() {
        let bandwidth = Bandwidth::new(Some(1_000_000));
        let (mut one, mut other) = (bandwidth.present_limit(), bandwidth.clone().present_limit());
        bandwidth.set(Some(1000));
        let now = Instant::now();
        one.get().unwrap().spend(1000, now);
        assert!(other.get().unwrap().wait(now) > Duration::from_millis(900));
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::thread;

    /// A link that uses the limit while it is changed twice has each limit in order, and the last
    /// one when the change has returned.
    #[test]
    fn loom_model_a_changed_limit_is_seen_in_order() {
        loom::model(|| {
            let bandwidth = Bandwidth::new(Some(1));
            let mut link = bandwidth.present_limit();
            let changed = bandwidth.clone();
            let thread = thread::spawn(move || {
                changed.set(Some(2));
                changed.set(Some(3));
            });
            let mut seen = 1;
            for _ in 0..2 {
                let now = link.get().map_or(0, RateLimit::bytes_per_second);
                assert!(now >= seen, "{now} after {seen}");
                seen = now;
            }
            thread.join().unwrap();
            assert_eq!(link.get().map(RateLimit::bytes_per_second), Some(3));
        });
    }
}
