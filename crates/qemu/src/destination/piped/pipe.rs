//! The named pipe.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hikkoshi_linux::Process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::hold;

/// Room for the device state of a machine with many devices: the most that the kernel allows
/// every user by default (`/proc/sys/fs/pipe-max-size`).
const BUFFER_BYTES: usize = 1 << 20;

/// How often to check whether it still makes sense to wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How often to look whether everything was read: the guest is paused meanwhile.
const READ_INTERVAL: Duration = Duration::from_micros(50);

/// The end for writing of a named pipe from which QEMU reads its incoming stream. The pipe is
/// removed when this is dropped, unless it is kept for another program.
#[derive(Debug)]
pub struct StreamPipe {
    path: PathBuf,
    file: File,
    removes: bool,
}

impl StreamPipe {
    /// Makes a pipe at `path` that only its owner can open: what is in it is the guest's.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn make(path: &Path) -> io::Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            FileType::Fifo,
            mode,
            0,
        )?)
    }

    /// Makes the user of this process the pipe's owner: QEMU opens it for writing (`hold.rs`).
    pub(super) fn give_to(&self, process: &Process) -> io::Result<()> {
        let user = Uid::from_raw(process.user()?);
        Ok(rustix::fs::fchown(&self.file, Some(user), None)?)
    }

    /// A pipe that is open already.
    pub fn of(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file,
            removes: true,
        }
    }

    /// Opens the pipe for writing, once another process reads from it. `check` is called now and
    /// then.
    ///
    /// # Errors
    ///
    /// The error of the system call, or of `check`.
    pub fn open<E: From<io::Error>>(
        path: &Path,
        check: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        loop {
            let opened = File::options()
                .write(true)
                .custom_flags(nonblocking)
                .open(path);
            match opened {
                Ok(file) => {
                    // Less waiting; what the kernel allows is enough.
                    let _ = rustix::pipe::fcntl_setpipe_size(&file, BUFFER_BYTES);
                    // Tells others that a program takes care of it.
                    if let Err(error) = file.try_lock() {
                        tracing::debug!(%error, path = %path.display(), "locking a pipe");
                    }
                    return Ok(Self::of(path, file));
                }
                // No process has it open for reading.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {}
                Err(error) => return Err(error.into()),
            }
            check()?;
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What tells it apart from other files.
    pub(super) fn identity(&self) -> io::Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Whether this process has the pipe open.
    ///
    /// # Errors
    ///
    /// When its descriptors cannot be read.
    pub fn is_open_in(&self, process: &Process) -> io::Result<bool> {
        Ok(!hold::descriptors(process, self)?.is_empty())
    }

    /// Writes all bytes; waits while the pipe is full. `check` is called now and then.
    ///
    /// # Errors
    ///
    /// The error of the system call (`BrokenPipe`: no process reads), or of `check`.
    pub fn write<E: From<io::Error>>(
        &mut self,
        mut bytes: &[u8],
        check: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    check()?;
                    self.wait_for_room()?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // What reads has ended: that says more.
                    check()?;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn wait_for_room(&self) -> io::Result<()> {
        let mut poll = [PollFd::new(&self.file, PollFlags::OUT)];
        let wait = Timespec::try_from(CHECK_INTERVAL).map_err(io::Error::other)?;
        match rustix::event::poll(&mut poll, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until everything that was written has been read.
    ///
    /// # Errors
    ///
    /// The error of the system call, or of `check`, which is called now and then.
    pub(super) fn wait_until_read<E: From<io::Error>>(
        &self,
        check: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        while rustix::io::ioctl_fionread(self.file.as_fd()).map_err(io::Error::from)? > 0 {
            check()?;
            std::thread::sleep(READ_INTERVAL);
        }
        // An end of QEMU empties it, too.
        check()
    }

    /// Leaves the pipe where it is: another program may continue.
    pub(super) fn keep(&mut self) {
        self.removes = false;
    }

    /// Removes the pipe.
    pub(super) fn remove(&mut self) {
        if std::mem::take(&mut self.removes)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::debug!(%error, path = %self.path.display(), "removing a pipe");
        }
    }
}

impl Drop for StreamPipe {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn never() -> Result<(), io::Error> {
        Ok(())
    }

    #[test]
    fn what_was_read_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        StreamPipe::make(&path).unwrap();
        let mut attempts = 0;
        let error = StreamPipe::open(&path, &mut || {
            attempts += 1;
            if attempts < 3 {
                Ok(())
            } else {
                Err(io::Error::other("gives up"))
            }
        });
        assert_eq!(error.unwrap_err().to_string(), "gives up");
        let reader = path.clone();
        let reading = std::thread::spawn(move || {
            let mut file = File::open(reader).unwrap();
            let mut all = vec![0; 3_000_000];
            file.read_exact(&mut all).unwrap();
            (file, all)
        });
        let mut pipe = StreamPipe::open(&path, &mut never).unwrap();
        // More than its buffer may have.
        pipe.write(&[7; 3_000_000], &mut never).unwrap();
        pipe.wait_until_read(&mut never).unwrap();
        let (file, all) = reading.join().unwrap();
        assert!(all.iter().all(|byte| *byte == 7));
        pipe.write(b"x", &mut never).unwrap();
        let waits = pipe.wait_until_read(&mut || Err(io::Error::other("unread")));
        assert_eq!(waits.unwrap_err().to_string(), "unread");
        drop(file);
        let broken = pipe.write(b"x", &mut never).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
        drop(pipe);
        assert!(!path.exists());
    }
}
