//! Times without links, after the handover.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most outages that are kept.
const KEPT: usize = 100;

/// A time without links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// When the links were lost: the time since the migration began.
    pub from: Duration,
    /// When the links were up again. `None`: they are not.
    pub to: Option<Duration>,
}

/// The newest outages.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<VecDeque<(Instant, Option<Instant>)>>);

impl Outages {
    /// The links were lost, or there are none yet.
    pub(crate) fn begin(&self) {
        let mut outages = self.lock();
        if outages.back().is_some_and(|(_, to)| to.is_none()) {
            return;
        }
        if outages.len() >= KEPT {
            outages.pop_front();
        }
        outages.push_back((Instant::now(), None));
    }

    /// The links are up.
    pub(crate) fn end(&self) {
        if let Some((_, to)) = self.lock().back_mut() {
            to.get_or_insert_with(Instant::now);
        }
    }

    /// All outages that are kept.
    pub(crate) fn newest(&self, zero: Instant) -> Vec<Outage> {
        let since = |at: Instant| at.saturating_duration_since(zero);
        let outages = self.lock();
        let outage = |&(from, to): &(Instant, Option<Instant>)| Outage {
            from: since(from),
            to: to.map(since),
        };
        outages.iter().map(outage).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Option<Instant>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_until_the_links_are_up() {
        let (outages, zero) = (Outages::default(), Instant::now());
        outages.end();
        assert_eq!(outages.newest(zero), []);
        outages.begin();
        outages.begin();
        assert!(matches!(
            outages.newest(zero)[..],
            [Outage { to: None, .. }]
        ));
        outages.end();
        let ended = outages.newest(zero);
        outages.end();
        assert_eq!(outages.newest(zero), ended);
        for _ in 0..150 {
            outages.begin();
            outages.end();
        }
        assert_eq!(outages.newest(zero).len(), KEPT);
    }
}
