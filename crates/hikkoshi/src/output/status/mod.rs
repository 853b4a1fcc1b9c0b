//! The migrations of this host and of others, for people and for programs.

mod alarm;
mod hosts;
mod report;
mod text;

use std::path::PathBuf;

use hikkoshi_account::{Stage, State};
use hikkoshi_status::{End, Migration};
use serde::{Deserialize, Serialize};

pub(crate) use alarm::alarms;
pub(crate) use hosts::{SeenHost, host_json, hosts_table};
pub(crate) use report::json_line;
pub(crate) use text::{details, table};

/// What the engine of a migration does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// It runs, and sends its states.
    Answers,
    /// It runs, and sends nothing: it is stopped, or has too many clients. The state may be old.
    Silent,
    /// It has ended. If the migration has no end, it was killed.
    Gone,
}

/// A migration, as it was seen last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenMigration {
    /// The name of its entry in the status folder.
    pub name: String,
    /// What its engine does.
    pub engine: Engine,
    /// What is moved.
    pub migration: Migration,
    /// The last state. `None`: none was taken yet.
    pub state: Option<State>,
    /// How it ended.
    pub end: Option<End>,
    /// What its journal says, if no engine works on it and it is not finished.
    pub unfinished: Option<Unfinished>,
    /// A later engine has continued the migration.
    pub is_continued: bool,
}

/// A migration that is to be resumed, according to its journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unfinished {
    /// The journal.
    pub journal: PathBuf,
    /// The stage that it has.
    pub stage: Stage,
    /// What that means.
    pub message: String,
    /// The command that resumes it.
    pub resume: String,
}

impl SeenMigration {
    /// Whether its engine runs.
    pub(crate) fn is_running(&self) -> bool {
        self.engine != Engine::Gone
    }

    /// Whether the state is the present one.
    pub(crate) fn answers(&self) -> bool {
        self.engine == Engine::Answers
    }
}

#[cfg(test)]
pub(crate) mod examples {
    use super::{Engine, SeenMigration};
    use hikkoshi_account::{Mode, Side};
    use hikkoshi_status::Migration;

    pub(crate) fn seen(side: Side, guest: &str, pid: u32, is_running: bool) -> SeenMigration {
        let migration = Migration {
            pid,
            host: "host-a".into(),
            peer: "host-b:7000".into(),
            mode: Some(Mode::Hybrid),
            ..Migration::new(format!("{pid:08x}99aabbcc"), side, guest)
        };
        SeenMigration {
            name: migration.entry_name(),
            engine: match is_running {
                true => Engine::Answers,
                false => Engine::Gone,
            },
            migration,
            state: None,
            end: None,
            unfinished: None,
            is_continued: false,
        }
    }
}
