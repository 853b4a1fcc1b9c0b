//! Progress: a bar on a terminal, lines for a log, or JSON for a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_account::{Phase, State};
use hikkoshi_engine::Observer;
use hikkoshi_engine::report::Live;
use serde_json::Value;

use crate::args::ProgressFormat;
use crate::output::progress_line::ProgressLine;
use crate::output::stderr::{self, ProgressItem};
use crate::output::{line_format, streams};

/// How often a line is written where there is no terminal, in milliseconds.
const LINE_EVERY_MS: u64 = 2000;

/// How often an object is written for a program, in milliseconds.
const OBJECT_EVERY_MS: u64 = 200;

/// Shows how far a migration is. All calls return at once.
#[derive(Debug)]
pub(crate) enum Display {
    /// `--progress none`.
    Nothing,
    /// A bar with rates and the remaining time, on a terminal.
    Bar,
    /// A line every two seconds.
    Lines(Every),
    /// One object a line: `{"progress":{…}}` or `{"notice":"…"}`.
    Objects(Every),
}

impl Display {
    /// The display with this format.
    pub(crate) fn new(format: ProgressFormat) -> Self {
        match format {
            ProgressFormat::None => Self::Nothing,
            ProgressFormat::Json => Self::Objects(Every::new(OBJECT_EVERY_MS)),
            ProgressFormat::Auto if stderr::is_terminal() => Self::Bar,
            ProgressFormat::Auto => Self::Lines(Every::new(LINE_EVERY_MS)),
        }
    }

    /// Shows the present state of this guest's migration, ten times a second.
    pub(crate) fn state(&self, guest: &str, state: &State) {
        match self {
            Self::Nothing => {}
            Self::Bar => {
                let line = ProgressLine::new(guest, state);
                stderr::progress(ProgressItem::Bar(Box::new(line)));
            }
            Self::Lines(every) => {
                // There is nothing to count before a phase has pages, or disks are copied. How many
                // pages a destination receives in pre-copy is not known.
                let counts = state.progress().is_some()
                    || state.outage().is_some()
                    || matches!(state.phase, Phase::Disks | Phase::Precopy);
                if counts && every.is_due(state) {
                    // The messages of a daemon's receiver have the name already.
                    let guest = if line_format::has_name() { "" } else { guest };
                    streams::progress_text(&ProgressLine::new(guest, state).in_full());
                }
            }
            Self::Objects(every) => {
                if every.is_due(state) {
                    streams::progress_object(&without_map(state));
                }
            }
        }
    }

    /// Removes what is drawn; nothing is drawn any more.
    pub(crate) fn clear(&self) {
        if let Self::Bar = self {
            stderr::end_progress();
        }
    }
}

/// A state as JSON, without the map, which grows with the guest (`docs/json.md`).
pub(super) fn without_map(state: &State) -> Value {
    // All keys are strings, so that this cannot fail.
    let mut state = serde_json::to_value(state).unwrap_or_default();
    if let Some(members) = state.as_object_mut() {
        members.remove("map");
    }
    state
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

/// Lets a state through now and then.
#[derive(Debug)]
pub(crate) struct Every {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hikkoshi_account::{Side, TimeLeft};

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
