//! Why a measurement could not be made.

use std::io;
use std::path::PathBuf;

use hikkoshi_lab::LabError;

/// Why there is no number.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The program under test was not built.
    #[error("the program to measure is not at {0}; run `make bench`, which builds it")]
    NoProgram(PathBuf),
    /// No case is left.
    #[error("no case matches --only; the cases are:\n{0}")]
    NothingToDo(String),
    /// A virtual machine, its network or QEMU's own migration failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// hikkoshi could not be run.
    #[error("running hikkoshi {side}: {source}")]
    Program {
        /// `receive` or `migrate`.
        side: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// hikkoshi failed.
    #[error("hikkoshi {side} ended with {status}:\n{stderr}")]
    Ended {
        /// `receive` or `migrate`.
        side: &'static str,
        /// How it ended.
        status: String,
        /// Its last words.
        stderr: String,
    },
    /// The guest found a page that was not as it should be.
    #[error("the guest found {0} bad pages after its move")]
    BadPages(u64),
    /// Some runs gave no number.
    #[error("{failed} of {total} runs failed; their reasons are in the lines above")]
    Failed {
        /// Runs without a number.
        failed: usize,
        /// All runs.
        total: usize,
    },
    /// A file could not be read or written.
    #[error("{doing} {path}: {source}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}
