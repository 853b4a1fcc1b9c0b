//! `--journal`, of all commands that look for journals.

use std::path::{Path, PathBuf};

use clap::Args;

use super::headings::RECOVERY;

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
        run_folder(self.journal.as_deref())
    }

    /// The given one.
    pub(crate) fn given(&self) -> Option<&Path> {
        self.journal.as_deref()
    }
}

/// The folder: the given one, else `/run/hikkoshi`, or for users other than root
/// `$XDG_RUNTIME_DIR/hikkoshi`.
pub(crate) fn run_folder(given: Option<&Path>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let is_root = rustix::process::geteuid().is_root();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !is_root && !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("hikkoshi"),
        None => PathBuf::from("/run/hikkoshi"),
    }
}
