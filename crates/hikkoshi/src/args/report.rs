//! `hikkoshi report`.

use std::path::PathBuf;

use clap::Args;

use super::headings::OUTPUT;
use super::journal_folder::JournalFolder;

#[derive(Debug, Clone, Args)]
pub(crate) struct Report {
    /// Results of --json, reports, files of the status folder, or names of guests
    ///
    /// Several migrations are compared. A result of --json has the statistics only; a report
    /// (.html) and a file of the status folder also have what happened over time. A name is the
    /// last migration of that guest that ended on this host, as `hikkoshi status --all` shows it.
    /// Without FILE, the last migration of all.
    #[arg(verbatim_doc_comment, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// The evacuation of this host: the one that is not complete, or else the last one
    ///
    /// What was planned is compared with what happened. Its moves follow, as far as their
    /// recordings are in the status folder.
    #[arg(verbatim_doc_comment, long, conflicts_with = "files", help_heading = OUTPUT)]
    pub evacuation: bool,

    /// Write the page to FILE; "-" is standard output
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: PathBuf,

    #[command(flatten)]
    pub journals: JournalFolder,
}
