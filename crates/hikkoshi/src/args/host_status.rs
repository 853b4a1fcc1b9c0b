//! `hikkoshi host-status`, which `daemon` and `status --host` start.

use clap::Args;

use super::journal_folder::JournalFolder;

#[derive(Debug, Clone, Args)]
pub(crate) struct HostStatusArgs {
    /// Which migrations to list: none, running or all
    #[arg(long, value_name = "WHICH", default_value = "none", value_parser = parse)]
    pub migrations: HostQuestion,

    #[command(flatten)]
    pub journals: JournalFolder,
}

/// What is asked about a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostQuestion {
    /// What it has, and its guests.
    Host,
    /// That, and the migrations that run or are not finished.
    Running,
    /// That, and all migrations that were recorded.
    All,
}

impl HostQuestion {
    const EACH: [Self; 3] = [Self::Host, Self::Running, Self::All];

    /// Its name: the value of `--migrations`, and the text of an inquiry.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "none",
            Self::Running => "running",
            Self::All => "all",
        }
    }

    /// The question of this name.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::EACH.into_iter().find(|each| each.name() == name)
    }
}

fn parse(text: &str) -> Result<HostQuestion, String> {
    HostQuestion::by_name(text).ok_or_else(|| "none, running or all is expected".to_owned())
}
