//! The process behind a QMP socket.

pub(crate) mod exclusive_access;
pub(crate) mod image_locks;
pub(crate) mod maps;
pub(crate) mod namespaces;
pub(crate) mod oom_kills;
pub(crate) mod options;
pub(crate) mod privileges;
pub(crate) mod reopen;
pub(crate) mod running;

use std::fs::File;
use std::io;
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_userfault::OpenUserfault;
use rustix::io::Errno;
use thiserror::Error;

use self::maps::Area;
use crate::qmp::Client;

/// The process behind the QMP socket cannot be used.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The kernel does not report which process listens on the socket.
    #[error(
        "finding QEMU's process: the kernel does not report which process listens on the QMP socket; \
         if QEMU runs in a container, run hikkoshi where its process is visible (in the host's or \
         the same PID namespace)"
    )]
    NoPeer,
    /// It has ended.
    #[error("QEMU's process {pid} has ended")]
    Gone {
        /// Its number.
        pid: u32,
    },
    /// We may not access it.
    #[error(
        "{doing} of QEMU's process {pid}, {name} (run hikkoshi as root, or give it the capability \
         CAP_SYS_PTRACE)"
    )]
    NotPermitted {
        /// Its number.
        pid: u32,
        /// Its command name.
        name: String,
        /// What failed.
        doing: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("{doing} of QEMU's process {pid}")]
    Proc {
        /// Its number.
        pid: u32,
        /// What failed.
        doing: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Opens the process that listens on the client's socket.
pub(crate) fn find(client: &Client) -> Result<Arc<Process>, ProcessError> {
    let pid = client.peer().ok_or(ProcessError::NoPeer)?;
    let process = open(pid)?.ok_or(ProcessError::Gone { pid })?;
    // Only if it had ended can another process have its number.
    if client.peer_has_ended() {
        return Err(ProcessError::Gone { pid });
    }
    Ok(process)
}

/// Opens the process `pid`; `None` if there is none for certain. Every other
/// failure is an error.
pub(crate) fn open(pid: u32) -> Result<Option<Arc<Process>>, ProcessError> {
    let source = match Process::open(pid) {
        Ok(process) => return Ok(Some(Arc::new(process))),
        Err(error) => error,
    };
    match Errno::from_io_error(&source) {
        // No process has the number, or it belongs to a thread, or to a group or
        // session whose leader has ended. The last two are EINVAL in older kernels.
        Some(Errno::SRCH | Errno::NOENT | Errno::INVAL) => Ok(None),
        _ => Err(ProcessError::Proc {
            pid,
            doing: "opening a pidfd",
            source,
        }),
    }
}

/// The error of an operation on a process.
pub(crate) fn explain(process: &Process, doing: &'static str, source: io::Error) -> ProcessError {
    let pid = process.pid();
    if !process.is_alive() {
        ProcessError::Gone { pid }
    } else if source.kind() == io::ErrorKind::PermissionDenied {
        // EACCES and EPERM both.
        ProcessError::NotPermitted {
            pid,
            name: name(process),
            doing,
            source,
        }
    } else {
        ProcessError::Proc { pid, doing, source }
    }
}

/// Everything that the process has mapped, ascending.
pub(crate) fn areas(process: &Process) -> Result<Vec<Area>, ProcessError> {
    process
        .open_proc("maps")
        .and_then(maps::areas)
        .map_err(|source| explain(process, "reading the memory map", source))
}

/// Checks that we may trace the process, which is needed to create a userfaultfd in
/// it. Opening its memory requires the same right and does not affect the process.
pub(crate) fn check_right_to_trace(process: &Process) -> Result<(), ProcessError> {
    File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{}/mem", process.pid()))
        .map(drop)
        .map_err(|source| explain(process, "opening the memory", source))
}

/// The userfaultfds that are open in the process.
pub(crate) fn userfaults(process: &Process) -> Result<Vec<OpenUserfault>, ProcessError> {
    hikkoshi_userfault::open_userfaults(process)
        .map_err(|source| explain(process, "looking for userfaultfds", source))
}

/// The process's command name, for messages.
pub(crate) fn name(process: &Process) -> String {
    process
        .open_proc("comm")
        .and_then(io::read_to_string)
        .map_or_else(|_| "?".to_owned(), |name| name.trim_end().to_owned())
}

/// When the process was started, in the kernel's ticks since boot. Together with
/// its number, this identifies a process until the next boot.
pub(crate) fn start_time(process: &Process) -> Result<u64, ProcessError> {
    let doing = "reading the start time";
    let stat = process
        .open_proc("stat")
        .and_then(io::read_to_string)
        .map_err(|source| explain(process, doing, source))?;
    parse_start_time(&stat).ok_or_else(|| ProcessError::Proc {
        pid: process.pid(),
        doing,
        source: io::ErrorKind::InvalidData.into(),
    })
}

/// Field 22 of `/proc/PID/stat`. The second field is the command name in
/// parentheses and can contain parentheses and blanks itself.
pub(crate) fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_parsed_after_any_command_name() {
        let stat =
            "4998 (qemu) sys) S 1 4998 4998 0 -1 4194560 5 6 7 8 9 10 11 12 20 0 3 0 77123 1 2";
        assert_eq!(parse_start_time(stat), Some(77123));
        assert_eq!(parse_start_time("1 (x) S 1"), None);
        assert_eq!(parse_start_time(""), None);
        let own = Process::open(std::process::id()).unwrap();
        assert!(start_time(&own).unwrap() > 0);
        assert!(!name(&own).is_empty());
    }

    #[test]
    fn a_number_without_a_process_is_not_an_error() {
        assert!(open(0x7fff_ffff).unwrap().is_none());
        assert!(open(std::process::id()).unwrap().is_some());
        // A thread's number.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                sender.send(u32::try_from(tid).unwrap()).unwrap();
                let _ = wait.recv();
            });
            assert!(open(receiver.recv().unwrap()).unwrap().is_none());
            drop(done);
        });
    }

    #[test]
    fn we_may_trace_ourselves_and_have_no_userfaultfd() {
        let own = Process::open(std::process::id()).unwrap();
        check_right_to_trace(&own).unwrap();
        assert!(userfaults(&own).unwrap().is_empty());
    }
}
