//! The migrations of this host, for people and for programs.

mod report;
mod text;

use hikkoshi_status::{End, Migration, State};

pub(crate) use report::json_line;
pub(crate) use text::{details, table};

/// A migration, as it was seen last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    /// The name of its entry in the status folder.
    pub name: String,
    /// Its engine serves its status.
    pub is_running: bool,
    /// What is moved.
    pub migration: Migration,
    /// The last state. `None`: none was taken yet.
    pub state: Option<State>,
    /// How it ended.
    pub end: Option<End>,
}

#[cfg(test)]
pub(crate) mod examples {
    use super::Seen;
    use hikkoshi_status::{Memory, Migration, Side};

    pub(crate) fn seen(side: Side, guest: &str, pid: u32, is_running: bool) -> Seen {
        let migration = Migration {
            id: format!("{pid:08x}99aabbcc"),
            side,
            pid,
            host: "host-a".into(),
            guest: guest.into(),
            peer: "host-b:7000".into(),
            mode: "hybrid".into(),
            started_unix_ms: 0,
            max_downtime_ms: None,
            bandwidth: None,
            resumed: false,
            memory: Memory {
                pages: 0,
                page_bytes: 4096,
                cell_pages: 512,
                blocks: Vec::new(),
            },
        };
        Seen {
            name: migration.entry_name(),
            is_running,
            migration,
            state: None,
            end: None,
        }
    }
}
