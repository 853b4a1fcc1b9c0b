//! `hikkoshi history`.

use std::time::Duration;

use clap::Args;

use super::durations;
use super::headings::OUTPUT;
use super::journal_folder::JournalFolder;

#[derive(Debug, Clone, Args)]
pub(crate) struct HistoryArgs {
    /// Only migrations that began within this time, such as 7d or 12h
    #[arg(long, value_name = "TIME", value_parser = durations::parse_age, help_heading = OUTPUT)]
    pub since: Option<Duration>,

    /// Only migrations of this guest
    ///
    /// Its name, or the number of a migration; of a number, the first four digits are enough.
    #[arg(verbatim_doc_comment, long, value_name = "NAME", help_heading = OUTPUT)]
    pub guest: Option<String>,

    /// Write one JSON object a line for each migration, instead of the table
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    #[command(flatten)]
    pub journals: JournalFolder,
}
