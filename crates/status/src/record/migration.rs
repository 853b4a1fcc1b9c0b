//! What is moved, from where to where.

use hikkoshi_account::{EngineInfo, Limits, Mode, Side};
use serde::{Deserialize, Serialize};

/// What is moved, from where to where. Does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// The number of the migration, in hexadecimal: the same on both sides.
    pub id: String,
    /// This side.
    pub side: Side,
    /// The engine's process.
    pub pid: u32,
    /// The name of this host.
    pub host: String,
    /// The guest's name; of one that has none, how its QEMU is reached.
    pub guest: String,
    /// The path of its QMP socket, if its QEMU is reached by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qmp: Option<String>,
    /// The other side's address.
    pub peer: String,
    /// The mode. `None` is `unknown` in JSON, and so is one that this version does not know.
    #[serde(with = "mode_or_unknown")]
    pub mode: Option<Mode>,
    /// When it began: milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// The limits at the beginning (source). In JSON, its members are members of the migration.
    #[serde(flatten)]
    pub limits: Limits,
    /// Whether this engine resumed a migration that another one had begun.
    pub resumed: bool,
    /// The guest's memory.
    pub memory: Memory,
}

impl Migration {
    /// A migration of which no more is known.
    pub fn new(id: impl Into<String>, side: Side, guest: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            side,
            pid: 0,
            host: String::new(),
            guest: guest.into(),
            qmp: None,
            peer: String::new(),
            mode: None,
            started_unix_ms: 0,
            limits: Limits::default(),
            resumed: false,
            memory: Memory {
                pages: 0,
                page_bytes: 4096,
                cell_pages: 1,
                blocks: Vec::new(),
            },
        }
    }

    /// The name of the mode: `precopy`, `postcopy`, `hybrid` or `unknown`.
    pub fn mode_name(&self) -> &'static str {
        self.mode.map_or(UNKNOWN, Mode::name)
    }

    /// What a result says of it (`--json`): the facts about the engine, with the limits that there
    /// are, and another name for the number.
    pub fn engine_info(&self) -> EngineInfo {
        EngineInfo {
            migration_id: self.id.clone(),
            side: self.side,
            pid: self.pid,
            host: self.host.clone(),
            guest: self.guest.clone(),
            peer: self.peer.clone(),
            started_unix_ms: self.started_unix_ms,
            resumed: self.resumed,
            max_downtime_ms: self.limits.max_downtime_ms,
            bandwidth: self.limits.bandwidth,
        }
    }
}

/// A migration of which only a result is known: without its mode and its memory.
impl From<EngineInfo> for Migration {
    fn from(result: EngineInfo) -> Self {
        let EngineInfo {
            migration_id,
            side,
            pid,
            host,
            guest,
            peer,
            started_unix_ms,
            resumed,
            max_downtime_ms,
            bandwidth,
        } = result;
        Self {
            pid,
            host,
            peer,
            started_unix_ms,
            limits: Limits {
                max_downtime_ms,
                bandwidth,
            },
            resumed,
            ..Self::new(migration_id, side, guest)
        }
    }
}

/// The name of a mode that is not known.
const UNKNOWN: &str = "unknown";

/// A mode by its name.
mod mode_or_unknown {
    use std::borrow::Cow;

    use hikkoshi_account::Mode;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::UNKNOWN;

    pub(super) fn serialize<S: Serializer>(mode: &Option<Mode>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.map_or(UNKNOWN, Mode::name))
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Option<Mode>, D::Error>
    where
        D: Deserializer<'de>,
    {
        // The rest of the recording can be shown without it.
        Ok(Cow::<str>::deserialize(from)?.parse().ok())
    }
}

/// The guest's memory: a flat space of pages, the RAM blocks one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Pages in total.
    pub pages: u64,
    /// Bytes of a page: 4096.
    pub page_bytes: u64,
    /// Pages of a cell of the map. The last cell may be smaller.
    pub cell_pages: u64,
    /// RAM blocks, in order.
    pub blocks: Vec<Block>,
}

impl Memory {
    /// Cells of the map.
    pub fn cells(&self) -> u64 {
        self.pages.div_ceil(self.cell_pages.max(1))
    }
}

/// A RAM block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// QEMU's name of it.
    pub id: String,
    /// Its first page in the flat space.
    pub first_page: u64,
    /// Its pages.
    pub pages: u64,
    /// Where it is mapped in the guest. May be incomplete or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest: Vec<GuestRange>,
}

/// A part of a RAM block that is mapped at one guest address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRange {
    /// Guest-physical address of its first byte.
    pub address: u64,
    /// Offset of its first byte in the block.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_one_name_and_may_be_unknown() {
        for (mode, name) in [
            (Some(Mode::Precopy), "precopy"),
            (Some(Mode::Postcopy), "postcopy"),
            (Some(Mode::Hybrid), "hybrid"),
            (None, "unknown"),
        ] {
            let migration = Migration {
                mode,
                ..Migration::new("id", Side::Source, "web")
            };
            let json = serde_json::to_value(&migration).unwrap();
            assert_eq!((&json["mode"], migration.mode_name()), (&name.into(), name));
            assert_eq!(
                serde_json::from_value::<Migration>(json).unwrap(),
                migration
            );
        }
        let mut json = serde_json::to_value(Migration::new("id", Side::Source, "web")).unwrap();
        for name in ["fast", ""] {
            json["mode"] = name.into();
            let migration: Migration = serde_json::from_value(json.clone()).unwrap();
            assert_eq!((migration.mode, migration.mode_name()), (None, "unknown"));
        }
        json["mode"] = 1.into();
        assert!(serde_json::from_value::<Migration>(json).is_err());
    }

    #[test]
    fn a_result_has_all_facts_about_the_engine() {
        let mut migration = crate::record::examples::migration();
        migration.limits.bandwidth = Some(1 << 20);
        migration.resumed = true;
        let known = Migration {
            mode: None,
            memory: Migration::new("", Side::Source, "").memory,
            ..migration.clone()
        };
        assert_eq!(Migration::from(migration.engine_info()), known);
    }
}
