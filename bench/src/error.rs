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
    /// The guest never ran at its destination.
    #[error("the guest never ran at its destination, and no reason was told")]
    NoSwitch,
    /// The clients could not reach the guest.
    #[error("asking the guest's web server at {server} for files: {source}")]
    Clients {
        /// Where it should be.
        server: std::net::SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The clients got answers that were not what they asked for.
    #[error("{count} of the web server's answers were bad; the first: {first}")]
    BadAnswers {
        /// How many.
        count: usize,
        /// What was wrong with the first.
        first: String,
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
