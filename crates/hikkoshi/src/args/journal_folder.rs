//! `--journal`, of all commands that look for journals.

use std::path::{Path, PathBuf};

use clap::Args;

use super::headings::RECOVERY;
use crate::journal;

/// Where the journals are.
#[derive(Debug, Clone, Args)]
pub(crate) struct JournalFolder {
    /// Directory for the journals of unfinished migrations, which --resume reads
    ///
    /// [default: /run/hikkoshi; for users other than root, $XDG_RUNTIME_DIR/hikkoshi]
    #[arg(verbatim_doc_comment, long, value_name = "DIR", help_heading = RECOVERY)]
    journal: Option<PathBuf>,
}

impl JournalFolder {
    /// The folder: the given one, or the default.
    pub(crate) fn path(&self) -> PathBuf {
        journal::folder(self.journal.as_deref())
    }

    /// The given one.
    pub(crate) fn given(&self) -> Option<&Path> {
        self.journal.as_deref()
    }
}
