//! A process handle (pidfd) and the data in `/proc/PID`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};

/// `PIDFD_THREAD`: a descriptor for one thread. The same bit as `O_EXCL`.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// A handle to another process (or to this one). A process ID can be reused after the process has
/// exited, but the handle always refers to the process for which it was opened.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens a handle to process `pid`. To be sure that the ID still refers to the intended
    /// process, check its source (the peer of a socket, a mapping) again afterwards.
    ///
    /// # Errors
    ///
    /// `ESRCH` when the process does not exist; others as `pidfd_open(2)`.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::from(Errno::SRCH))?;
        Ok(Self {
            pid,
            pidfd: pidfd_open(number, PidfdFlags::empty())?,
        })
    }

    /// The process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process `other` has the same address space (kcmp(2), `KCMP_VM`), as a child of
    /// `clone(2)` with `CLONE_VM` has.
    ///
    /// # Errors
    ///
    /// `EPERM` without the right to trace both, `ESRCH` when one has ended, `ENOSYS` when the
    /// kernel was built without `CONFIG_KCMP`.
    pub fn shares_memory_with(&self, other: u32) -> io::Result<bool> {
        const KCMP_VM: libc::c_ulong = 1;
        let [this, other] = [self.pid, other].map(libc::c_ulong::from);
        // SAFETY: a call that compares two processes and writes no memory.
        match unsafe { libc::syscall(libc::SYS_kcmp, this, other, KCMP_VM, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            order => Ok(order == 0),
        }
    }

    /// Whether the process is alive. A zombie is not. If the state cannot be read at the moment
    /// (interrupted by a signal, out of memory), the process counts as alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // A pidfd becomes readable when its process exits.
        let mut set = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !matches!(poll(&mut set, Some(&now)), Ok(1..))
    }

    /// Whether the process has exited, or is exiting and has no memory any more: operations on its
    /// memory fail then.
    #[must_use]
    pub fn has_lost_memory(&self) -> bool {
        let sizes = || std::fs::read_to_string(self.thread_folder()?.join("statm"));
        let lost = match sizes() {
            // proc_pid_statm(5): all values are 0 for a task without memory.
            Ok(sizes) => sizes.starts_with("0 "),
            Err(error) => {
                let gone = [Some(Errno::SRCH), Some(Errno::NOENT)];
                gone.contains(&Errno::from_io_error(&error))
            }
        };
        lost || !self.is_alive()
    }

    /// Sends a signal. A process that has exited is not an error.
    ///
    /// # Errors
    ///
    /// As `pidfd_send_signal(2)`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the process (`SIGKILL`) and waits up to 20 s until it has exited.
    ///
    /// # Errors
    ///
    /// As `pidfd_send_signal(2)`; a process that has already exited is not an error. `ETIMEDOUT`
    /// when it has not exited after 20 s: it hangs in the kernel.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) => {}
            Err(Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mut set = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        match poll(&mut set, Some(&limit)) {
            Ok(0) => Err(Errno::TIMEDOUT.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file under `/proc/PID/` for reading, and checks that it belongs to this process and
    /// not to a later process with the same ID.
    ///
    /// # Errors
    ///
    /// `ESRCH` when the process has exited; others as `open(2)`.
    pub fn open_proc(&self, name: &str) -> io::Result<File> {
        self.opened(File::open(format!("/proc/{}/{name}", self.pid)))
    }

    /// Opens the memory of the process (`/proc/PID/mem`), for reading or also for writing. Reading
    /// it populates absent pages as an access by the process does.
    ///
    /// # Errors
    ///
    /// `ESRCH` when the process has exited; `EACCES` without the right to trace it; others as
    /// `open(2)`.
    pub fn open_memory(&self, writable: bool) -> io::Result<File> {
        let path = format!("/proc/{}/mem", self.pid);
        self.opened(File::options().read(true).write(writable).open(path))
    }

    /// Opens the memory of the process through thread `tid`.
    pub(crate) fn open_thread_memory(&self, tid: u32) -> io::Result<File> {
        self.opened(
            File::options()
                .read(true)
                .write(true)
                .open(format!("/proc/{}/task/{tid}/mem", self.pid)),
        )
    }

    fn opened(&self, file: io::Result<File>) -> io::Result<File> {
        // If the process is alive now, it was alive when the file was opened, so its ID was not
        // reused.
        if self.is_alive() {
            file
        } else {
            Err(Errno::SRCH.into())
        }
    }

    /// Copies descriptor `number` of the process into this process.
    ///
    /// # Errors
    ///
    /// As `pidfd_getfd(2)`: `EBADF` when the process has no such descriptor, `EPERM` when this
    /// program may not trace the process.
    pub fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        let by_process = pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty());
        // A main thread that has exited before the other threads has no descriptors any more. Then
        // use another thread (Linux 6.9).
        if matches!(by_process, Err(Errno::SRCH)) && self.is_alive() {
            for tid in self.threads()?.into_iter().filter(|tid| *tid != self.pid) {
                if let Some(tid) = i32::try_from(tid).ok().and_then(Pid::from_raw)
                    && let Ok(thread) = pidfd_open(tid, PIDFD_THREAD)
                    && let Ok(fd) = pidfd_getfd(&thread, number, PidfdGetfdFlags::empty())
                    && self.is_alive()
                {
                    return Ok(fd);
                }
            }
        }
        Ok(by_process?)
    }

    /// The target and the `fdinfo` of descriptor `number`, from `/proc`.
    pub fn describe_descriptor(&self, number: i32) -> io::Result<(PathBuf, String)> {
        let folder = self.thread_folder()?;
        let link = std::fs::read_link(folder.join(format!("fd/{number}")))?;
        let info = std::fs::read_to_string(folder.join(format!("fdinfo/{number}")))?;
        Ok((link, info))
    }

    /// The user whose rights it has when it opens a file (the file system user ID of proc(5)).
    ///
    /// # Errors
    ///
    /// When it has ended, or the kernel does not tell.
    pub fn user(&self) -> io::Result<u32> {
        let users = status_field(self.thread_folder()?.join("status"), "Uid");
        let user = users.and_then(|users| users.split_whitespace().last()?.parse().ok());
        user.ok_or_else(|| Errno::SRCH.into())
    }

    /// The numbers of the open descriptors.
    pub fn descriptors(&self) -> io::Result<Vec<i32>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(self.thread_folder()?.join("fd"))? {
            let name = entry?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// `/proc/PID/task/TID` of a thread that has not exited.
    fn thread_folder(&self) -> io::Result<PathBuf> {
        let folder = |tid: u32| PathBuf::from(format!("/proc/{}/task/{tid}", self.pid));
        self.threads()?
            .into_iter()
            .map(folder)
            .find(|folder| {
                let state = status_field(folder.join("status"), "State");
                state.is_some_and(|state| !state.starts_with(['Z', 'X']))
            })
            .ok_or_else(|| Errno::SRCH.into())
    }

    /// Its threads, the main thread first (also if that has exited before the others).
    pub(crate) fn threads(&self) -> io::Result<Vec<u32>> {
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let name = entry?.file_name();
            if let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) {
                threads.push(tid);
            }
        }
        threads.sort_by_key(|tid| (*tid != self.pid, *tid));
        Ok(threads)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Returns the value of one field of a `/proc/…/status` file.
pub(crate) fn status_field(path: impl AsRef<Path>, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// Whether the calling process has `capability` (a bit number).
pub(crate) fn have_capability(capability: u32) -> bool {
    status_field("/proc/self/status", "CapEff")
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask & (1 << capability) != 0)
}

/// The capability's number, `linux/capability.h`.
pub const CAP_SYS_PTRACE: u32 = 19;
/// The number of `CAP_SYS_ADMIN`.
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(process.is_alive());
        assert!(!process.has_lost_memory());
        assert!(process.open_proc("maps").is_ok());
        child.kill().unwrap();
        // Not reaped yet: a zombie.
        while process.is_alive() {
            std::thread::yield_now();
        }
        assert!(process.has_lost_memory());
        child.wait().unwrap();
        assert!(!process.is_alive() && process.has_lost_memory());
        let error = process.open_proc("maps").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn invalid_process_ids_are_rejected() {
        for pid in [0, u32::MAX, 0x7fff_ffff] {
            let error = Process::open(pid).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{pid}");
        }
    }
}
