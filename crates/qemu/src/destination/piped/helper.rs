//! A helper of libvirt, between the named pipe and QEMU.
//!
//! libvirt 12.9 starts one (`libvirt_iohelper`) for every domain that it restores. It reads the
//! named pipe, passes on blocks of 1 MiB, and exits at the pipe's end, for which libvirt waits,
//! even if QEMU has failed. What it writes to is a pipe, too. libvirt reads its own part there, and
//! then QEMU gets it.
//!
//! So when QEMU has the helper's pipe, the helper has passed on everything that it was given, which
//! ends with libvirt's part. From then on the stream is written into the helper's pipe directly,
//! and the helper ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use hikkoshi_linux::Process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

/// A helper's descriptors: it reads its standard input, and writes to its standard output.
const INPUT: i32 = 0;
const OUTPUT: i32 = 1;

/// A search reads an entry of `/proc` for each process of the host. It may take this part of the
/// time.
const SEARCH_SHARE: u32 = 20;

/// The device and inode of a pipe, which tell it apart from other files.
pub(super) type Identity = (u64, u64);

/// The search for the helper that reads a pipe.
#[derive(Debug)]
pub(super) struct HelperSearch {
    pipe: Identity,
    found: Option<Process>,
    next: Instant,
}

impl HelperSearch {
    /// Of the helper that reads this pipe.
    pub(super) fn new(pipe: Identity) -> Self {
        Self {
            pipe,
            found: None,
            next: Instant::now(),
        }
    }

    /// The pipe that the helper writes to. `None`: no helper is known to read the pipe, yet.
    pub(super) fn output(&mut self) -> Option<HelperOutput> {
        if self.found.is_none() && Instant::now() >= self.next {
            let began = Instant::now();
            self.found = find(self.pipe);
            self.next =
                Instant::now() + began.elapsed().max(Duration::from_millis(1)) * SEARCH_SHARE;
        }
        let helper = self.found.as_ref()?;
        let path = format!("/proc/{}/fd/{OUTPUT}", helper.pid());
        let output = File::options()
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path);
        // While it is open the number may be another process's.
        let is_it = pipe(helper.pid(), INPUT) == Some(self.pipe) && helper.is_alive();
        let output = output.ok().filter(|_| is_it);
        let output = output.and_then(|file| HelperOutput::of_pipe(file).ok().flatten());
        if output.is_none() {
            self.found = None;
        }
        output
    }
}

/// What a helper writes to, opened for writing.
#[derive(Debug)]
pub(super) struct HelperOutput {
    pub(super) file: File,
    pub(super) identity: Identity,
}

impl HelperOutput {
    fn of_pipe(file: File) -> io::Result<Option<Self>> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        let is_pipe = metadata.file_type().is_fifo();
        Ok(is_pipe.then_some(Self { file, identity }))
    }

    /// Whether no process reads it. A pipe without a reader has an error (`pipe_poll` in the
    /// kernel's `fs/pipe.c`).
    pub(super) fn has_no_reader(&self) -> bool {
        let mut poll = [PollFd::new(&self.file, PollFlags::OUT)];
        let polled = rustix::event::poll(&mut poll, Some(&Timespec::default()));
        polled.is_ok() && poll[0].revents().contains(PollFlags::ERR)
    }
}

/// The process whose standard input is this pipe.
fn find(wanted: Identity) -> Option<Process> {
    let is_helper = |pid| pipe(pid, INPUT) == Some(wanted);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid = processes.find(|&pid| is_helper(pid))?;
    // Once more when it is opened: another process may have its number by then.
    let process = Process::open(pid).ok()?;
    is_helper(process.pid()).then_some(process)
}

/// The device and inode of a process's pipe with this number.
pub(super) fn pipe(pid: u32, number: i32) -> Option<Identity> {
    let metadata = std::fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?;
    let is_pipe = metadata.file_type().is_fifo();
    is_pipe.then(|| (metadata.dev(), metadata.ino()))
}

/// The numbers of the descriptors by which the process has this pipe open.
pub(super) fn descriptors(process: &Process, wanted: Identity) -> io::Result<Vec<i32>> {
    // It may have been closed since.
    let is_it = |number: &i32| pipe(process.pid(), *number) == Some(wanted);
    Ok(process.descriptors()?.into_iter().filter(is_it).collect())
}
