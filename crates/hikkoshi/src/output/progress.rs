//! Progress: a bar on a terminal, lines for a log, or JSON for a program.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_account::{Converges, DiskCopy, GuestAt, Outage, Phase, Stage, State, TimeLeft};
use hikkoshi_engine::Observer;
use hikkoshi_engine::report::Live;
use serde::Serialize;

use crate::args::ProgressFormat;
use crate::output::progress_line::ProgressLine;
use crate::output::stderr::{self, ProgressItem};
use crate::output::streams;

/// How often a line is written where there is no terminal, in milliseconds.
const LINE_EVERY_MS: u64 = 2000;

/// How often an object is written for a program, in milliseconds.
const OBJECT_EVERY_MS: u64 = 200;

/// Shows how far a migration is. All calls return at once.
pub(crate) trait Display: Debug + Send + Sync {
    /// The present state of this guest's migration, ten times a second.
    fn state(&self, guest: &str, state: &State);

    /// A sentence for the operator.
    fn notice(&self, text: &str) {
        streams::notice(text);
    }

    /// Removes what is drawn; nothing is drawn any more.
    fn clear(&self) {}
}

/// The display with this format.
pub(crate) fn display(kind: ProgressFormat) -> Arc<dyn Display> {
    match kind {
        ProgressFormat::None => Arc::new(Nothing),
        ProgressFormat::Json => Arc::new(Objects(Every::new(OBJECT_EVERY_MS))),
        ProgressFormat::Auto if stderr::is_terminal() => Arc::new(Bar),
        ProgressFormat::Auto => Arc::new(Lines(Every::new(LINE_EVERY_MS))),
    }
}

/// Reports notices, and no progress: for a run that moves nothing.
#[derive(Debug)]
pub(crate) struct Notices;

impl Observer for Notices {
    fn begin(&self, _: &Arc<Live>) {}

    fn notice(&self, text: &str) {
        streams::notice(text);
    }
}

/// `--progress none`.
#[derive(Debug)]
struct Nothing;

impl Display for Nothing {
    fn state(&self, _: &str, _: &State) {}
}

/// Lets a state through now and then.
#[derive(Debug)]
struct Every {
    period_ms: u64,
    /// When the next one is due.
    next_ms: AtomicU64,
}

impl Every {
    const fn new(period_ms: u64) -> Self {
        Self {
            period_ms,
            next_ms: AtomicU64::new(0),
        }
    }

    fn is_due(&self, state: &State) -> bool {
        let due = state.at_ms >= self.next_ms.load(Ordering::Relaxed);
        if due {
            let next = state.at_ms.saturating_add(self.period_ms);
            self.next_ms.store(next, Ordering::Relaxed);
        }
        due
    }
}

/// A bar with rates and the remaining time.
#[derive(Debug)]
struct Bar;

impl Display for Bar {
    fn state(&self, guest: &str, state: &State) {
        let line = ProgressLine::of(guest, state);
        stderr::progress(ProgressItem::Bar(Box::new(line)));
    }

    fn clear(&self) {
        stderr::end_progress();
    }
}

/// A line every two seconds.
#[derive(Debug)]
struct Lines(Every);

impl Display for Lines {
    fn state(&self, guest: &str, state: &State) {
        // There is nothing to count before a phase has pages, or disks are copied. How many pages a
        // destination receives in pre-copy is not known.
        let counts = state.progress().is_some()
            || state.outage().is_some()
            || matches!(state.phase, Phase::Disks | Phase::Precopy);
        if counts && self.0.is_due(state) {
            // The messages of a daemon's receiver have the name already.
            let guest = if streams::has_name() { "" } else { guest };
            streams::progress_text(&ProgressLine::of(guest, state).in_full());
        }
    }
}

/// One object a line: `{"progress":{…}}` or `{"notice":"…"}`.
#[derive(Debug)]
struct Objects(Every);

impl Display for Objects {
    fn state(&self, _: &str, state: &State) {
        if self.0.is_due(state) {
            streams::progress_object(&ProgressReport::from(state));
        }
    }
}

/// A [`State`] as JSON, without what grows with the guest or with time (`docs/json.md`).
#[derive(Debug, Serialize)]
pub(crate) struct ProgressReport<'a> {
    at_ms: u64,
    phase: Phase,
    round: u32,
    done_pages: u64,
    total_pages: u64,
    bytes: u64,
    bytes_per_second: f64,
    dirty_pages_per_second: Option<f64>,
    time_left: Option<TimeLeft>,
    converges: Option<Converges>,
    guest_at: GuestAt,
    #[serde(skip_serializing_if = "Option::is_none")]
    outage: Option<&'a Outage>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    disks: &'a [DiskCopy],
    stage: Stage,
    peer_stage: Stage,
    downtime_ms: Option<f64>,
    likely_downtime_ms: Option<f64>,
    missing_pages: Option<u64>,
    waiting_pages: u64,
    requests: Requests,
}

/// The latency of page requests.
#[derive(Debug, Serialize)]
struct Requests {
    count: u64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl<'a> From<&'a State> for ProgressReport<'a> {
    fn from(state: &'a State) -> Self {
        let requests = &state.requests;
        Self {
            at_ms: state.at_ms,
            phase: state.phase,
            round: state.round,
            done_pages: state.done_pages,
            total_pages: state.total_pages,
            bytes: state.bytes.of_pages_and_disks(),
            bytes_per_second: state.bytes_per_second,
            dirty_pages_per_second: state.dirty_pages_per_second,
            time_left: state.time_left,
            converges: state.converges,
            guest_at: state.guest_at,
            outage: state.outage(),
            disks: &state.disks,
            stage: state.stage,
            peer_stage: state.peer_stage,
            downtime_ms: state.downtime_ms,
            likely_downtime_ms: state.likely_downtime_ms,
            missing_pages: state.missing_pages,
            waiting_pages: state.waiting_pages,
            requests: Requests {
                count: requests.count,
                mean_us: requests.mean,
                p50_us: requests.p50,
                p99_us: requests.p99,
                max_us: requests.max,
            },
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hikkoshi_account::Side;

    /// A state of pre-copy, at the source.
    pub(crate) fn at(done: u64, total: u64) -> State {
        State {
            phase: Phase::Precopy,
            round: 3,
            done_pages: done,
            total_pages: total,
            bytes_per_second: 123.4 * 1_048_576.0,
            dirty_pages_per_second: Some(2560.0),
            time_left: Some(TimeLeft {
                low_s: 2.0,
                likely_s: 3.5,
                high_s: Some(9.0),
            }),
            ..State::new(Side::Source)
        }
    }

    #[test]
    fn objects_are_written_every_200_ms() {
        let every = Every::new(OBJECT_EVERY_MS);
        let due = (0..10).filter(|tenth| {
            let mut state = at(0, 1);
            state.at_ms = tenth * 100;
            every.is_due(&state)
        });
        assert_eq!(due.count(), 5);
    }
}
