//! The state of a later engine, joined to the last one of the engine before.

use std::collections::BTreeMap;

use super::map::join_map;
use crate::Recording;
use hikkoshi_account::{
    Bucket, Bytes, GuestAt, LatencySummary, Map, Outage, Pages, Round, Side, State, SwitchoverStep,
};

/// The most rounds and outages of a state.
const KEPT: usize = 100;

/// An engine that resumes begins without links: an outage that begins so early, in ms, began
/// before.
const AT_ONCE: u64 = 1000;

/// What is remembered of the engine before.
#[derive(Debug, Clone)]
pub(super) struct JoinedState {
    side: Side,
    /// What is added to the times of the later engine.
    pub(super) offset_ms: u64,
    /// When the last thing happened that the engine before recorded.
    last_ms: u64,
    /// The last state of the engine before. Without a map, if the cells were others.
    before: Option<State>,
}

impl JoinedState {
    /// `has_same_cells`: the maps of both have the same cells.
    pub(super) fn after(earlier: &Recording, offset_ms: u64, has_same_cells: bool) -> Self {
        let mut before = earlier.state.clone();
        if let Some(state) = before.as_mut().filter(|_| !has_same_cells) {
            state.map = Map::default();
        }
        Self {
            side: earlier.migration.side,
            offset_ms,
            last_ms: earlier.last_ms(),
            before,
        }
    }

    /// A state of the later engine, with what the engine before had done.
    pub(super) fn join(&self, state: State) -> State {
        let at = |at_ms: u64| at_ms.saturating_add(self.offset_ms);
        let rounds = state.rounds.iter().map(|round| Round {
            begun_ms: at(round.begun_ms),
            ended_ms: round.ended_ms.map(at),
            ..*round
        });
        let outages = state.outages.iter().map(|outage| Outage {
            from_ms: at(outage.from_ms).saturating_sub(outage.before_ms),
            before_ms: 0,
            to_ms: outage.to_ms.map(at),
            until_ms: outage.until_ms.map(at),
        });
        let later = State {
            at_ms: at(state.at_ms),
            rounds: rounds.collect(),
            outages: outages.collect(),
            ..state
        };
        let Some(before) = &self.before else {
            return later;
        };
        let paused = paused_by(before, &later);
        let (downtime_ms, likely_downtime_ms) = (paused.downtime_ms, paused.likely_downtime_ms);
        let switchover = switchover(before, &later);
        State {
            round: before.round.max(later.round),
            pages: pages(before.pages, later.pages),
            bytes: bytes(before.bytes, later.bytes),
            requests: requests(&before.requests, &later.requests),
            disks: match later.disks.is_empty() {
                true => before.disks.clone(),
                false => later.disks.clone(),
            },
            downtime_ms,
            likely_downtime_ms,
            switchover,
            rounds: self.rounds(before, &later),
            outages: self.outages(before, &later),
            map: join_map(self.side, &before.map, later.map),
            ..later
        }
    }

    pub(super) fn join_map(&self, map: Map) -> Map {
        match &self.before {
            Some(before) => join_map(self.side, &before.map, map),
            None => map,
        }
    }

    /// The rounds of both. One that was in progress has ended with its engine.
    fn rounds(&self, before: &State, later: &State) -> Vec<Round> {
        let ended = before.rounds.iter().map(|round| Round {
            ended_ms: Some(round.ended_ms.unwrap_or(self.last_ms)),
            ..*round
        });
        newest(ended.chain(later.rounds.iter().copied()).collect())
    }

    /// The outages of both, and the time without an engine.
    fn outages(&self, before: &State, later: &State) -> Vec<Outage> {
        let mut all = before.outages.clone();
        let open = all.pop_if(|outage| outage.to_ms.is_none());
        let mut after = later.outages.iter().copied().peekable();
        if open.is_some() || before.stage.is_handed_over() {
            let at_once = self.offset_ms.saturating_add(AT_ONCE);
            let first = after.next_if(|outage| outage.from_ms <= at_once);
            // What the later engine knows is newer than the recording.
            let known = first.filter(|outage| outage.from_ms < self.offset_ms);
            all.push(Outage {
                from_ms: open.or(known).map_or(self.last_ms, |outage| outage.from_ms),
                before_ms: 0,
                to_ms: first.map_or(Some(self.offset_ms), |outage| outage.to_ms),
                until_ms: first.and_then(|outage| outage.until_ms),
            });
        }
        newest(all.into_iter().chain(after).collect())
    }
}

fn newest<T>(mut all: Vec<T>) -> Vec<T> {
    all.drain(..all.len().saturating_sub(KEPT));
    all
}

/// The state of the engine that knows how long the guest was paused.
fn paused_by<'a>(before: &'a State, later: &'a State) -> &'a State {
    // An engine that ended while the guest was paused knows only a part of it.
    let (first, second) = match before.guest_at {
        GuestAt::Paused => (later, before),
        _ => (before, later),
    };
    match first.downtime_ms {
        Some(_) => first,
        None => second,
    }
}

/// The steps of the switchover: of the engine that knows them.
fn switchover(before: &State, later: &State) -> Vec<SwitchoverStep> {
    let steps = match before.switchover.is_empty() {
        true => &later.switchover,
        false => &before.switchover,
    };
    steps.clone()
}

fn sum(one: Option<u64>, other: Option<u64>) -> u64 {
    one.unwrap_or(0).saturating_add(other.unwrap_or(0))
}

fn pages(one: Pages, other: Pages) -> Pages {
    Pages {
        precopy: one.precopy.saturating_add(other.precopy),
        zero: one.zero.saturating_add(other.zero),
        urgent: one.urgent.saturating_add(other.urgent),
        background: one.background.saturating_add(other.background),
        guest: one.guest.max(other.guest),
    }
}

fn bytes(one: Bytes, other: Bytes) -> Bytes {
    Bytes {
        precopy: one.precopy.saturating_add(other.precopy),
        urgent: one.urgent.saturating_add(other.urgent),
        background: one.background.saturating_add(other.background),
        device_state: one.device_state.saturating_add(other.device_state),
        disks: Some(sum(one.disks, other.disks)),
    }
}

/// The latencies of both. Percentiles follow from the histogram, and are between those of both.
#[allow(clippy::cast_precision_loss)] // A mean.
fn requests(one: &LatencySummary, other: &LatencySummary) -> LatencySummary {
    if one.count == 0 || other.count == 0 {
        return if one.count == 0 { other } else { one }.clone();
    }
    let mut counts = BTreeMap::<u64, u64>::new();
    for bucket in one.histogram.iter().chain(&other.histogram) {
        let count = counts.entry(bucket.le_us).or_default();
        *count = count.saturating_add(bucket.count);
    }
    let count = one.count.saturating_add(other.count);
    let sum = one.mean * one.count as f64 + other.mean * other.count as f64;
    let between = |part: f64, one: f64, other: f64| {
        let estimate = percentile(&counts, part).max(one.min(other));
        estimate.min(one.max(other))
    };
    LatencySummary {
        count,
        mean: sum / count as f64,
        p50: between(0.5, one.p50, other.p50),
        p99: between(0.99, one.p99, other.p99),
        max: one.max.max(other.max),
        histogram: counts
            .into_iter()
            .map(|(le_us, count)| Bucket { le_us, count })
            .collect(),
    }
}

/// The latency that `part` of the requests do not exceed, in a histogram of powers of two. Those of
/// a bucket count as if they were at equal distances.
#[allow(clippy::cast_precision_loss)] // An estimate.
fn percentile(counts: &BTreeMap<u64, u64>, part: f64) -> f64 {
    let all: f64 = counts.values().map(|count| *count as f64).sum();
    let wanted = all * part;
    let mut below = 0.0;
    for (le_us, count) in counts {
        let (upper, count) = (*le_us as f64, *count as f64);
        if count > 0.0 && below + count >= wanted {
            let lower = upper / 2.0;
            return lower + (upper - lower) * (wanted - below) / count;
        }
        below += count;
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_between_those_of_both() {
        let of = |p50: f64, p99: f64, histogram: &[(u64, u64)]| LatencySummary {
            count: histogram.iter().map(|(_, count)| count).sum(),
            mean: p50,
            p50,
            p99,
            max: p99,
            histogram: histogram
                .iter()
                .map(|&(le_us, count)| Bucket { le_us, count })
                .collect(),
        };
        let fast = of(50.0, 60.0, &[(64, 100)]);
        let slow = of(1800.0, 2000.0, &[(2048, 100)]);
        let both = requests(&fast, &slow);
        assert_eq!((both.count, both.max), (200, 2000.0));
        assert!((both.mean - 925.0).abs() < 1e-9);
        // Half of all are the fast ones: the end of their bucket.
        assert!((both.p50 - 64.0).abs() < 1e-9, "{}", both.p50);
        // 98 of the 100 slow ones.
        assert!((both.p99 - 2000.0).abs() < 1e-9, "{}", both.p99);
        let buckets: Vec<_> = both.histogram.iter().map(|b| (b.le_us, b.count)).collect();
        assert_eq!(buckets, [(64, 100), (2048, 100)]);
        assert_eq!(requests(&fast, &LatencySummary::default()), fast);
        assert_eq!(requests(&LatencySummary::default(), &slow), slow);
    }

    #[test]
    fn percentiles_do_not_panic_with_values_from_outside() {
        let bad = LatencySummary {
            count: u64::MAX,
            mean: f64::NAN,
            p50: 5.0,
            p99: 1.0,
            max: 0.0,
            histogram: Vec::new(),
        };
        let both = requests(&bad, &bad.clone());
        assert!((both.p50 - 5.0).abs() < 1e-9);
    }
}
