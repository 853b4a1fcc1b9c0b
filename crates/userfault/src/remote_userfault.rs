//! A userfaultfd that is open inside another process, for that process's memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use error_reporter::Report;
use hikkoshi_linux::Process;
use hikkoshi_linux::inject::{InjectError, Remote, inject, int_arg};
use rustix::io::Errno;
use thiserror::Error;

use crate::dev_userfaultfd::{self, DeviceError};
use crate::features::Features;
use crate::open_userfaults::is_userfault;
use crate::userfault::{ApiError, DEVICE, Userfault};

/// A userfaultfd that another process created by an injected system call.
///
/// The descriptor has two copies, one in this process and one inside the other process. If this
/// process dies, the copy inside keeps blocked threads blocked, and a later run can
/// [`adopt`](Self::adopt) it. At the end it must be closed with
/// [`close_remote`](Self::close_remote).
///
/// Dropping this value also closes the remote copy, and logs a warning if that fails. During
/// post-copy this would be fatal to the guest, whose missing pages would read as zero: call
/// [`leave_open_on_drop`](Self::leave_open_on_drop) before the first page fault is expected.
#[derive(Debug)]
pub struct RemoteUserfault {
    process: Arc<Process>,
    userfault: Arc<Userfault>,
    remote: i32,
    closed: AtomicBool,
    leave_open_on_drop: AtomicBool,
}

/// Creating or adopting a userfaultfd in a process failed; the process is unchanged.
#[derive(Debug, Error)]
pub enum RemoteUserfaultError {
    /// The injection failed.
    #[error("creating a userfaultfd")]
    Inject(#[from] InjectError),
    /// The kernel does not support the features.
    #[error("creating a userfaultfd in process {pid}")]
    Api {
        /// Process ID.
        pid: u32,
        /// The error of the handshake.
        source: ApiError,
    },
    /// The process may not create a userfaultfd, and creating one from the device failed too.
    #[error(
        "creating a userfaultfd in process {pid}: userfaultfd(2) in the process failed ({call}) \
         and the device failed ({}); set sysctl vm.unprivileged_userfaultfd=1, or run this \
         program as a user that may open /dev/userfaultfd (Linux 6.1 and later)",
        Report::new(device)
    )]
    Refused {
        /// Process ID.
        pid: u32,
        /// The error of the system call.
        call: Errno,
        /// The error of `/dev/userfaultfd`.
        device: DeviceError,
    },
    /// It was created but could not be copied into this process. It has been closed.
    #[error("copying descriptor {number} from process {pid}")]
    Copy {
        /// Process ID.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The descriptor to adopt is not a userfaultfd.
    #[error("adopting descriptor {number} of process {pid}: not a userfaultfd")]
    NotUserfault {
        /// Process ID.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
    },
}

/// Closing the copy inside the process failed.
#[derive(Debug, Error)]
pub enum CloseRemoteError {
    /// The injection failed.
    #[error("closing the userfaultfd (descriptor {number}) in the process")]
    Inject {
        /// Descriptor number in that process.
        number: i32,
        /// The error of the injection.
        source: InjectError,
    },
    /// The process has replaced the descriptor. It was not closed.
    #[error(
        "closing the userfaultfd in process {pid}: its descriptor {number} now refers to a \
         different file; it was not closed"
    )]
    NotOurs {
        /// Process ID.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
    },
    /// `/proc` could not be read.
    #[error("closing the userfaultfd in process {pid}: inspecting its descriptor {number}")]
    Look {
        /// Process ID.
        pid: u32,
        /// Descriptor number in that process.
        number: i32,
        /// The error from the system.
        source: io::Error,
    },
}

impl RemoteUserfault {
    /// Creates a userfaultfd inside process `pid`, copies it into this process, and negotiates
    /// `features`.
    ///
    /// # Errors
    ///
    /// When the kernel does not support a feature (then the process was not touched), when this
    /// program may not trace the process, when the process may not create a userfaultfd, or when it
    /// exits meanwhile. No descriptor is left open in the process.
    pub fn create(pid: u32, features: Features) -> Result<Self, RemoteUserfaultError> {
        Self::create_in(&open(pid)?, features)
    }

    /// Like [`Self::create`], for a process that is already open.
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
        // Check first what this kernel supports. If this process may not create a userfaultfd, the
        // handshake below finds out.
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
                    tracing::warn!(error = %Report::new(&error), "the userfaultfd in the process was not closed");
                }
            },
        )
    }

    /// Uses descriptor `number` of the process, a userfaultfd that an earlier program created and
    /// set up there (see [`open_userfaults`](crate::open_userfaults())).
    ///
    /// Events that the earlier program had read but not resolved are delivered again after
    /// [`Userfault::wake`] on all registered ranges.
    ///
    /// # Errors
    ///
    /// When the process has no such descriptor, when it is not a userfaultfd, or when this program
    /// may not trace the process.
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
        // Check our copy, which the process cannot replace.
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

    /// The process that the userfaultfd belongs to.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// The copy in this process.
    #[must_use]
    pub fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    /// The descriptor number inside the process.
    #[must_use]
    pub fn remote(&self) -> i32 {
        self.remote
    }

    /// Dropping this value no longer closes the copy inside the process, so that a later run can
    /// adopt it. Only [`Self::close_remote`] closes it.
    pub fn leave_open_on_drop(&self) {
        self.leave_open_on_drop.store(true, Ordering::Release);
    }

    /// Closes the copy inside the process. It can be called again, after success (then it does
    /// nothing) and after failure. Succeeds if the process has exited, or is exiting: no memory is
    /// left then whose pages could be missing.
    ///
    /// Ranges stay registered while a reference to [`Self::userfault`] exists: unregister first, or
    /// drop the references.
    ///
    /// # Errors
    ///
    /// See [`CloseRemoteError`].
    pub fn close_remote(&self) -> Result<(), CloseRemoteError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.process.has_lost_memory() && !self.is_still_ours() {
            return Err(CloseRemoteError::NotOurs {
                pid: self.process.pid(),
                number: self.remote,
            });
        }
        close_remote(&self.process, self.remote)?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the remote descriptor refers to the same open file as ours. `true` if the kernel
    /// cannot tell; the caller also checks that it is a userfaultfd.
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
        // 0: the same; 1 to 3: different; -1: an error.
        result <= 0
    }
}

impl Drop for RemoteUserfault {
    fn drop(&mut self) {
        if self.leave_open_on_drop.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.close_remote() {
            tracing::warn!(error = %Report::new(&error), "the userfaultfd in the process was not closed");
        }
    }
}

/// Closes descriptor `number` inside `process` if it is a userfaultfd. Succeeds if the process has
/// exited, or is exiting, or the descriptor is already closed.
///
/// # Errors
///
/// See [`CloseRemoteError`].
pub fn close_remote(process: &Arc<Process>, number: i32) -> Result<(), CloseRemoteError> {
    let pid = process.pid();
    match process.describe_descriptor(number) {
        Ok((link, _)) if is_userfault(&link) => {}
        Ok(_) => return Err(CloseRemoteError::NotOurs { pid, number }),
        Err(_) if process.has_lost_memory() => return Ok(()),
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

/// Creates the userfaultfd by system call or by device; returns its number inside the process.
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
