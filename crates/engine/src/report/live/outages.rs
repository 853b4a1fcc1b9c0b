//! Times without links, after the handover.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hikkoshi_account::Outage;

use crate::report::whole_millis;

/// The most outages that are kept.
const KEPT: usize = 100;

/// The newest outages.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<VecDeque<Times>>);

/// The times of an outage.
#[derive(Debug)]
struct Times {
    from: Instant,
    to: Option<Instant>,
    until: Option<Instant>,
}

impl Outages {
    /// The links were lost, or there are none yet. The last byte arrived at `last`, if that is
    /// known; this engine gives up at `until`.
    pub(crate) fn begin(&self, last: Option<Instant>, until: Option<Instant>) {
        let mut outages = self.lock();
        let mut from = last.unwrap_or_else(Instant::now);
        match outages.back_mut() {
            Some(open @ Times { to: None, .. }) => {
                open.until = until;
                return;
            }
            // Nothing may have arrived on links that were lost again at once.
            Some(Times { to: Some(to), .. }) => from = from.max(*to),
            None => {}
        }
        if outages.len() >= KEPT {
            outages.pop_front();
        }
        let to = None;
        outages.push_back(Times { from, to, until });
    }

    /// The links are up.
    pub(crate) fn end(&self) {
        if let Some(last) = self.lock().back_mut() {
            last.to.get_or_insert_with(Instant::now);
        }
    }

    /// All outages that are kept.
    pub(crate) fn newest(&self, zero: Instant) -> Vec<Outage> {
        let since = |at: Instant| whole_millis(at.saturating_duration_since(zero));
        let outages = self.lock();
        let outage = |times: &Times| Outage {
            from_ms: since(times.from),
            before_ms: whole_millis(zero.saturating_duration_since(times.from)),
            to_ms: times.to.map(since),
            until_ms: times.until.filter(|_| times.to.is_none()).map(since),
        };
        outages.iter().map(outage).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Times>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_outage_lasts_until_the_links_are_up() {
        let (outages, zero) = (Outages::default(), Instant::now());
        outages.end();
        assert_eq!(outages.newest(zero), []);
        outages.begin(None, None);
        outages.begin(None, Some(zero + Duration::from_secs(9)));
        assert!(matches!(
            outages.newest(zero)[..],
            [Outage {
                to_ms: None,
                until_ms: Some(_),
                ..
            }]
        ));
        outages.end();
        let ended = outages.newest(zero);
        assert!(matches!(ended[..], [Outage { until_ms: None, .. }]));
        outages.end();
        assert_eq!(outages.newest(zero), ended);
        for _ in 0..150 {
            outages.begin(None, None);
            outages.end();
        }
        assert_eq!(outages.newest(zero).len(), KEPT);
    }

    /// The loss is noticed later, and an outage does not begin in the one before.
    #[test]
    fn an_outage_begins_with_the_last_byte() {
        let (outages, zero) = (Outages::default(), Instant::now());
        let later = zero + Duration::from_secs(20);
        let last = zero + Duration::from_secs(3);
        outages.begin(Some(last), Some(later));
        let [first] = outages.newest(zero)[..] else {
            panic!("one outage");
        };
        assert_eq!(first.from_ms, 3000);
        assert_eq!(first.until_ms, Some(20_000));
        outages.end();
        let to = outages.newest(zero)[0].to_ms.unwrap();
        outages.begin(Some(zero), None);
        assert_eq!(outages.newest(zero)[1].from_ms, to);
    }

    #[test]
    fn an_outage_may_have_begun_before_the_engine() {
        let (outages, last) = (Outages::default(), Instant::now());
        let zero = last + Duration::from_secs(7);
        outages.begin(Some(last), None);
        let [open] = outages.newest(zero)[..] else {
            panic!("one outage");
        };
        assert_eq!((open.from_ms, open.before_ms), (0, 7000));
        assert_eq!(open.lasted_ms(), None);
        let ended = Outage {
            to_ms: Some(500),
            ..open
        };
        assert_eq!(ended.lasted_ms(), Some(7500));
    }
}
