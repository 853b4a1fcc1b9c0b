//! A descriptor of the pipe for writing, in the process that reads it.
//!
//! A pipe that no process has open for writing has ended, and QEMU fails. So the reader holds it
//! open itself: when this program is killed, the reader waits for another one.

use std::io;
use std::sync::Arc;

use hikkoshi_linux::{Process, close_in, reopen_for_writing};
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
    // An earlier program may have made one.
    if for_writing(process, pipe)?.is_empty() {
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
pub(super) fn close(process: &Arc<Process>, pipe: &StreamPipe) -> Result<(), PipedError> {
    for number in for_writing(process, pipe)? {
        close_in(process, number).map_err(PipedError::NotClosed)?;
    }
    match for_writing(process, pipe)?.is_empty() {
        true => Ok(()),
        false => Err(PipedError::StillOpen { pid: process.pid() }),
    }
}

/// The descriptors of the pipe for writing.
fn for_writing(process: &Process, pipe: &StreamPipe) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for number in descriptors(process, pipe.identity)? {
        if is_for_writing(process, number)? {
            found.push(number);
        }
    }
    Ok(found)
}

/// By the flags in its `fdinfo` (proc(5)), which are octal.
fn is_for_writing(process: &Process, number: i32) -> io::Result<bool> {
    let info = match process.describe_descriptor(number) {
        Ok((_, info)) => info,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    let flags = flags.ok_or(io::ErrorKind::InvalidData)?;
    Ok(flags & OFlags::ACCMODE.bits() == OFlags::WRONLY.bits())
}
