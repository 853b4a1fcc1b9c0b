//! `hikkoshi status`.

use clap::{ArgGroup, Args};

use super::headings::OUTPUT;
use super::hosts::HostArgs;
use super::running::RunningMigration;

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("where").args(["hosts", "journal"])))]
pub(crate) struct MigrationStatus {
    #[command(flatten)]
    pub migration: RunningMigration,

    #[command(flatten)]
    pub others: HostArgs,

    /// Also show the migrations that have ended
    ///
    /// The newest 32 of each run folder are kept.
    #[arg(verbatim_doc_comment, long, help_heading = OUTPUT)]
    pub all: bool,

    /// Repeat it every second
    ///
    /// With GUEST, until the migration has ended. With --host, every five seconds.
    #[arg(verbatim_doc_comment, long, help_heading = OUTPUT)]
    pub watch: bool,

    /// Write one JSON object a line for each migration, instead of the text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}
