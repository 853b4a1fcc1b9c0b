//! Which migration of this host a command is about.

use std::path::PathBuf;

use clap::Args;

use super::headings::CONNECTION;
use super::journal_folder::run_folder;

/// A migration that runs on this host.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunningMigration {
    /// The migration: its guest, or the number or process that `hikkoshi status` shows
    ///
    /// The guest is the name of its QEMU (-name) or of the domain, or a path of --qmp. Of a number,
    /// the first four digits are enough. Without it, the only migration there is.
    #[arg(verbatim_doc_comment, value_name = "GUEST")]
    pub guest: Option<String>,

    /// Directory that `migrate` and `receive` were given with --journal
    ///
    /// [default: /run/hikkoshi; for users other than root, $XDG_RUNTIME_DIR/hikkoshi]
    #[arg(verbatim_doc_comment, long, value_name = "DIR", help_heading = CONNECTION)]
    journal: Option<PathBuf>,
}

impl RunningMigration {
    /// The run folder: the given one, or the default.
    pub(crate) fn run_folder(&self) -> PathBuf {
        run_folder(self.journal.as_deref())
    }
}
