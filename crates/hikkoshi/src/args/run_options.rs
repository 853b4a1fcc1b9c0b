//! Options of both sides that concern one run only.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::headings::{CONNECTION, OUTPUT, RECOVERY};
use super::journal_folder::JournalFolder;
use super::security::Security;

/// Options of both sides that concern one run only: they are not kept in the journal.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    /// QMP socket of the QEMU process
    #[arg(
        long,
        value_name = "PATH",
        display_order = 0,
        help_heading = CONNECTION
    )]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub security: Security,

    /// Resume an unfinished migration
    ///
    /// Without JOURNAL, resume the migration of the QEMU process given by --qmp, or the only
    /// unfinished one. Address, credentials and options are read from the journal; options given
    /// here replace those. If the other side's hikkoshi has ended too, run it with --resume as
    /// well.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "JOURNAL",
        num_args = 0..=1,
        require_equals = true,
        help_heading = RECOVERY
    )]
    #[allow(clippy::option_option)] // Clap distinguishes the three cases in this way.
    pub resume: Option<Option<PathBuf>>,

    /// Give up the migration; explains the consequences first
    ///
    /// If this can do harm, nothing is done without --other-side-is-lost. At the source, the guest
    /// is resumed in the state in which it was paused. If it has run at the destination since, that
    /// damages its disks unless they are restored to the same moment. At the destination, QEMU is
    /// ended if pages are missing.
    #[arg(verbatim_doc_comment, long, requires = "resume", help_heading = RECOVERY)]
    pub give_up: bool,

    /// Confirm --give-up: the other side does not run the guest and never will
    #[arg(long, requires = "give_up", help_heading = RECOVERY)]
    pub other_side_is_lost: bool,

    #[command(flatten)]
    pub journals: JournalFolder,

    /// Make FILE a symbolic link to the journal of this migration
    ///
    /// While the migration is not finished, --resume=FILE resumes it: whoever starts hikkoshi need
    /// not know the guest for that. Afterwards the link leads to no file. A link that leads to the
    /// journal of another unfinished migration is not replaced.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        conflicts_with = "resume",
        help_heading = RECOVERY
    )]
    pub journal_link: Option<PathBuf>,

    /// Progress output format
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t = ProgressFormat::Auto,
        help_heading = OUTPUT
    )]
    pub progress: ProgressFormat,

    /// Write the result to FILE as one JSON object
    ///
    /// On success it is the statistics of the migration, otherwise {"error": ...} with the
    /// reason. With "-" it is written to standard output, and an invitation to standard error.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<PathBuf>,

    /// Write a report of the migration to FILE: a web page
    ///
    /// It has what happened and when, how long the guest was paused and why, the latency of page
    /// requests, and a map of the guest's memory. It needs no other files, and can be shown without
    /// a network. Also written after a failure.
    #[arg(verbatim_doc_comment, long, value_name = "FILE.html", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,

    /// Print all of the result at the end: pages, bytes, and the latency of page requests
    #[arg(short, long, help_heading = OUTPUT)]
    pub verbose: bool,
}

/// What is written to standard error during a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressFormat {
    /// A progress bar on a terminal, otherwise a line every two seconds
    Auto,
    /// One JSON object a line; the last one is the result
    Json,
    /// No progress
    None,
}
