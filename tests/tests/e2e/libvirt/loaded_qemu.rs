//! The QEMU of a domain that is received, when it has loaded its guest's devices.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use hikkoshi_lab::libvirt::LibvirtHost;
use hikkoshi_tests::eventually;
use rustix::fs::OFlags;
use rustix::io::ioctl_fionread;

/// What ends a stream: it is written after *commit*.
const END_BYTES: u64 = 8;

/// A QEMU that is stopped: it neither reads its stream's end nor executes commands.
pub(super) struct LoadedQemu {
    pid: u32,
    /// The stream, with nothing but the end in it.
    stream: File,
}

impl LoadedQemu {
    /// Stops the only QEMU of the host, which has read its stream up to the end.
    pub(super) fn stop(host: &LibvirtHost) -> Self {
        let is_qemu = |pid: &u32| {
            let executed = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            executed.to_string_lossy().contains("qemu-system")
        };
        let all: Vec<_> = host.processes().into_iter().filter(is_qemu).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        let pid = all[0];
        signal(pid, "STOP");
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = File::options();
        let options = options.read(true).custom_flags(nonblocking);
        let stream = options.open(stream(pid)).unwrap();
        assert_eq!(ioctl_fionread(&stream).unwrap(), 0, "it is loaded");
        Self { pid, stream }
    }

    /// Waits until the end of the stream was written: from now on QEMU can run the guest.
    pub(super) fn wait_ended(&self) {
        eventually("the end of the stream", || {
            let bytes = ioctl_fionread(&self.stream).unwrap();
            match bytes == END_BYTES {
                true => Ok(()),
                false => Err(format!("{bytes} bytes in the stream")),
            }
        });
    }

    /// Kills QEMU, and waits until it has ended, which takes a moment on a busy machine.
    pub(super) fn kill(self) {
        signal(self.pid, "KILL");
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        eventually("QEMU to end", || {
            let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
            let threads = std::fs::read_dir(process.join("task")).map_or(0, Iterator::count);
            // Its parent may not have waited for it.
            match status.is_empty() || (threads == 1 && status.contains("State:\tZ")) {
                true => Ok(()),
                false => Err(status),
            }
        });
    }

    /// Lets QEMU continue.
    pub(super) fn continues(&self) {
        signal(self.pid, "CONT");
    }

    /// Connects to its monitor, which libvirt's daemon uses. QEMU serves this connection
    /// afterwards.
    pub(super) fn connect(&self) -> QueuedMonitor {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let folders = std::fs::read_dir(root.join("var/lib/libvirt/qemu")).unwrap();
        let mut sockets = folders.map(|entry| entry.unwrap().path().join("monitor.sock"));
        let path = sockets.find(|path| path.exists()).unwrap();
        let stream = UnixStream::connect(path).unwrap();
        QueuedMonitor(BufReader::new(stream))
    }
}

/// A session on the monitor of a QEMU, once it serves it.
pub(super) struct QueuedMonitor(BufReader<UnixStream>);

impl QueuedMonitor {
    /// Executes a command without arguments, and returns the line with its answer.
    pub(super) fn execute(&mut self, command: &str) -> String {
        let line = format!("{{\"execute\": \"{command}\", \"id\": 1}}\n");
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut answer = String::new();
            assert!(self.0.read_line(&mut answer).unwrap() > 0, "{command}");
            // Not the greeting, and no event.
            if answer.contains(r#""id": 1"#) {
                return answer;
            }
        }
    }
}

/// The stream of a QEMU that has loaded its guest: the pipe that it holds open itself, for reading
/// and for writing. Its standard output and error may be one pipe, too, for writing only.
fn stream(pid: u32) -> PathBuf {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut pipes = HashMap::<_, Vec<PathBuf>>::new();
    for path in open.map(|entry| entry.unwrap().path()) {
        if let Ok(file) = std::fs::metadata(&path)
            && file.file_type().is_fifo()
        {
            pipes.entry(file.ino()).or_default().push(path);
        }
    }
    let is_read = |path: &PathBuf| {
        // A descriptor's link has the permissions of its access (proc_pid_fd(5)).
        std::fs::symlink_metadata(path).unwrap().mode() & 0o400 != 0
    };
    let mut held = pipes.into_values();
    let held = held.find(|paths| paths.len() > 1 && paths.iter().any(is_read));
    held.unwrap().remove(0)
}

fn signal(pid: u32, name: &str) {
    let kill = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(kill.unwrap().success(), "kill -{name} {pid}");
}
