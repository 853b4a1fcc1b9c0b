//! Errors of a measurement.

use std::io;
use std::path::PathBuf;

use hikkoshi_lab::LabError;
use plotters::drawing::DrawingAreaErrorKind;

/// What can go wrong while a chart is drawn.
pub(crate) type DrawError = DrawingAreaErrorKind<io::Error>;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The program under test does not exist.
    #[error("the program to measure is not at {0}; run `make bench`, which builds it")]
    NoProgram(PathBuf),
    /// A plot could not be drawn.
    #[error("drawing a plot")]
    Plot(#[from] DrawError),
    /// This bench keeps no runs to continue.
    #[error("--resume is not for a bench that has a word of --only for itself")]
    NotResumed,
    /// No case matches the filters.
    #[error("no case matches --only; the cases are:\n{0}")]
    NothingToDo(String),
    /// A virtual machine, its network or QEMU's own migration failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// hikkoshi could not be started or waited for.
    #[error("running hikkoshi {side}")]
    Program {
        /// `receive` or `migrate`.
        side: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The relay that delays the network cannot listen.
    #[error("listening at {at} for the relay that delays the network")]
    Relay {
        /// Its address.
        at: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The client of the guest's redis failed.
    #[error("requesting keys from the guest's redis")]
    Redis {
        /// The operating system's error, or the wrong answer.
        source: io::Error,
    },
    /// hikkoshi failed.
    #[error("hikkoshi {side} ended with {status}:\n{stderr}")]
    Ended {
        /// `receive` or `migrate`.
        side: &'static str,
        /// Its exit status.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The guest did not run at the destination.
    #[error("the guest never ran at its destination and no error was reported")]
    NoSwitch,
    /// The clients could not connect to the guest.
    #[error("requesting files from the guest's web server at {server}")]
    Clients {
        /// The server's address.
        server: std::net::SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// The clients got wrong answers.
    #[error("{count} of the web server's answers were wrong; the first: {first}")]
    BadAnswers {
        /// How many.
        count: usize,
        /// What was wrong with the first one.
        first: String,
    },
    /// The guest found pages with wrong content.
    #[error("the guest found {0} bad pages after the migration")]
    BadPages(u64),
    /// No page fault could be followed.
    #[error("no page fault was noted by all; there are notes {0}")]
    NoTimeline(String),
    /// Some runs failed.
    #[error("{failed} of {total} runs failed; the reasons are in the lines above")]
    Failed {
        /// Runs that failed.
        failed: usize,
        /// All runs.
        total: usize,
    },
    /// Results are of something else.
    #[error(
        "the results in {path} are of {what} {theirs}, and this is {ours}: they are not mixed (name \
         another file with --json, or measure all of it without --resume)"
    )]
    Mixed {
        /// The file.
        path: PathBuf,
        /// What is different.
        what: &'static str,
        /// What the file has.
        theirs: String,
        /// What there is now.
        ours: String,
    },
    /// A file could not be read or written.
    #[error("{doing} {path}")]
    File {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}
