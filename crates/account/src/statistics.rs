//! The account as `--json` writes it, with what the program adds.

use serde::{Deserialize, Serialize};

use crate::{Account, Mode, Side};

/// The result of a migration on one side (`docs/json.md`): one object that has the members of all
/// of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// What the migration cost.
    #[serde(flatten)]
    pub account: Account,
    /// Which engine it was, and of which migration. `None`: not known.
    #[serde(flatten)]
    pub engine: Option<EngineInfo>,
    /// At the source: whether QEMU was ended there, if it was to be.
    #[serde(flatten)]
    pub quit: Option<SourceQuit>,
    /// At the source, with `--mode auto`: what was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
}

/// Which engine it was, and of which migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// The number of the migration, in hexadecimal: the same on both sides.
    pub migration_id: String,
    /// This side.
    pub side: Side,
    /// The engine's process.
    pub pid: u32,
    /// The name of this host.
    pub host: String,
    /// The guest's name; of one that has none, how its QEMU is reached.
    pub guest: String,
    /// The other side's address.
    pub peer: String,
    /// When it began: milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// Whether this engine resumed a migration that another one had begun.
    pub resumed: bool,
    /// The limit of the downtime at the beginning, in milliseconds, where there is one (source).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_downtime_ms: Option<u64>,
    /// The limit of background traffic at the beginning, in bytes per second, where there is one
    /// (source).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
}

/// Whether the source's QEMU was ended (`--quit-source`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceQuit {
    /// Whether it was.
    pub source_quit: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_quit_error: Option<String>,
}

/// What `--mode auto` has chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Auto {
    /// The mode.
    pub chosen_mode: Mode,
    /// Why.
    pub reason: String,
    /// The downtime that was predicted, in milliseconds; `None`: nothing could be predicted.
    pub downtime_ms: Option<Predicted>,
    /// The total time that was predicted, in milliseconds.
    pub total_ms: Option<Predicted>,
}

/// What was predicted, with its bounds. `None`: without a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// If what is not known is as good as it may well be.
    pub low: Option<f64>,
    /// What is most likely.
    pub likely: Option<f64>,
    /// If what is not known is as bad as it may well be.
    pub high: Option<f64>,
}
