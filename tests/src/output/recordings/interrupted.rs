//! A migration whose engine ended in between, and was followed by another one.

use hikkoshi_account::{Bucket, Bytes, LatencySummary, Map, Outage, Pages, Side, State};
use hikkoshi_status::{Recorder, Recording};

use super::RecordedMigration;

/// The second engine begins so much later, in ms, than the last state of the first one.
pub const GAP_MS: u64 = 60_000;

impl RecordedMigration {
    /// The recordings of two engines of a side: the first one was killed after its state at
    /// `at_ms`, in post-copy. Together they did what one engine did.
    ///
    /// # Panics
    /// If there is no such state.
    pub fn interrupted(&self, side: Side, at_ms: u64) -> [Recording; 2] {
        let mut killed = self.recorder(side);
        let states = self.states_of(side);
        let (before, after): (Vec<&State>, Vec<&State>) =
            states.partition(|state| state.at_ms <= at_ms);
        before.iter().for_each(|&state| killed.add(state.clone()));
        let last = before.last().unwrap();
        assert!(
            last.missing_pages.is_some_and(|pages| pages > 0),
            "post-copy"
        );
        let mut migration = killed.recording().migration.clone();
        migration.pid += 1;
        migration.started_unix_ms += last.at_ms + GAP_MS;
        migration.resumed = true;
        let mut resumed = Recorder::new(migration);
        for &state in &after {
            resumed.add(since(side, last, state));
        }
        let mut end = self.end_of(side).clone();
        end.at_ms -= last.at_ms;
        end.account = None;
        resumed.end(end);
        [killed, resumed].map(Recorder::into_recording)
    }
}

/// A state as an engine has it that begins at `before`.
fn since(side: Side, before: &State, state: &State) -> State {
    let pages = |of: fn(&Pages) -> u64| of(&state.pages) - of(&before.pages);
    let bytes = |of: fn(&Bytes) -> u64| of(&state.bytes) - of(&before.bytes);
    let at = |at_ms: u64| at_ms - before.at_ms;
    let outages = state.outages.iter().filter(|it| it.from_ms > before.at_ms);
    // It has no links when it begins.
    let mut first = vec![Outage {
        from_ms: 0,
        before_ms: 0,
        to_ms: Some(100),
        until_ms: None,
    }];
    first.extend(outages.map(|outage| Outage {
        from_ms: at(outage.from_ms),
        before_ms: 0,
        to_ms: outage.to_ms.map(at),
        until_ms: None,
    }));
    State {
        at_ms: at(state.at_ms),
        round: 0,
        pages: Pages {
            precopy: pages(|it| it.precopy),
            zero: pages(|it| it.zero),
            urgent: pages(|it| it.urgent),
            background: pages(|it| it.background),
            guest: state.pages.guest,
        },
        bytes: Bytes {
            precopy: bytes(|it| it.precopy),
            urgent: bytes(|it| it.urgent),
            background: bytes(|it| it.background),
            device_state: bytes(|it| it.device_state),
            disks: Some(bytes(|it| it.disks.unwrap())),
        },
        requests: requests(&before.requests, &state.requests),
        downtime_ms: None,
        likely_downtime_ms: None,
        switchover: Vec::new(),
        rounds: Vec::new(),
        outages: first,
        map: map(side, &before.map, &state.map),
        ..state.clone()
    }
}

#[allow(clippy::cast_precision_loss)] // A mean.
fn requests(before: &LatencySummary, after: &LatencySummary) -> LatencySummary {
    let count = after.count - before.count;
    if count == 0 {
        return LatencySummary::default();
    }
    let counted = |le_us: u64| {
        let buckets = before.histogram.iter();
        let mut same = buckets.filter(|bucket| bucket.le_us == le_us);
        same.next().map_or(0, |bucket| bucket.count)
    };
    let sum = after.mean * after.count as f64 - before.mean * before.count as f64;
    let buckets = after.histogram.iter().map(|bucket| Bucket {
        le_us: bucket.le_us,
        count: bucket.count - counted(bucket.le_us),
    });
    LatencySummary {
        count,
        mean: sum / count as f64,
        histogram: buckets.collect(),
        ..after.clone()
    }
}

fn map(side: Side, before: &Map, after: &Map) -> Map {
    let at = |list: &[u64], cell: usize| list.get(cell).copied().unwrap_or(0);
    let less = |after: &[u64], before: &[u64]| -> Vec<u64> {
        let cells = after.iter().enumerate();
        cells
            .map(|(cell, pages)| pages - at(before, cell))
            .collect()
    };
    let arrived = |cell: usize| at(&before.by_request, cell) + at(&before.background, cell);
    let sent = match side {
        Side::Source => Vec::new(),
        // What is neither missing nor arrived since. The model's pre-copy has sent some of that.
        Side::Destination => {
            let cells = after.sent.iter().enumerate();
            cells.map(|(cell, pages)| pages + arrived(cell)).collect()
        }
    };
    Map {
        sent,
        by_request: less(&after.by_request, &before.by_request),
        background: less(&after.background, &before.background),
        ..after.clone()
    }
}
