//! The pipe from which QEMU reads its incoming stream.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hikkoshi_linux::Process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::held_pipe;
use super::helper::{HelperOutput, HelperSearch, Identity, descriptors};

/// Room for the device state of a machine with many devices: the most that the kernel allows
/// every user by default (`/proc/sys/fs/pipe-max-size`).
const BUFFER_BYTES: usize = 1 << 20;

/// How often to check whether it still makes sense to wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How often to look whether everything was read: the guest is paused meanwhile.
const READ_INTERVAL: Duration = Duration::from_micros(50);

/// The end for writing of the pipe from which QEMU reads its incoming stream: a named pipe, or what
/// a helper writes to that has read the beginning from the named one.
///
/// The named pipe is removed when this is dropped, unless it is kept for another program.
#[derive(Debug)]
pub struct StreamPipe {
    /// The named pipe.
    path: PathBuf,
    /// `None`: it was closed.
    file: Option<File>,
    pub(super) identity: Identity,
    helper: HelperSearch,
    /// The named pipe, locked, if the stream is another one.
    named: Option<File>,
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

    /// A named pipe that is open already.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn of_file(path: &Path, file: File) -> io::Result<Self> {
        let identity = identity(&file)?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(file),
            identity,
            helper: HelperSearch::new(identity),
            named: None,
            removes: true,
        })
    }

    /// Opens the named pipe for writing, if another process has it open for reading.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match options().write(true).open(path) {
            Ok(file) => file,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error),
        };
        enlarge(&file);
        lock(&file, path);
        Self::of_file(path, file).map(Some)
    }

    /// Opens the stream of a QEMU that holds it open itself (`hold.rs`). `path` is that of the
    /// named pipe. `None`: it holds none.
    ///
    /// # Errors
    ///
    /// When QEMU's descriptors cannot be read.
    pub(super) fn held_by(qemu: &Process, path: &Path) -> io::Result<Option<Self>> {
        let Some(number) = held_pipe::held(qemu)? else {
            return Ok(None);
        };
        let opened = options()
            .write(true)
            .open(format!("/proc/{}/fd/{number}", qemu.pid()));
        let file = match opened {
            Ok(file) => file,
            // It has closed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut stream = Self::of_file(path, file)?;
        stream.keep();
        // The descriptor may be another file by now.
        if descriptors(qemu, stream.identity)?.is_empty() {
            return Ok(None);
        }
        stream.lock_name()?;
        stream.removes = true;
        Ok(Some(stream))
    }

    /// Locks the named pipe, which tells others that a program takes care of it.
    fn lock_name(&mut self) -> io::Result<()> {
        let named = match std::fs::metadata(&self.path) {
            Ok(named) => (named.dev(), named.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if named == self.identity {
            lock(self.opened()?, &self.path);
            return Ok(());
        }
        // For reading: a helper that reads it gets its end.
        let named = options().read(true).open(&self.path)?;
        lock(&named, &self.path);
        self.named = Some(named);
        Ok(())
    }

    /// Puts another named pipe in this one's place, for the next program that opens it, and moves
    /// this one to `aside`. Nobody may open the path meanwhile.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn replace(&mut self, aside: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, aside)?;
        let path = std::mem::replace(&mut self.path, aside.to_owned());
        Self::make(&path)
    }

    /// Moves this one to `path`, in the place of the named pipe there, which no program has opened.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn put_back(&mut self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)?;
        self.path = path.to_owned();
        Ok(())
    }

    /// Whether `qemu` gets its stream from here. If it gets what a helper writes, what is written
    /// from now on goes to QEMU directly, and the named pipe is closed, so that the helper ends: it
    /// has passed on everything that was written before.
    ///
    /// # Errors
    ///
    /// When QEMU's descriptors cannot be read.
    pub fn reaches(&mut self, qemu: &Process) -> io::Result<bool> {
        if !descriptors(qemu, self.identity)?.is_empty() {
            return Ok(true);
        }
        let Some(output) = self.helper.output() else {
            return Ok(false);
        };
        if descriptors(qemu, output.identity)?.is_empty() {
            return Ok(false);
        }
        self.write_directly(output)?;
        Ok(true)
    }

    fn write_directly(&mut self, output: HelperOutput) -> io::Result<()> {
        enlarge(&output.file);
        self.identity = output.identity;
        self.file = Some(output.file);
        self.lock_name()
    }

    /// Whether QEMU reads this pipe, or holds its stream open itself: no other program lets it do
    /// that.
    ///
    /// # Errors
    ///
    /// When QEMU's descriptors cannot be read.
    pub fn is_stream_of(&self, qemu: &Process) -> io::Result<bool> {
        Ok(!descriptors(qemu, self.identity)?.is_empty() || held_pipe::held(qemu)?.is_some())
    }

    /// Whether a helper reads the pipe, but no process reads what it writes: its owner has
    /// failed, and waits until the pipe is closed.
    pub fn is_abandoned(&mut self) -> bool {
        self.helper
            .output()
            .is_some_and(|output| output.has_no_reader())
    }

    /// Makes the user of this process the pipe's owner: QEMU opens it for writing (`hold.rs`).
    pub(super) fn give_to(&self, process: &Process) -> io::Result<()> {
        let user = Uid::from_raw(process.user()?);
        Ok(rustix::fs::fchown(self.opened()?, Some(user), None)?)
    }

    fn opened(&self) -> io::Result<&File> {
        self.file
            .as_ref()
            .ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Closes it. Its end is read when no other process has it open for writing.
    pub(super) fn close(&mut self) {
        self.file = None;
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
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
            match self.opened()?.write(bytes) {
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
        let mut poll = [PollFd::new(self.opened()?, PollFlags::OUT)];
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
        let file = self.opened()?.as_fd();
        while rustix::io::ioctl_fionread(file).map_err(io::Error::from)? > 0 {
            check()?;
            std::thread::sleep(READ_INTERVAL);
        }
        // An end of QEMU empties it, too.
        check()
    }

    /// Leaves the pipe where it is: another program may continue.
    pub fn keep(&mut self) {
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

/// Without waiting for the other end.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options
}

fn identity(file: &File) -> io::Result<Identity> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Less waiting; what the kernel allows is enough.
fn enlarge(pipe: &File) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, BUFFER_BYTES);
}

/// Tells others that a program takes care of it.
fn lock(pipe: &File, path: &Path) {
    if let Err(error) = pipe.try_lock() {
        tracing::debug!(%error, path = %path.display(), "locking a pipe");
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

    /// The pipe, once a process reads from it.
    fn opened(path: &Path) -> StreamPipe {
        loop {
            if let Some(pipe) = StreamPipe::open(path).unwrap() {
                return pipe;
            }
            std::thread::yield_now();
        }
    }

    /// As libvirt does from 11.3 on.
    #[test]
    fn each_program_that_opens_the_path_gets_a_pipe_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("pipe"), folder.path().join("aside"));
        StreamPipe::make(&path).unwrap();
        let name = path.clone();
        let reading = std::thread::spawn(move || {
            let read = |bytes: &mut [u8]| {
                let mut file = File::open(&name).unwrap();
                file.read_exact(bytes).unwrap();
                file
            };
            let (mut head, mut all) = ([0; 4], [0; 6]);
            drop(read(&mut head));
            (read(&mut all), head, all)
        });
        let mut first = opened(&path);
        first.replace(&aside).unwrap();
        first.write(b"head", &mut never).unwrap();
        let mut second = opened(&path);
        drop(first);
        second.replace(&aside).unwrap();
        second.write(b"header", &mut never).unwrap();
        let (file, head, all) = reading.join().unwrap();
        assert_eq!((&head, &all), (b"head", b"header"));
        second.put_back(&path).unwrap();
        assert!(!aside.exists());
        let metadata = file.metadata().unwrap();
        let there = std::fs::metadata(&path).unwrap();
        assert_eq!((there.dev(), there.ino()), (metadata.dev(), metadata.ino()));
        second.close();
        second.write(b"x", &mut never).unwrap_err();
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn what_was_read_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        StreamPipe::make(&path).unwrap();
        assert!(StreamPipe::open(&path).unwrap().is_none(), "no reader");
        let reader = path.clone();
        let reading = std::thread::spawn(move || {
            let mut file = File::open(reader).unwrap();
            let mut all = vec![0; 3_000_000];
            file.read_exact(&mut all).unwrap();
            (file, all)
        });
        let mut pipe = opened(&path);
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
