//! What can go wrong in the laboratory; each message says with what, and shows what was seen last.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why something in the laboratory did not work.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Something that `make guest` brings is not there.
    #[error(
        "{what} is not there: no {looked}; run `make guest` in the project's folder first, and start \
         from there or set HIKKOSHI_BUILD to its folder `build`"
    )]
    Missing {
        /// What is missing.
        what: &'static str,
        /// Where it was looked for.
        looked: String,
    },
    /// A file or socket operation failed.
    #[error("{doing} {path}: {source}")]
    File {
        /// What was being done, as "creating".
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("starting {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("{command} failed ({status}): {stderr}")]
    Command {
        /// The command as it was called.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },
    /// QEMU ended when it should have run.
    #[error("QEMU {vm} has ended ({status}) while {waiting_for}; its last words:\n{stderr}")]
    Ended {
        /// The machine's name.
        vm: String,
        /// How it ended.
        status: String,
        /// What was being waited for.
        waiting_for: String,
        /// What it said.
        stderr: String,
    },
    /// Something did not come in time.
    #[error("waited {} s for {what} in vain; the last that was seen:\n{seen}", after.as_secs_f32())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// The console's or the log's end.
        seen: String,
    },
    /// QEMU refused a command, or its monitor has gone.
    #[error("QMP {command} on {vm}: {reason}")]
    Qmp {
        /// The machine's name.
        vm: String,
        /// The command.
        command: String,
        /// QEMU's reason, or what became of the connection.
        reason: String,
    },
    /// QEMU's own migration failed.
    #[error("QEMU's migration of {vm} ended as {status}: {reason}")]
    QemuMigration {
        /// The machine's name.
        vm: String,
        /// The status it ended with.
        status: String,
        /// QEMU's reason.
        reason: String,
    },
    /// A disk does not hold what it should.
    #[error("the disk image {path} is damaged: {how}")]
    DamagedDisk {
        /// The image, or what was taken out of it.
        path: PathBuf,
        /// What is wrong with it.
        how: String,
    },
    /// This host cannot slow a disk down.
    #[error("the disk cannot be slowed down for QEMU: {reason}; {remedy}")]
    NoThrottle {
        /// Why not.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// The kernel would not reserve that many huge pages.
    #[error(
        "{wanted} huge pages of {mib} MiB were wanted and {got} were to be had; free some memory or use a smaller guest"
    )]
    HugePages {
        /// The size of each, MiB.
        mib: u64,
        /// How many were asked for.
        wanted: u64,
        /// How many the kernel gave.
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
