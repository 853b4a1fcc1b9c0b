//! One recording of the engines that took part in a migration on one side, one after another.
//!
//! An engine that is killed, or gives up while pages are missing, is followed by another one that
//! resumes the migration. Each counts from zero and has its own time. Here the recording of the
//! later one is joined to that of the earlier one:
//!
//! * its times are those since the first engine began, by the clock of the host; if that was set
//!   back in between, the later engine begins where the earlier recording ends;
//! * pages, bytes, latencies and outages are those of all engines together ([`state`]);
//! * downtime and switchover are those of the engine that knows them;
//! * the time between the engines is an outage, if the guest had been handed over;
//! * samples, maps and messages follow one another.
//!
//! A recording says which engines it has ([`Recording::engines`]), so recordings can be joined that
//! were joined before: nothing is counted twice.

mod map;
mod state;

use state::JoinedState;

use crate::{Engine, Frame, Notice, Recorder, Recording, Sample, StatusRecord};
use hikkoshi_account::State;

/// What is remembered of the engines before, for the records of a later one.
#[derive(Debug, Clone)]
pub struct Continued {
    state: JoinedState,
}

/// Joins the recordings of each side of each migration. The order is that of the first recordings
/// of each.
pub fn join_all(recordings: Vec<Recording>) -> Vec<Recording> {
    let mut sides: Vec<Vec<Recording>> = Vec::new();
    for recording in recordings {
        match sides.iter_mut().find(|side| is_same(&side[0], &recording)) {
            Some(side) => side.push(recording),
            None => sides.push(vec![recording]),
        }
    }
    sides.into_iter().flat_map(join_side).collect()
}

/// Joins recordings of one side. Those that are of no use to each other stay apart.
fn join_side(mut recordings: Vec<Recording>) -> Vec<Recording> {
    recordings.sort_by_key(|it| (it.engine_started_unix_ms(), it.engines.len()));
    let mut joined: Vec<Recording> = Vec::new();
    for recording in recordings {
        match joined.pop() {
            None => joined.push(recording),
            Some(earlier) if contains(&recording, &earlier) => joined.push(recording),
            Some(earlier) if Continued::can_join(&earlier, &recording) => {
                joined.push(Continued::join(earlier, recording).0);
            }
            Some(earlier) => joined.extend([earlier, recording]),
        }
    }
    joined
}

/// Whether these are of the same side of the same migration.
fn is_same(one: &Recording, other: &Recording) -> bool {
    let key = |it: &Recording| (it.migration.side, it.migration.id.clone());
    key(one) == key(other)
}

/// Whether all engines of `other` are in `recording`.
fn contains(recording: &Recording, other: &Recording) -> bool {
    let key = |engine: &Engine| (engine.pid, engine.started_unix_ms);
    let engines = recording.all_engines();
    let has = |engine: &Engine| engines.iter().any(|own| key(own) == key(engine));
    is_same(recording, other) && other.all_engines().iter().all(has)
}

impl Continued {
    /// Whether `later` is of an engine that resumed what the engine of `earlier` had begun.
    pub fn can_join(earlier: &Recording, later: &Recording) -> bool {
        let engines = later.all_engines();
        let resumed = engines.first().is_some_and(|first| first.resumed);
        let began = engines.first().map(|first| first.started_unix_ms);
        is_same(earlier, later)
            && resumed
            && began >= Some(earlier.engine_started_unix_ms())
            && !contains(later, earlier)
            && !contains(earlier, later)
    }

    /// Joins the recording of a later engine to that of an earlier one. Its further records are
    /// joined by [`record`](Self::record).
    pub fn join(earlier: Recording, mut later: Recording) -> (Recording, Self) {
        let last_ms = earlier.last_ms();
        let later_began = later.migration.started_unix_ms;
        let between = later_began.saturating_sub(earlier.migration.started_unix_ms);
        let offset_ms = between.max(last_ms);
        let has_same_cells = earlier.migration.memory == later.migration.memory;
        let continued = Self {
            state: JoinedState::after(&earlier, offset_ms, has_same_cells),
        };
        let engines = joined_engines(&earlier, &later, offset_ms);
        let notices = continued.notices(&earlier, &mut later, last_ms);
        let samples = later.samples.drain(..);
        let samples = samples.map(|sample| continued.sample(sample));
        let samples: Vec<_> = earlier.samples.into_iter().chain(samples).collect();
        let frames = later.frames.drain(..).map(|frame| continued.frame(frame));
        let before = earlier.frames.into_iter().filter(|_| has_same_cells);
        let frames = before.chain(frames).collect();
        let state = later.state.take();
        let state = state.map(|state| continued.state(state));
        let mut migration = later.migration;
        migration.started_unix_ms = earlier.migration.started_unix_ms;
        let (limits, before) = (&mut migration.limits, earlier.migration.limits);
        limits.max_downtime_ms = limits.max_downtime_ms.or(before.max_downtime_ms);
        limits.bandwidth = limits.bandwidth.or(before.bandwidth);
        for (own, before) in [
            (&mut migration.guest, earlier.migration.guest),
            (&mut migration.peer, earlier.migration.peer),
        ] {
            if own.is_empty() {
                *own = before;
            }
        }
        let joined = Recording {
            version: later.version,
            migration,
            samples,
            frames,
            notices,
            // A later engine has no pre-copy, unless the first one was cancelled before a round.
            dirty_rates: match later.dirty_rates {
                Some(rates) if rates.measured_ms > 0 => Some(rates),
                _ => earlier.dirty_rates.filter(|_| has_same_cells),
            },
            unknown: [earlier.unknown, later.unknown].concat(),
            state: state.or(earlier.state),
            end: later.end.map(|end| continued.end(end)),
            engines,
        };
        // Keeps it bounded.
        (Recorder::following(joined).into_recording(), continued)
    }

    /// A record of the later engine, as it follows in the joined recording.
    pub fn record(&self, record: StatusRecord) -> StatusRecord {
        match record {
            StatusRecord::State(state) => StatusRecord::State(Box::new(self.state(*state))),
            StatusRecord::Notice(notice) => StatusRecord::Notice(self.notice(notice)),
            StatusRecord::End(end) => StatusRecord::End(self.end(end)),
            // It is joined to that of the engine before.
            StatusRecord::Recording(recording) => StatusRecord::Recording(recording),
        }
    }

    fn at(&self, at_ms: u64) -> u64 {
        at_ms.saturating_add(self.state.offset_ms)
    }

    fn state(&self, state: State) -> State {
        self.state.join(state)
    }

    fn sample(&self, sample: Sample) -> Sample {
        Sample {
            at_ms: self.at(sample.at_ms),
            ..sample
        }
    }

    fn frame(&self, frame: Frame) -> Frame {
        Frame {
            at_ms: self.at(frame.at_ms),
            map: self.state.join_map(frame.map),
        }
    }

    fn notice(&self, notice: Notice) -> Notice {
        Notice {
            at_ms: self.at(notice.at_ms),
            ..notice
        }
    }

    fn end(&self, end: crate::End) -> crate::End {
        crate::End {
            at_ms: self.at(end.at_ms),
            ..end
        }
    }

    /// The messages of both, and what happened between them.
    fn notices(&self, earlier: &Recording, later: &mut Recording, last_ms: u64) -> Vec<Notice> {
        let (before, after) = (earlier.migration.pid, later.migration.pid);
        let between = match &earlier.end {
            Some(end) => format!("the engine (process {before}) has ended: {}", end.message),
            None => format!("the engine (process {before}) was killed"),
        };
        let between = [
            (last_ms, between),
            (
                self.state.offset_ms,
                format!("another engine (process {after}) has resumed the migration"),
            ),
        ];
        let between = between.map(|(at_ms, text)| Notice { at_ms, text });
        let after = later.notices.drain(..).map(|notice| self.notice(notice));
        let before = earlier.notices.iter().cloned();
        before.chain(between).chain(after).collect()
    }
}

fn joined_engines(earlier: &Recording, later: &Recording, offset_ms: u64) -> Vec<Engine> {
    let mut all = earlier.all_engines();
    for mut engine in later.all_engines() {
        engine.begun_ms = engine.begun_ms.saturating_add(offset_ms);
        engine.until_ms = engine.until_ms.map(|until| until.saturating_add(offset_ms));
        if let Some(end) = &mut engine.end {
            end.at_ms = end.at_ms.saturating_add(offset_ms);
        }
        all.push(engine);
    }
    if let Some(last) = all.last_mut() {
        (last.until_ms, last.end) = (None, None);
    }
    all
}

#[cfg(test)]
mod tests;
