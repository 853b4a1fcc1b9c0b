//! A descriptor of the pipe for writing, in the QEMU that reads it.
//!
//! A pipe that no process has open for writing has ended, and QEMU fails. So QEMU holds it open
//! itself: when this program is killed, QEMU waits for another one, which finds the pipe by that.

use std::io;
use std::sync::Arc;

use hikkoshi_linux::{Process, close_in, reopen_for_writing};
use rustix::fs::OFlags;

use super::error::PipedError;
use super::held_pipe::flags;
use super::helper::descriptors;
use super::pipe::StreamPipe;

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

/// Lets the process close its descriptors of the pipe for writing. The one for reading it closes
/// itself: twice would close another file.
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
        let flags = flags(process, number)?;
        if flags.is_some_and(|flags| flags & OFlags::ACCMODE == OFlags::WRONLY) {
            found.push(number);
        }
    }
    Ok(found)
}
