//! A migration as JSON (`docs/control.md`, `docs/assets/schemas/status.schema.json`).

use hikkoshi_account::{Map, Mode, Phase, Side, State};
use hikkoshi_status::{End, Migration, VERSION};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Engine, SeenMigration, Unfinished};
use crate::output::progress::without_map;

/// The part of the downtime that is not sending dirty pages, in milliseconds: what the engine
/// allows for it when it decides that pre-copy has converged.
const SWITCHOVER_MS: f64 = 20.0;

/// A round with more bytes than this says how fast the link is: as the engine decides it.
const MEASURABLE: u64 = 8 << 20;

/// A migration.
#[derive(Debug, Serialize)]
struct MigrationReport<'a> {
    version: u32,
    name: &'a str,
    running: bool,
    answers: bool,
    migration: &'a Migration,
    state: Option<Value>,
    end: Option<&'a End>,
    unfinished: Option<&'a Unfinished>,
}

/// A migration as a line.
pub(crate) fn json_line(seen: &SeenMigration) -> String {
    let report = MigrationReport {
        version: VERSION,
        name: &seen.name,
        running: seen.is_running(),
        answers: seen.answers(),
        migration: &seen.migration,
        state: seen.state.as_ref().map(|state| {
            let mut value = without_map(state);
            value["expected_downtime_ms"] = expected_downtime_ms(seen, state).into();
            value
        }),
        end: seen.end.as_ref(),
        unfinished: seen.unfinished.as_ref(),
    };
    // All keys are strings, so that this cannot fail.
    let mut line = serde_json::to_string(&report).unwrap_or_default();
    line.push('\n');
    line
}

/// The same, read again.
#[derive(Debug, Deserialize)]
struct ReadReport {
    version: u32,
    name: String,
    running: bool,
    answers: bool,
    migration: Migration,
    state: Option<Value>,
    end: Option<End>,
    unfinished: Option<Unfinished>,
}

impl SeenMigration {
    /// A migration of another host, from its line.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn read(line: &Value) -> Result<Self, String> {
        let report = ReadReport::deserialize(line).map_err(|error| error.to_string())?;
        if report.version != VERSION {
            return Err(format!("it has version {}", report.version));
        }
        let state = report.state.map(|mut value| {
            // A line has no map.
            let map = serde_json::to_value(Map::default()).unwrap_or_default();
            if let Some(members) = value.as_object_mut() {
                members.insert("map".to_owned(), map);
            }
            State::deserialize(value).map_err(|error| error.to_string())
        });
        Ok(Self {
            name: report.name,
            engine: match (report.running, report.answers) {
                (true, true) => Engine::Answers,
                (true, false) => Engine::Silent,
                (false, _) => Engine::Gone,
            },
            migration: report.migration,
            state: state.transpose()?,
            end: report.end,
            unfinished: report.unfinished,
            is_continued: false,
        })
    }
}

/// How long the guest would be paused if pre-copy ended now: the time that the pages that are dirty
/// need at the rate of the last round that says it, and that of the switchover. `None`: that is not
/// known yet, or not what decides.
#[allow(clippy::cast_precision_loss)] // A time for people.
pub(super) fn expected_downtime_ms(seen: &SeenMigration, state: &State) -> Option<f64> {
    let migration = &seen.migration;
    if migration.side != Side::Source
        || migration.mode != Some(Mode::Precopy)
        || state.phase != Phase::Precopy
    {
        return None;
    }
    let ended = state.rounds.iter().rev().filter_map(|round| {
        let took = round.ended_ms?.checked_sub(round.begun_ms)?;
        (took > 0 && round.bytes > 0).then_some((round, took))
    });
    let mut ended: Vec<_> = ended.collect();
    let (last, _) = *ended.first()?;
    // A short round measures buffers rather than the link.
    ended.sort_by_key(|(round, _)| round.bytes <= MEASURABLE);
    let (round, took) = *ended.first()?;
    let dirty = match state.map.dirty.is_empty() {
        true => last.dirty_pages?,
        false => state
            .map
            .dirty
            .iter()
            .fold(0_u64, |sum, cell| sum.saturating_add(*cell)),
    };
    let bytes = dirty as f64 * migration.memory.page_bytes as f64;
    Some(bytes * took as f64 / round.bytes as f64 + SWITCHOVER_MS)
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::{running, state};
    use super::*;
    use hikkoshi_account::Round;

    #[test]
    fn the_expected_downtime_is_that_of_the_dirty_pages() {
        let mut seen = running(Mode::Precopy);
        let mut state = state();
        assert_eq!(
            expected_downtime_ms(&seen, &state),
            None,
            "no round has ended"
        );
        state.rounds = vec![
            Round {
                round: 1,
                begun_ms: 100,
                ended_ms: Some(1100),
                pages: 25_600,
                zero: 0,
                bytes: 100 << 20,
                dirty_pages: Some(5120),
            },
            Round {
                round: 2,
                begun_ms: 1100,
                ended_ms: None,
                pages: 0,
                zero: 0,
                bytes: 0,
                dirty_pages: None,
            },
        ];
        // 20 MiB at 100 MiB/s.
        let at_end = expected_downtime_ms(&seen, &state).unwrap();
        assert!((at_end - 220.0).abs() < 1e-6, "{at_end}");
        // 10 MiB are dirty now.
        state.map.dirty = vec![2000, 560];
        let now = expected_downtime_ms(&seen, &state).unwrap();
        assert!((now - 120.0).abs() < 1e-6, "{now}");
        // A short round does not say the rate.
        state.rounds[1].ended_ms = Some(2100);
        state.rounds[1].bytes = 1 << 20;
        let now = expected_downtime_ms(&seen, &state).unwrap();
        assert!((now - 120.0).abs() < 1e-6, "{now}");
        seen.migration.mode = Some(Mode::Hybrid);
        assert_eq!(expected_downtime_ms(&seen, &state), None);
        seen.migration.mode = Some(Mode::Precopy);
        state.phase = Phase::Switchover;
        assert_eq!(expected_downtime_ms(&seen, &state), None);
    }

    #[test]
    fn a_line_has_one_migration_and_no_map() {
        let seen = running(Mode::Hybrid);
        let line = json_line(&seen);
        assert_eq!(line.lines().count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["version"], VERSION);
        assert_eq!(value["name"], seen.name);
        assert_eq!(value["running"], true);
        assert_eq!(value["answers"], true);
        assert_eq!(value["migration"]["guest"], "web");
        assert_eq!(value["state"]["phase"], "precopy");
        assert_eq!(value["state"]["limits"]["bandwidth"], 5000);
        assert!(value["state"].get("map").is_none());
        assert!(value["end"].is_null() && value["unfinished"].is_null());
        // Read again, it has all but the map.
        let read = SeenMigration::read(&value).unwrap();
        let mut expected = seen;
        expected.state.as_mut().unwrap().map = Map::default();
        assert_eq!(read, expected);
        for (name, other) in [
            ("version", Value::from(99)),
            ("state", Value::from("x")),
            ("state", Value::from(vec![1])),
            ("migration", Value::Null),
            ("running", Value::Null),
        ] {
            let mut changed = value.clone();
            changed[name] = other;
            assert!(SeenMigration::read(&changed).is_err(), "{changed}");
        }
        assert!(SeenMigration::read(&Value::Null).is_err());
    }
}
