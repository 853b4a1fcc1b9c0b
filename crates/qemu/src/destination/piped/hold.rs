//! A descriptor of the pipe for writing, in the process that reads it.
//!
//! A pipe that no process has open for writing has ended, and QEMU fails. So the reader holds it
//! open itself: when this program is killed, the reader waits for another one.

use std::io;
use std::sync::Arc;

use hikkoshi_linux::{InjectError, Process, close_in, reopen_for_writing};
use rustix::fs::OFlags;

use super::error::PipedError;
use super::pipe::StreamPipe;
use super::reader::descriptors;

/// Lets the process open the pipe for writing.
pub(super) fn open(process: &Arc<Process>, pipe: &StreamPipe) -> Result<(), PipedError> {
    let numbers = descriptors(process, pipe.identity)?;
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
    let Some(&number) = descriptors(process, pipe.identity)?.first() else {
        return Ok(());
    };
    let opened = reopen_for_writing(process, number)?;
    close_in(process, opened).map_err(|error| PipedError::Pipe {
        source: io::Error::other(error),
    })
}

/// Lets the process close its descriptors of the pipe for writing. The one for reading is the
/// reader's own, which closes it: twice would close another file.
pub(super) fn close(process: &Arc<Process>, pipe: &StreamPipe) -> Result<(), InjectError> {
    let numbers = descriptors(process, pipe.identity).unwrap_or_default();
    let for_writing = |&number: &i32| is_for_writing(process, number);
    for number in numbers.into_iter().filter(for_writing) {
        close_in(process, number)?;
    }
    Ok(())
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
