//! Errors of the lab. Each message names the object and shows the last output.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why an operation of the lab failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file that a target of the Makefile provides is missing.
    #[error(
        "{what} is missing: no {looked}; run `make {target}` in the project's folder first, \
         and start from there or set HIKKOSHI_BUILD to its folder `build`"
    )]
    Missing {
        /// The missing artifact.
        what: &'static str,
        /// The target that provides it.
        target: &'static str,
        /// Where it was searched.
        looked: String,
    },
    /// A file or socket operation failed.
    #[error("{doing} {path}")]
    File {
        /// The operation, such as "creating".
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("starting {program}")]
    Start {
        /// The program.
        program: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A program failed.
    #[error("{command} failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// Its standard error.
        stderr: String,
    },
    /// QEMU ended unexpectedly.
    #[error(
        "QEMU {vm} has ended ({status}) while {waiting_for}; the end of its standard error:\n{stderr}"
    )]
    Ended {
        /// The machine's name.
        vm: String,
        /// Its exit status.
        status: String,
        /// What the caller was waiting for.
        waiting_for: String,
        /// Its standard error.
        stderr: String,
    },
    /// A time-out.
    #[error("timed out after {} s waiting for {what}; last output:\n{seen}", after.as_secs_f32())]
    TimedOut {
        /// What the caller was waiting for.
        what: String,
        /// The time limit.
        after: Duration,
        /// The end of the console or the log.
        seen: String,
    },
    /// QEMU refused a command, or the connection to its monitor is closed.
    #[error("QMP {command} on {vm}: {reason}")]
    Qmp {
        /// The machine's name.
        vm: String,
        /// The command.
        command: String,
        /// QEMU's error, or the state of the connection.
        reason: String,
    },
    /// QEMU's own migration failed.
    #[error("QEMU's migration of {vm} ended as {status}: {reason}")]
    QemuMigration {
        /// The machine's name.
        vm: String,
        /// The final status.
        status: String,
        /// QEMU's error.
        reason: String,
    },
    /// A disk has wrong content.
    #[error("the disk image {path} is damaged: {how}")]
    DamagedDisk {
        /// The image, or a file extracted from it.
        path: PathBuf,
        /// What is damaged.
        how: String,
    },
    /// A page could not be shown or controlled.
    #[error("browser: {doing}: {reason}; the page's errors: {messages}")]
    Browser {
        /// The operation, such as "clicking on #start".
        doing: String,
        /// The browser's error, or what the page lacks.
        reason: String,
        /// What the page has written to its console as errors.
        messages: String,
    },
    /// A request by HTTP failed.
    #[error("GET http://{address}{path}: {reason}")]
    Http {
        /// The server.
        address: SocketAddr,
        /// The path, with the query.
        path: String,
        /// What went wrong.
        reason: String,
    },
    /// This host cannot limit the read rate of a disk.
    #[error("the disk's read rate cannot be limited for QEMU: {reason}; {remedy}")]
    NoThrottle {
        /// Why not.
        reason: String,
        /// How to make it possible.
        remedy: String,
    },
    /// This host cannot swap a machine's memory.
    #[error("the guest's memory cannot be swapped here: {reason}")]
    NoSwap {
        /// Why not.
        reason: String,
    },
    /// The kernel did not reserve that many huge pages.
    #[error(
        "{wanted} huge pages of {mib} MiB were requested and {got} were available; free some memory or use a smaller guest"
    )]
    HugePages {
        /// The size of each, MiB.
        mib: u64,
        /// The requested number.
        wanted: u64,
        /// The number that the kernel reserved.
        got: u64,
    },
}

impl LabError {
    /// For `map_err` on file operations.
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            doing,
            path,
            source,
        }
    }
}
