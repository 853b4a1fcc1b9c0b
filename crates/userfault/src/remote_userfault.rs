//! A userfaultfd for another process's memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_linux::Process;
use hikkoshi_linux::inject::{InjectError, Remote, inject, int_arg};
use rustix::io::Errno;
use thiserror::Error;

use crate::dev_userfaultfd::{self, DeviceError};
use crate::features::Features;
use crate::open_userfaults::is_userfault;
use crate::userfault::{ApiError, DEVICE, Userfault};

/// A userfaultfd that another process made for us, without knowing.
///
/// There are two copies of the descriptor, ours and the one inside the process. The one inside keeps
/// blocked threads blocked if we die, and a successor can [`adopt`](Self::adopt) it; in the end it
/// must be closed again, [`close_remote`](Self::close_remote).
///
/// Dropping this gives back too, with only a warning when that fails. During post-copy that would be
/// fatal to the guest, whose missing pages would read as zero: say
/// [`leave_open_on_drop`](Self::leave_open_on_drop) before the first page is awaited.
#[derive(Debug)]
pub struct RemoteUserfault {
    process: Arc<Process>,
    userfault: Arc<Userfault>,
    remote: i32,
    closed: AtomicBool,
    leave_open_on_drop: AtomicBool,
}

/// No userfaultfd could be had from the process; it is as it was before.
#[derive(Debug, Error)]
pub enum RemoteUserfaultError {
    /// The system call could not be made.
    #[error("creating a userfaultfd: {0}")]
    Inject(#[from] InjectError),
    /// The kernel lacks what is needed.
    #[error("creating a userfaultfd in process {pid}: {source}")]
    Api {
        /// Process ID.
        pid: u32,
        /// The error of the handshake.
        source: ApiError,
    },
    /// The process may not make one, and the way around that failed too.
    #[error(
        "creating a userfaultfd in process {pid}: userfaultfd(2) in the process failed ({call}) and \
         the device failed ({device}); set sysctl vm.unprivileged_userfaultfd=1, or run this program \
         as a user that may open /dev/userfaultfd (Linux 6.1 and later)"
    )]
    Refused {
        /// Process ID.
        pid: u32,
        /// The error of the system call.
        call: Errno,
        /// Why the device did not help.
        device: DeviceError,
    },
    /// It was made, but we could not get at it. It has been closed again.
    #[error("copying descriptor {number} from process {pid}: {source}")]
    Copy {
        /// The process.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The descriptor to adopt is something else.
    #[error("adopting descriptor {number} of process {pid}: not a userfaultfd")]
    NotUserfault {
        /// The process.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
    },
}

/// The copy inside the process could not be closed.
#[derive(Debug, Error)]
pub enum CloseRemoteError {
    /// The system call could not be made.
    #[error("closing the userfaultfd (descriptor {number}) in the process: {source}")]
    Inject {
        /// Descriptor number in that process.
        number: i32,
        /// The error of the injection.
        source: InjectError,
    },
    /// The process has put something else in its place. That was left alone.
    #[error(
        "closing the userfaultfd in process {pid}: its descriptor {number} now refers to a \
         different file; it was not closed"
    )]
    NotOurs {
        /// The process.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
    },
    /// `/proc` could not be read.
    #[error(
        "closing the userfaultfd in process {pid}: inspecting its descriptor {number}: {source}"
    )]
    Look {
        /// The process.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
        /// The error from the system.
        source: io::Error,
    },
}

impl RemoteUserfault {
    /// Makes process `pid` make a userfaultfd, takes a copy of it, and does the handshake for
    /// `features`.
    ///
    /// # Errors
    ///
    /// When the kernel lacks a feature (then the process has not been touched), when we may not
    /// trace the process or it may not make a userfaultfd, when it ends meanwhile. Nothing is left
    /// behind in it.
    pub fn create(pid: u32, features: Features) -> Result<Self, RemoteUserfaultError> {
        Self::create_in(&open(pid)?, features)
    }

    /// As [`Self::create`], of a process held already.
    ///
    /// # Errors
    ///
    /// See [`Self::create`].
    pub fn create_in(
        process: &Arc<Process>,
        features: Features,
    ) -> Result<Self, RemoteUserfaultError> {
        Self::create_with_device(process, features, DEVICE)
    }

    pub(crate) fn create_with_device(
        process: &Arc<Process>,
        features: Features,
        device: &'static str,
    ) -> Result<Self, RemoteUserfaultError> {
        let pid = process.pid();
        // Ask first what this kernel can do. If we may not make one ourselves, we will see later.
        if let Ok(offered) = Features::supported() {
            let missing = features.without(offered);
            if !missing.is_empty() {
                let source = ApiError::Missing { missing };
                return Err(RemoteUserfaultError::Api { pid, source });
            }
        }
        let holder = Arc::clone(process);
        let undoer = Arc::clone(process);
        inject(
            process,
            move |remote| {
                let number = create(remote, &holder, device)?;
                match Self::copied(&holder, number, Some(features)) {
                    Ok(taken) => Ok(taken),
                    Err(error) => {
                        dev_userfaultfd::close(remote, number)?;
                        Err(error)
                    }
                }
            },
            move |late| {
                late.closed.store(true, Ordering::Relaxed);
                if let Err(error) = close_remote(&undoer, late.remote) {
                    tracing::warn!(%error, "the userfaultfd in the process was not closed");
                }
            },
        )
    }

    /// Takes over descriptor `number` of the process, a userfaultfd that an earlier program had
    /// put there and set up (see [`open_userfaults`](crate::open_userfaults())).
    ///
    /// Faults that the earlier program had read but not answered are raised again after
    /// [`Userfault::wake`] on all that is registered.
    ///
    /// # Errors
    ///
    /// When the process has no such descriptor, or it is no userfaultfd, or we may not trace the
    /// process.
    pub fn adopt(process: &Arc<Process>, number: i32) -> Result<Self, RemoteUserfaultError> {
        Self::copied(process, number, None)
    }

    fn copied(
        process: &Arc<Process>,
        number: i32,
        handshake: Option<Features>,
    ) -> Result<Self, RemoteUserfaultError> {
        let pid = process.pid();
        let fd = process
            .descriptor(number)
            .map_err(|source| RemoteUserfaultError::Copy {
                pid,
                number,
                source,
            })?;
        // Our copy, which the process cannot exchange any more.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if !link.is_ok_and(|link| is_userfault(&link)) {
            return Err(RemoteUserfaultError::NotUserfault { pid, number });
        }
        let userfault = Userfault::from_fd(fd).of_process(Arc::clone(process));
        if let Some(features) = handshake {
            userfault
                .api(features)
                .map_err(|source| RemoteUserfaultError::Api { pid, source })?;
        }
        Ok(Self {
            process: Arc::clone(process),
            userfault: Arc::new(userfault),
            remote: number,
            closed: AtomicBool::new(false),
            leave_open_on_drop: AtomicBool::new(false),
        })
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Our copy.
    #[must_use]
    pub fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    /// The descriptor's number inside the process.
    #[must_use]
    pub fn remote(&self) -> i32 {
        self.remote
    }

    /// From now on dropping this leaves the copy inside the process, for a successor to adopt. Only
    /// [`Self::close_remote`] closes it then.
    pub fn leave_open_on_drop(&self) {
        self.leave_open_on_drop.store(true, Ordering::Release);
    }

    /// Closes the copy inside the process. It can be called again, after success (then it does
    /// nothing) and after failure. Fine on a process that has ended.
    ///
    /// Everything stays registered for as long as somebody holds [`Self::userfault`]: unregister
    /// first, or drop those.
    ///
    /// # Errors
    ///
    /// See [`CloseRemoteError`].
    pub fn close_remote(&self) -> Result<(), CloseRemoteError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.process.is_alive() && !self.is_still_ours() {
            return Err(CloseRemoteError::NotOurs {
                pid: self.process.pid(),
                number: self.remote,
            });
        }
        close_remote(&self.process, self.remote)?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the descriptor inside is the same open file as ours. Where the kernel cannot tell,
    /// yes: that it is a userfaultfd is looked at in any case.
    fn is_still_ours(&self) -> bool {
        /// `KCMP_FILE`, `linux/kcmp.h`.
        const FILE: libc::c_long = 0;
        let ours = self.userfault.as_fd().as_raw_fd();
        // SAFETY: kcmp takes numbers only.
        let result = unsafe {
            libc::syscall(
                libc::SYS_kcmp,
                libc::c_long::from(std::process::id()),
                libc::c_long::from(self.process.pid()),
                FILE,
                libc::c_long::from(ours),
                libc::c_long::from(self.remote),
            )
        };
        // 0 is the same, 1 to 3 are different, -1 an error.
        result <= 0
    }
}

impl Drop for RemoteUserfault {
    fn drop(&mut self) {
        if self.leave_open_on_drop.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.close_remote() {
            tracing::warn!(%error, "the userfaultfd in the process was not closed");
        }
    }
}

/// Closes descriptor `number` inside `process`, if it is a userfaultfd. Fine on a process that has
/// ended, and when it is closed already.
///
/// # Errors
///
/// See [`CloseRemoteError`].
pub fn close_remote(process: &Arc<Process>, number: i32) -> Result<(), CloseRemoteError> {
    let pid = process.pid();
    match process.describe_descriptor(number) {
        Ok((link, _)) if is_userfault(&link) => {}
        Ok(_) => return Err(CloseRemoteError::NotOurs { pid, number }),
        Err(_) if !process.is_alive() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(CloseRemoteError::Look {
                pid,
                number,
                source,
            });
        }
    }
    let closed = inject(
        process,
        move |remote| dev_userfaultfd::close(remote, number),
        drop,
    );
    match closed {
        Ok(()) | Err(InjectError::NoSuchProcess { .. } | InjectError::Died { .. }) => Ok(()),
        Err(source) => Err(CloseRemoteError::Inject { number, source }),
    }
}

fn open(pid: u32) -> Result<Arc<Process>, InjectError> {
    match Process::open(pid) {
        Ok(process) => Ok(Arc::new(process)),
        Err(source) if source.raw_os_error() == Some(libc::ESRCH) => {
            Err(InjectError::NoSuchProcess { pid })
        }
        Err(source) => Err(InjectError::Proc {
            pid,
            doing: "opening a pidfd",
            source,
        }),
    }
}

/// Makes the userfaultfd, one way or the other; returns its number inside the process.
fn create(
    remote: &mut Remote,
    process: &Arc<Process>,
    device: &'static str,
) -> Result<i32, RemoteUserfaultError> {
    let flags = int_arg(crate::abi::CREATE_FLAGS);
    let made = remote.syscall(
        "creating a userfaultfd in it",
        libc::SYS_userfaultfd,
        [flags, 0, 0, 0, 0, 0],
    )?;
    let call = match made.map(i32::try_from) {
        Ok(Ok(number)) => return Ok(number),
        Ok(Err(_)) => Errno::BADF,
        Err(errno) => errno,
    };
    let opened = File::options().read(true).write(true).open(device);
    let by_device = match opened {
        Ok(opened) => dev_userfaultfd::create(remote, process, &opened)?,
        Err(source) => Err(DeviceError::Open {
            path: device.to_owned(),
            source,
        }),
    };
    by_device.map_err(|device| RemoteUserfaultError::Refused {
        pid: process.pid(),
        call,
        device,
    })
}
