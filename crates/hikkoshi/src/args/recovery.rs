//! Options of both sides about an unfinished migration.

use std::path::PathBuf;

use clap::Args;

use super::headings::RECOVERY;
use super::journal_folder::JournalFolder;

/// Which migration is resumed, and where its journal is.
#[derive(Debug, Clone, Args)]
pub(crate) struct RecoveryOptions {
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
}

/// Whether the migration is given up instead of resumed.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GiveUpOptions {
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
}
