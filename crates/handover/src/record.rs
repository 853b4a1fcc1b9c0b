//! The stored record of a migration, from which another engine can resume it.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use hikkoshi_wire::{MigrationId, Mode};
use serde::{Deserialize, Serialize};

use super::{DestinationStage, SourceStage, stored};

/// What a source's engine needs to resume a migration.
///
/// It contains the migration's secret number: store it where only its owner can
/// read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// The migration's number.
    #[serde(with = "stored::id")]
    pub id: MigrationId,
    /// How far the source is.
    pub stage: SourceStage,
    /// The migration's mode.
    pub mode: Mode,
    /// What is reported of the migration at its end.
    pub history: History,
}

/// What a destination's engine needs to resume a migration.
///
/// It does not contain which pages are missing: the RAM files show that.
///
/// It contains the migration's secret number: store it where only its owner can
/// read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestinationRecord {
    /// The migration's number.
    #[serde(with = "stored::id")]
    pub id: MigrationId,
    /// How far the destination is.
    pub stage: DestinationStage,
    /// The migration's mode.
    pub mode: Mode,
    /// Whether pages may be missing. Then the userfaultfd in the guest's process
    /// prevents that a thread reads zeros instead.
    pub postcopy: bool,
    /// Whether the guest will be resumed (its owner had not paused it).
    pub running: bool,
    /// Whether the guest has been resumed. From then on its owner may pause it,
    /// and no engine resumes it again.
    pub started: bool,
    /// Whether somebody has given up the migration here.
    pub given_up: bool,
    /// The number of background links that memory was reserved for.
    pub links: u16,
    /// What is reported of the migration at its end.
    pub history: History,
}

/// What an engine reports of a migration that another one began. No decision depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// When the migration began on this side.
    #[serde(rename = "begun_unix_ms", with = "stored::unix_ms")]
    pub begun: SystemTime,
    /// How long the guest was paused, as far as this side knows; zero if its owner had paused it.
    /// `None`: it has not been resumed yet, or this side cannot know.
    #[serde(rename = "downtime_us", with = "stored::micros")]
    pub downtime: Option<Duration>,
    /// Source: how long it likely was paused, if the destination has reported that.
    #[serde(rename = "likely_downtime_us", with = "stored::micros")]
    pub likely_downtime: Option<Duration>,
    /// Pages that were missing at the destination when post-copy began; 0 in pre-copy. `None`: it
    /// has not begun.
    pub missing_pages: Option<u64>,
}

impl History {
    /// A migration that begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            begun: SystemTime::now(),
            downtime: None,
            likely_downtime: None,
            missing_pages: None,
        }
    }
}

/// Stores records, so that they outlive the engine.
///
/// # Example
///
/// The last record, kept in memory. It outlives an engine that ends within this process, as in a
/// test; `crates/hikkoshi/src/journal/` keeps records in files.
///
/// ```
/// use std::fmt::Debug;
/// use std::io;
/// use std::sync::Mutex;
///
/// use hikkoshi_handover::Journal;
///
/// #[derive(Debug, Default)]
/// struct LastRecord<R>(Mutex<Option<R>>);
///
/// impl<R: Clone + Debug + Send> Journal<R> for LastRecord<R> {
///     fn record(&self, record: &R) -> io::Result<()> {
///         *self.0.lock().map_err(|_| io::ErrorKind::Other)? = Some(record.clone());
///         Ok(())
///     }
///
///     fn close(&self) {
///         if let Ok(mut last) = self.0.lock() {
///             *last = None;
///         }
///     }
/// }
///
/// let journal = LastRecord::default();
/// journal.record(&"committed")?;
/// assert_eq!(*journal.0.lock().unwrap(), Some("committed"));
/// journal.close();
/// assert_eq!(*journal.0.lock().unwrap(), None);
/// # Ok::<(), io::Error>(())
/// ```
pub trait Journal<R>: fmt::Debug + Send + Sync {
    /// Replaces the stored record. When this returns, the record can be read even
    /// if this process is killed.
    ///
    /// # Errors
    /// When the record cannot be stored. The one before it remains.
    fn record(&self, record: &R) -> io::Result<()>;

    /// Removes the record: neither side needs it any more.
    fn close(&self) {}
}

/// Stores nothing: after the engine is killed, the migration cannot be resumed.
#[derive(Debug, Clone, Copy)]
pub struct Unrecorded;

impl<R> Journal<R> for Unrecorded {
    fn record(&self, _: &R) -> io::Result<()> {
        Ok(())
    }
}
