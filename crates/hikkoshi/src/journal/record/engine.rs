//! What the engine keeps, as it is stored.

use std::time::{Duration, UNIX_EPOCH};

use hikkoshi_engine::Mode;
use hikkoshi_handover::{DestinationRecord, DestinationStage, History, SourceRecord, SourceStage};
use hikkoshi_wire::MigrationId;
use serde::{Deserialize, Serialize};

use super::RecordError;

/// [`SourceRecord`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceEngineRecord {
    id: String,
    stage: SourceStage,
    mode: Mode,
    history: HistoryRecord,
}

/// [`DestinationRecord`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationEngineRecord {
    id: String,
    stage: DestinationStage,
    mode: Mode,
    postcopy: bool,
    running: bool,
    started: bool,
    given_up: bool,
    links: u16,
    history: HistoryRecord,
}

/// [`History`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryRecord {
    begun_unix_ms: u64,
    downtime_us: Option<u64>,
    likely_downtime_us: Option<u64>,
    missing_pages: Option<u64>,
}

impl From<&SourceRecord> for SourceEngineRecord {
    fn from(record: &SourceRecord) -> Self {
        Self {
            id: hexadecimal(&record.id),
            stage: record.stage,
            mode: record.mode,
            history: (&record.history).into(),
        }
    }
}

impl TryFrom<SourceEngineRecord> for SourceRecord {
    type Error = RecordError;

    fn try_from(record: SourceEngineRecord) -> Result<Self, RecordError> {
        Ok(Self {
            id: migration_id(record.id)?,
            stage: record.stage,
            mode: record.mode,
            history: record.history.into(),
        })
    }
}

impl From<&DestinationRecord> for DestinationEngineRecord {
    fn from(record: &DestinationRecord) -> Self {
        Self {
            id: hexadecimal(&record.id),
            stage: record.stage,
            mode: record.mode,
            postcopy: record.postcopy,
            running: record.running,
            started: record.started,
            given_up: record.given_up,
            links: record.links,
            history: (&record.history).into(),
        }
    }
}

impl TryFrom<DestinationEngineRecord> for DestinationRecord {
    type Error = RecordError;

    fn try_from(record: DestinationEngineRecord) -> Result<Self, RecordError> {
        Ok(Self {
            id: migration_id(record.id)?,
            stage: record.stage,
            mode: record.mode,
            postcopy: record.postcopy,
            running: record.running,
            started: record.started,
            given_up: record.given_up,
            links: record.links,
            history: record.history.into(),
        })
    }
}

impl From<&History> for HistoryRecord {
    fn from(history: &History) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let begun = history.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            begun_unix_ms: u64::try_from(begun.as_millis()).unwrap_or(u64::MAX),
            downtime_us: history.downtime.map(micros),
            likely_downtime_us: history.likely_downtime.map(micros),
            missing_pages: history.missing_pages,
        }
    }
}

impl From<HistoryRecord> for History {
    fn from(record: HistoryRecord) -> Self {
        let begun = UNIX_EPOCH.checked_add(Duration::from_millis(record.begun_unix_ms));
        Self {
            begun: begun.unwrap_or(UNIX_EPOCH),
            downtime: record.downtime_us.map(Duration::from_micros),
            likely_downtime: record.likely_downtime_us.map(Duration::from_micros),
            missing_pages: record.missing_pages,
        }
    }
}

fn hexadecimal(id: &MigrationId) -> String {
    format!("{:032x}", u128::from_be_bytes(id.to_bytes()))
}

fn migration_id(text: String) -> Result<MigrationId, RecordError> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u128::from_str_radix(&text, 16) {
        Ok(number) if digits => Ok(MigrationId::from_bytes(number.to_be_bytes())),
        _ => Err(RecordError::MigrationId(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_id_has_32_digits() {
        let id = MigrationId::from_bytes([0xa7; 16]);
        assert_eq!(hexadecimal(&id), "a7".repeat(16));
        assert_eq!(migration_id("a7".repeat(16)).unwrap(), id);
        for bad in ["", "a7", "+7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7"] {
            let error = migration_id(bad.to_owned()).unwrap_err();
            assert!(matches!(error, RecordError::MigrationId(_)), "{error}");
        }
    }
}
