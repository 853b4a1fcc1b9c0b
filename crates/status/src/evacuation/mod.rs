//! An evacuation: what was planned, and what has become of each guest.
//!
//! `hikkoshi evacuate` keeps it in a file while it runs, so that the same command continues it, and
//! the dashboard and reports show it. The file is in the folder *evacuation* of the status folder,
//! with the results and the messages of the moves.

mod plan;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::StatusFolder;

pub use plan::{
    DeadlineMet, EvacuationPlan, MoveOrder, PlannedChange, PlannedDeadline, PlannedDestination,
    PlannedMove, StayingGuest,
};

/// The version of the file. Others are refused.
pub const EVACUATION_VERSION: u32 = 1;

/// The largest file that is read, in bytes: some thousand guests.
const MAX_BYTES: u64 = 16 << 20;

/// The evacuation of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evacuation {
    /// [`EVACUATION_VERSION`].
    pub version: u32,
    /// When its newest run began to move guests: milliseconds since 1970 (UTC). `None`: not yet.
    #[serde(default)]
    pub started_unix_ms: Option<u64>,
    /// When that run ended. `None`: it runs, or was killed.
    #[serde(default)]
    pub ended_unix_ms: Option<u64>,
    /// What that run has planned at its beginning.
    #[serde(default)]
    pub plan: Option<EvacuationPlan>,
    /// What has become of each guest.
    pub guests: BTreeMap<String, EvacuatedGuest>,
}

/// What is known of a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvacuatedGuest {
    /// How it was reached.
    pub at: ReachedBy,
    /// Where it was moved to last.
    pub to: Option<String>,
    /// How often moving it was begun.
    pub attempts: u32,
    /// Where it is.
    pub stage: EvacuationStage,
    /// The process that has moved it last.
    #[serde(default)]
    pub pid: Option<u32>,
    /// When its last move was begun: milliseconds since 1970 (UTC).
    #[serde(default)]
    pub began_unix_ms: Option<u64>,
    /// When that ended.
    #[serde(default)]
    pub ended_unix_ms: Option<u64>,
    /// What the move has reported of how long it took, in milliseconds.
    #[serde(default)]
    pub total_ms: Option<f64>,
    /// How long the guest was paused, in milliseconds.
    #[serde(default)]
    pub downtime_ms: Option<f64>,
    /// What the guest has lost of its time, in milliseconds: the pause, and waiting for pages.
    #[serde(default)]
    pub felt_ms: Option<f64>,
}

/// How a guest is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachedBy {
    /// By the QMP socket of its QEMU.
    Qmp(PathBuf),
    /// By the libvirt daemon with this URI.
    Domain(String),
}

/// Where a guest is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvacuationStage {
    /// A process moves it.
    Moving,
    /// It is at the destination.
    Moved,
    /// It is at this host.
    Stays {
        /// Why, for people.
        message: String,
    },
    /// It was handed over, and the migration is not finished.
    Unfinished {
        /// Why, for people.
        message: String,
        /// What resumes it.
        resume: Option<String>,
    },
    /// It is lost.
    Lost {
        /// How, for people.
        message: String,
    },
}

/// The file of an evacuation cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EvacuationError {
    /// It cannot be read.
    #[error("reading the evacuation in {}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// It is not one.
    #[error("{} is not an evacuation", file.display())]
    Other {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        cause: serde_json::Error,
    },
    /// It has another version.
    #[error(
        "{} has version {version}, and this hikkoshi reads version {EVACUATION_VERSION}",
        file.display()
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// Its version.
        version: u32,
    },
}

impl StatusFolder {
    /// The folder of the evacuation of this host.
    pub fn evacuation(&self) -> PathBuf {
        self.path().join("evacuation")
    }

    /// The evacuation of this host: the one that is not complete, or else the last one. `None`:
    /// there is none.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn read_evacuation(&self) -> Result<Option<Evacuation>, EvacuationError> {
        let folder = self.evacuation();
        match Evacuation::read(&Evacuation::journal_in(&folder))? {
            Some(evacuation) => Ok(Some(evacuation)),
            None => Evacuation::read(&Evacuation::last_in(&folder)),
        }
    }
}

impl Evacuation {
    /// The file of the evacuation that is not complete, in its folder.
    pub fn journal_in(folder: &Path) -> PathBuf {
        folder.join("journal.json")
    }

    /// The file of the last one of which nothing is left to do.
    pub fn last_in(folder: &Path) -> PathBuf {
        folder.join("last.json")
    }

    /// Reads one. `None`: there is no such file.
    ///
    /// # Errors
    /// If it cannot be read, is something else, or has another version.
    pub fn read(path: &Path) -> Result<Option<Self>, EvacuationError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let failed = |cause| EvacuationError::File {
            file: path.to_owned(),
            cause,
        };
        let mut text = Vec::new();
        match fs::File::open(path) {
            Ok(file) => file
                .take(MAX_BYTES)
                .read_to_end(&mut text)
                .map_err(failed)?,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        };
        let other = |cause| EvacuationError::Other {
            file: path.to_owned(),
            cause,
        };
        let Versioned { version } = serde_json::from_slice(&text).map_err(other)?;
        if version != EVACUATION_VERSION {
            return Err(EvacuationError::Version {
                file: path.to_owned(),
                version,
            });
        }
        serde_json::from_slice(&text).map(Some).map_err(other)
    }

    /// Whether its newest run has ended.
    pub fn has_ended(&self) -> bool {
        self.ended_unix_ms.is_some()
    }

    /// How long its newest run has moved guests, in milliseconds. `None`: it has not ended.
    #[allow(clippy::cast_precision_loss)] // Far below 2^53.
    pub fn total_ms(&self) -> Option<f64> {
        Some(self.ended_unix_ms?.saturating_sub(self.started_unix_ms?) as f64)
    }

    /// What all guests have lost of their time, in milliseconds. `None`: not known of one that has
    /// moved.
    pub fn felt_ms(&self) -> Option<f64> {
        let moved = self.guests.values();
        let moved = moved.filter(|it| it.stage == EvacuationStage::Moved);
        moved.map(|it| it.felt_ms).sum()
    }
}

impl EvacuatedGuest {
    /// One that was not moved yet.
    pub fn new(at: ReachedBy, stage: EvacuationStage) -> Self {
        Self {
            at,
            to: None,
            attempts: 0,
            stage,
            pid: None,
            began_unix_ms: None,
            ended_unix_ms: None,
            total_ms: None,
            downtime_ms: None,
            felt_ms: None,
        }
    }
}
