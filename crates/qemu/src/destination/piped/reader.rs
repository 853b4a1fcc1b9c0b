//! Which process reads the pipe: QEMU, or a helper that passes on to QEMU what it reads.
//!
//! libvirt starts such a helper (`libvirt_iohelper`; 12.9 for every domain that it restores). It
//! passes on blocks of 1 MiB, and exits when the pipe is closed. libvirt waits for that, even if
//! QEMU has failed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use hikkoshi_linux::Process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use super::StreamPipe;

/// A helper's descriptors: it reads its standard input, and writes to its standard output.
const INPUT: i32 = 0;
const OUTPUT: i32 = 1;

impl StreamPipe {
    /// The process that reads the pipe for `qemu`. `None`: QEMU does not have it, yet.
    ///
    /// # Errors
    ///
    /// When QEMU's descriptors cannot be read.
    pub fn reader_for(&self, qemu: &Arc<Process>) -> io::Result<Option<Arc<Process>>> {
        if !descriptors(qemu, self.identity)?.is_empty() {
            return Ok(Some(Arc::clone(qemu)));
        }
        for helper in self.helpers() {
            if let Some(output) = pipe(helper.pid(), OUTPUT)
                && !descriptors(qemu, output)?.is_empty()
            {
                return Ok(Some(Arc::new(helper)));
            }
        }
        Ok(None)
    }

    /// Whether a helper reads the pipe, but no process reads what it writes: its owner has
    /// failed, and waits until the pipe is closed.
    pub fn is_abandoned(&self) -> bool {
        self.helpers().iter().any(|helper| {
            let output = format!("/proc/{}/fd/{OUTPUT}", helper.pid());
            let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let mut options = File::options();
            let opened = options.write(true).custom_flags(nonblocking).open(output);
            opened.is_ok_and(|output| has_no_reader(&output))
        })
    }

    /// The processes whose standard input is the pipe.
    pub fn helpers(&self) -> Vec<Process> {
        let is_helper = |pid| pipe(pid, INPUT) == Some(self.identity);
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Once more when it is opened: another process may have its number by then.
        let helpers = processes
            .filter(|&pid| is_helper(pid))
            .filter_map(|pid| Process::open(pid).ok())
            .filter(|process| is_helper(process.pid()));
        helpers.collect()
    }
}

/// A pipe without a reader has an error (`pipe_poll` in the kernel's `fs/pipe.c`).
fn has_no_reader(pipe: &File) -> bool {
    let mut poll = [PollFd::new(pipe, PollFlags::OUT)];
    let polled = rustix::event::poll(&mut poll, Some(&Timespec::default()));
    polled.is_ok() && poll[0].revents().contains(PollFlags::ERR)
}

/// The device and inode of a process's pipe with this number.
fn pipe(pid: u32, number: i32) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?;
    let is_pipe = metadata.file_type().is_fifo();
    is_pipe.then(|| (metadata.dev(), metadata.ino()))
}

/// The numbers of the descriptors by which the process has this pipe open.
pub(super) fn descriptors(process: &Process, wanted: (u64, u64)) -> io::Result<Vec<i32>> {
    // It may have been closed since.
    let is_it = |number: &i32| pipe(process.pid(), *number) == Some(wanted);
    Ok(process.descriptors()?.into_iter().filter(is_it).collect())
}
