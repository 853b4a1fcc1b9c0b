//! Files that another process opens, by an injected system call.

use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use thiserror::Error;

use crate::inject::{InjectError, inject};
use crate::process::Process;

/// Room for a path such as `/proc/self/fd/2147483647`.
const PATH_BYTES: u16 = 32;

/// A process could not open a file again.
#[derive(Debug, Error)]
pub enum ReopenError {
    /// The process could not execute the system call.
    #[error("opening a file in process {pid}")]
    Inject {
        /// Its number.
        pid: u32,
        /// Why.
        source: InjectError,
    },
    /// The kernel refused it.
    #[error("opening descriptor {number} of process {pid} for writing")]
    Refused {
        /// Its number.
        pid: u32,
        /// The descriptor.
        number: i32,
        /// The error of the system call.
        source: Errno,
    },
}

/// Lets `process` open the file of its descriptor `number` once more, for writing and without
/// waiting. Returns the new descriptor's number. The file's own permissions apply.
///
/// # Errors
///
/// See [`ReopenError`].
pub fn reopen_for_writing(process: &Arc<Process>, number: i32) -> Result<i32, ReopenError> {
    let pid = process.pid();
    let path = format!("/proc/self/fd/{number}\0");
    let opened = inject(
        process,
        move |remote| {
            let scratch = remote.scratch(PATH_BYTES)?;
            remote.write(scratch.at, path.as_bytes())?;
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let arguments = [scratch.at, u64::from(flags.bits()), 0, 0, 0, 0];
            let opened = remote.syscall("opening a file in it", libc::SYS_open, arguments);
            remote.restore_scratch(&scratch)?;
            opened
        },
        drop,
    );
    let refused = |source| ReopenError::Refused {
        pid,
        number,
        source,
    };
    let opened: Result<u64, Errno> =
        opened.map_err(|source: InjectError| ReopenError::Inject { pid, source })?;
    i32::try_from(opened.map_err(refused)?).map_err(|_| refused(Errno::BADF))
}

/// Lets `process` close its descriptor `number`. A descriptor that is closed already is no error.
///
/// # Errors
///
/// When the process could not execute the system call.
pub fn close_in(process: &Arc<Process>, number: i32) -> Result<(), InjectError> {
    let Ok(number) = u64::try_from(number) else {
        return Ok(());
    };
    let closed = inject(
        process,
        move |remote| {
            let arguments = [number, 0, 0, 0, 0, 0];
            remote.syscall("closing a file in it", libc::SYS_close, arguments)
        },
        drop,
    )?;
    if let Err(error) = closed {
        tracing::debug!(%error, number, "closing a descriptor of another process");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_holds_its_own_input_open() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let process = Arc::new(Process::open(child.id()).unwrap());
        let number = reopen_for_writing(&process, 0).unwrap();
        let file = |number: i32| format!("/proc/{}/fd/{number}", process.pid());
        let inode = |number| std::fs::metadata(file(number)).unwrap().ino();
        assert_eq!(inode(number), inode(0));
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        // It does not end, although we have closed our end.
        assert!(process.is_alive());
        close_in(&process, number).unwrap();
        assert!(!std::fs::exists(file(number)).unwrap());
        assert_eq!(output.read(&mut byte).unwrap(), 0);
        child.wait().unwrap();
    }
}
