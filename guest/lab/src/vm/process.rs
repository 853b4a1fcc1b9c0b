//! QEMU's process: a child, or one that another program has started.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that can be killed and waited for.
#[derive(Debug)]
pub(crate) enum VmProcess {
    /// A child of this process.
    Child(Child),
    /// A process of another parent, by its pidfd. Its exit status is not known here.
    Adopted(Pid, OwnedFd),
}

impl VmProcess {
    /// The process with this id.
    pub(crate) fn adopt(pid: Pid) -> io::Result<Self> {
        Ok(Self::Adopted(pid, pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Adopted(pid, _) => pid.as_raw_nonzero().get().unsigned_abs(),
        }
    }

    /// The exit status, if it has ended; of an adopted process always 0.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            Self::Child(child) => child.try_wait(),
            Self::Adopted(_, process) => Self::poll(process, Some(&Timespec::default())),
        }
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self {
            Self::Child(child) => child.wait().map(drop),
            Self::Adopted(_, process) => Self::poll(process, None).map(drop),
        }
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Child(child) => child.kill(),
            Self::Adopted(_, process) => Ok(pidfd_send_signal(process, Signal::KILL)?),
        }
    }

    /// A pidfd is readable when its process has ended (pidfd_open(2)).
    fn poll(process: &OwnedFd, timeout: Option<&Timespec>) -> io::Result<Option<ExitStatus>> {
        loop {
            match poll(&mut [PollFd::new(process, PollFlags::IN)], timeout) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(ExitStatus::from_raw(0))),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
