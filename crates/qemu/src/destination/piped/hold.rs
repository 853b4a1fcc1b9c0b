//! QEMU's own descriptor of the pipe, for writing.
//!
//! A pipe that no process has open for writing has ended, and QEMU fails. So QEMU holds it itself:
//! when this program is killed, QEMU waits for another one.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_linux::{Process, close_in, reopen_for_writing};
use rustix::fs::OFlags;

use super::error::PipedError;
use super::pipe::StreamPipe;

/// Lets the process open the pipe for writing.
pub(super) fn open(process: &Arc<Process>, pipe: &StreamPipe) -> Result<(), PipedError> {
    let numbers = descriptors(process, pipe)?;
    let Some(&number) = numbers.first() else {
        return Err(PipedError::NotOpen {
            pid: process.pid(),
            path: pipe.path().display().to_string(),
        });
    };
    // One is for reading. An earlier program may have made the other.
    if numbers.len() == 1 {
        reopen_for_writing(process, number)?;
    }
    Ok(())
}

/// Checks that the process can open the pipe for writing.
pub(super) fn check(process: &Arc<Process>, pipe: &StreamPipe) -> Result<(), PipedError> {
    let Some(&number) = descriptors(process, pipe)?.first() else {
        return Ok(());
    };
    let opened = reopen_for_writing(process, number)?;
    close_in(process, opened).map_err(|error| PipedError::Pipe {
        source: io::Error::other(error),
    })
}

/// Lets the process close its descriptors of the pipe for writing. The one for reading is QEMU's
/// own, and QEMU closes it: twice would close another file.
pub(super) fn close(process: &Arc<Process>, pipe: &StreamPipe) {
    let numbers = descriptors(process, pipe).unwrap_or_default();
    for number in numbers
        .into_iter()
        .filter(|&number| is_for_writing(process, number))
    {
        if let Err(error) = close_in(process, number) {
            let error = Report::new(&error);
            tracing::warn!(%error, number, "closing the pipe of the device state in QEMU");
        }
    }
}

/// By the flags in its `fdinfo` (proc(5)), which are octal.
fn is_for_writing(process: &Process, number: i32) -> bool {
    let info = process.describe_descriptor(number);
    info.is_ok_and(|(_, info)| {
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & OFlags::ACCMODE.bits() == OFlags::WRONLY.bits())
    })
}

/// The numbers of the descriptors by which the process has the pipe open.
pub(super) fn descriptors(process: &Process, pipe: &StreamPipe) -> io::Result<Vec<i32>> {
    let pid = process.pid();
    let wanted = pipe.identity()?;
    let is_pipe = |number: &i32| {
        // It may have been closed since.
        std::fs::metadata(format!("/proc/{pid}/fd/{number}"))
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == wanted)
    };
    Ok(process.descriptors()?.into_iter().filter(is_pipe).collect())
}
