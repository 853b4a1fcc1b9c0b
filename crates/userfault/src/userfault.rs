//! A userfaultfd: making one, negotiating, watching ranges.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::abi;
use crate::features::Features;
use hikkoshi_linux::Process;
use hikkoshi_linux::{HostRange, last_errno};

/// A userfaultfd. It works on the memory of the process that made it, which need not be ours:
/// addresses are that process's.
///
/// Closing the last copy of a descriptor unregisters everything, and missing pages then read as
/// **zero**, without any signal. So: drop this only when every page is present, or when the guest
/// is stopped for good.
///
/// All methods may be called from several threads at once.
///
/// # Example
///
/// A thread reads a page that is missing; another one installs it.
///
/// ```
/// use std::thread;
///
/// use hikkoshi_linux::{HostAddr, HostRange, Stop};
/// use hikkoshi_userfault::{Event, EventBuffer, Features, RegisterMode, Userfault};
/// use vm_memory::{Bytes, MmapRegion, VolatileMemory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = MmapRegion::<()>::new(16 << 12)?;
/// let range = HostRange::new(HostAddr(memory.as_ptr() as u64), 16 << 12);
/// let userfault = Userfault::create_for_self(Features::FOR_MISSING)?;
/// userfault.register(range, RegisterMode::MISSING)?;
///
/// thread::scope(|scope| {
///     // It sleeps until the page is there.
///     let reader = scope.spawn(|| memory.as_volatile_slice().read_obj::<u8>(5 << 12));
///
///     let mut events = EventBuffer::with_capacity(8);
///     userfault.wait(&Stop::new()?, None)?;
///     userfault.read(&mut events)?;
///     let Some(Event::Fault(fault)) = events.pop() else {
///         return Err("a fault was expected".into());
///     };
///     assert_eq!(fault.addr.0, range.addr.0 + (5 << 12));
///     userfault.copy(fault.addr, &[7; 4096])?;
///     assert_eq!(reader.join().map_err(|_| "the reader panicked")??, 7);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
    /// The process it belongs to, when that is known and not ourselves.
    process: Option<Arc<Process>>,
}

/// No userfaultfd of our own.
#[derive(Debug, Error)]
pub enum CreateError {
    /// Neither the system call nor the device gave one.
    #[error(
        "creating a userfaultfd: userfaultfd(2) failed ({call}) and /dev/userfaultfd failed \
         ({device}); run as root or with CAP_SYS_PTRACE, set sysctl \
         vm.unprivileged_userfaultfd=1, or allow access to /dev/userfaultfd"
    )]
    Refused {
        /// Why `userfaultfd(2)` failed.
        call: Errno,
        /// Why `/dev/userfaultfd` failed.
        device: io::Error,
    },
    /// It was made, but does not do what was asked.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// The handshake failed.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The kernel lacks features.
    #[error(
        "the userfaultfd of this kernel does not support {missing}; use a kernel of at least that \
         version with CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP"
    )]
    Missing {
        /// The requested features that the kernel does not have.
        missing: Features,
    },
    /// Anything else; a second handshake, for one.
    #[error("negotiating the userfaultfd features {wanted}: {source}")]
    Handshake {
        /// The requested features.
        wanted: Features,
        /// The error from the kernel.
        source: Errno,
    },
}

/// What to watch for in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RegisterMode {
    /// Accesses to pages that are not there.
    pub missing: bool,
    /// Writes to pages that [`Userfault::write_protect`] has protected.
    pub write_protect: bool,
}

impl RegisterMode {
    /// Watch for missing pages only.
    pub const MISSING: Self = Self {
        missing: true,
        write_protect: false,
    };
    /// Watch for writes only.
    pub const WRITE_PROTECT: Self = Self {
        missing: false,
        write_protect: true,
    };
}

/// What can be done with a range that was just registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// [`Userfault::zero`] works there. Not on hugetlbfs.
    pub zero: bool,
}

/// Watching a range, or ending that, or protecting it, failed.
#[derive(Debug, Error)]
pub enum RangeError {
    /// Another userfaultfd has it.
    #[error(
        "{doing} {range}: another userfaultfd is already registered for this memory, possibly one \
         left open by an earlier migration or QEMU's own postcopy-ram; close it first"
    )]
    Busy {
        /// The operation that failed.
        doing: &'static str,
        /// The memory range.
        range: HostRange,
    },
    /// The process has ended.
    #[error("{doing} {range}: the process has exited, or the memory is not mapped")]
    Gone {
        /// The operation that failed.
        doing: &'static str,
        /// The memory range.
        range: HostRange,
    },
    /// The kernel takes the range but cannot do what is needed with it.
    #[error(
        "{doing} {range}: the kernel cannot {unsupported} this type of memory; use a shared mapping of \
         tmpfs or hugetlbfs"
    )]
    Unsupported {
        /// The operation that failed.
        doing: &'static str,
        /// The memory range.
        range: HostRange,
        /// The operation that it does not support.
        unsupported: &'static str,
    },
    /// Any other error.
    #[error(
        "{doing} {range}: {source} (EINVAL: not a multiple of the page size, not mapped \
         completely, or not tmpfs, hugetlbfs or anonymous memory; EPERM: the mapped file is not \
         open for writing)"
    )]
    Kernel {
        /// The operation that failed.
        doing: &'static str,
        /// The memory range.
        range: HostRange,
        /// The error from the kernel.
        source: Errno,
    },
}

impl RangeError {
    pub(crate) fn new(doing: &'static str, range: HostRange, source: Errno) -> Self {
        match source {
            Errno::BUSY => Self::Busy { doing, range },
            // Register says ENOMEM where write-protect says ESRCH when the memory is gone as a
            // whole (`mmget_not_zero` in fs/userfaultfd.c).
            Errno::NOMEM | Errno::SRCH => Self::Gone { doing, range },
            source => Self::Kernel {
                doing,
                range,
                source,
            },
        }
    }
}

impl Userfault {
    /// A userfaultfd for our own memory, ready for use with `features`.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to make one, or lacks a feature.
    pub fn create_for_self(features: Features) -> Result<Self, CreateError> {
        let userfault = Self::create_unready()?;
        userfault.api(features)?;
        Ok(userfault)
    }

    /// Takes over a descriptor, which must be a userfaultfd. [`Self::api`] is the next step, unless
    /// someone has done it before.
    #[must_use]
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, process: None }
    }

    /// Says whose memory this descriptor is for, so that waiting for faults also ends when that
    /// process does.
    #[must_use]
    pub(crate) fn of_process(mut self, process: Arc<Process>) -> Self {
        self.process = Some(process);
        self
    }

    /// The process that the descriptor belongs to, if it is another one.
    #[must_use]
    pub fn process(&self) -> Option<&Arc<Process>> {
        self.process.as_ref()
    }

    pub(crate) fn create_unready() -> Result<Self, CreateError> {
        // SAFETY: the call takes no pointer.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, abi::CREATE_FLAGS) };
        let call = match own_descriptor(made) {
            Ok(fd) => return Ok(Self::from_fd(fd)),
            Err(errno) => errno,
        };
        let device = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .map_err(|device| CreateError::Refused { call, device })?;
        // SAFETY: the request takes flags, no pointer.
        let made = unsafe {
            libc::syscall(
                libc::SYS_ioctl,
                device.as_raw_fd(),
                abi::USERFAULTFD_IOC_NEW,
                abi::CREATE_FLAGS,
            )
        };
        match own_descriptor(made) {
            Ok(fd) => Ok(Self::from_fd(fd)),
            Err(errno) => Err(CreateError::Refused {
                call,
                device: errno.into(),
            }),
        }
    }

    pub(crate) fn handshake(&self, features: Features) -> Result<Features, CreateError> {
        self.api(features).map_err(CreateError::Api)
    }

    /// The handshake, `UFFDIO_API`: must come before anything else, once per descriptor. Returns
    /// what the kernel offers in all, used or not.
    ///
    /// # Errors
    ///
    /// When the kernel lacks one of `features`, named in the error; or a handshake was made before.
    pub fn api(&self, features: Features) -> Result<Features, ApiError> {
        let mut api = abi::Api {
            api: abi::UFFD_API,
            features: features.0,
            ioctls: 0,
        };
        match abi::ioctl(self.as_fd(), &mut api) {
            Ok(()) => Ok(Features(api.features)),
            Err(source) => {
                // The kernel does not say which feature it lacks, only another descriptor can tell.
                let offered = (!features.is_empty()).then(Features::supported);
                if let Some(Ok(offered)) = offered {
                    let missing = features.without(offered);
                    if !missing.is_empty() {
                        return Err(ApiError::Missing { missing });
                    }
                }
                Err(ApiError::Handshake {
                    wanted: features,
                    source,
                })
            }
        }
    }

    /// Watches `range`. It may consist of several mappings, but without gaps.
    ///
    /// # Errors
    ///
    /// When another userfaultfd watches some of it, when it is not whole pages of memory that can
    /// be watched, or the process has ended.
    pub fn register(&self, range: HostRange, mode: RegisterMode) -> Result<Registered, RangeError> {
        const DOING: &str = "registering";
        let mut register = abi::Register {
            range: abi::Range::from(range),
            mode: if mode.missing {
                abi::REGISTER_MISSING
            } else {
                0
            } | if mode.write_protect {
                abi::REGISTER_WP
            } else {
                0
            },
            ioctls: 0,
        };
        abi::ioctl(self.as_fd(), &mut register)
            .map_err(|source| RangeError::new(DOING, range, source))?;
        // The kernel lists only what works on every mapping of the range.
        let unsupported = if mode.missing && register.ioctls & abi::IOCTL_COPY == 0 {
            "install pages into"
        } else if mode.write_protect && register.ioctls & abi::IOCTL_WRITEPROTECT == 0 {
            "write-protect"
        } else {
            return Ok(Registered {
                zero: register.ioctls & abi::IOCTL_ZEROPAGE != 0,
            });
        };
        // Leave nothing behind; the error that matters is the one being returned.
        let _ = self.unregister(range);
        Err(RangeError::Unsupported {
            doing: DOING,
            range,
            unsupported,
        })
    }

    /// Ends watching `range` and wakes everyone who waits there (missing pages then read as zero).
    /// Whatever write protection it had ends too. Fine on a process that has ended, on a range
    /// that is not mapped any more and on one that was never registered.
    ///
    /// # Errors
    ///
    /// When `range` is not whole pages.
    pub fn unregister(&self, range: HostRange) -> Result<(), RangeError> {
        match abi::ioctl(self.as_fd(), &mut abi::Unregister(abi::Range::from(range))) {
            // ENOMEM: no memory left at all (the process has ended) or nothing mapped there.
            Ok(()) | Err(Errno::NOMEM | Errno::SRCH) => Ok(()),
            Err(source) => Err(RangeError::new("unregistering", range, source)),
        }
    }

    /// Protects `range` against writing, or ends that and wakes the writers that wait. The range
    /// must be registered for it. With [`Features::WP_ASYNC`] a write ends the protection of its
    /// page by itself and nobody waits.
    ///
    /// # Errors
    ///
    /// When some of the range is not registered for write protection, when the process has ended,
    /// or when its layout keeps changing for longer than 0.3 s.
    pub fn write_protect(&self, range: HostRange, on: bool) -> Result<(), RangeError> {
        let mut attempts = 0;
        loop {
            let mut argument = abi::WriteProtect {
                range: abi::Range::from(range),
                mode: if on { abi::WRITEPROTECT_ON } else { 0 },
            };
            match abi::ioctl(self.as_fd(), &mut argument) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) if pause_before_retry(attempts) => attempts += 1,
                Err(source) => return Err(RangeError::new("write-protecting", range, source)),
            }
        }
    }

    /// Wakes every thread that waits for a page of `range`. One whose page is still missing faults
    /// again and raises a new message: that is how a new reader takes over from one that died.
    ///
    /// # Errors
    ///
    /// When `range` is not whole pages.
    pub fn wake(&self, range: HostRange) -> Result<(), RangeError> {
        abi::ioctl(self.as_fd(), &mut abi::Wake(abi::Range::from(range)))
            .map_err(|source| RangeError::new("waking", range, source))
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where administrators give out the right to make userfaultfds (Linux 6.1).
pub(crate) const DEVICE: &str = "/dev/userfaultfd";

/// A descriptor out of a system call's result.
fn own_descriptor(result: libc::c_long) -> Result<OwnedFd, Errno> {
    match i32::try_from(result) {
        // SAFETY: the kernel has just made this descriptor for us, nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last_errno()),
    }
}

/// After `EAGAIN`, which the kernel says while the process is changing its memory layout (fork,
/// mremap, madvise: some events are read only by the thread that reads faults). Waits a little
/// longer each time, 0.3 s in all, and then says `false`. Sleeping, not spinning: the thread whose
/// work is waited for may need this very processor.
pub(crate) fn pause_before_retry(attempts: u32) -> bool {
    let micros: u64 = match attempts {
        0..8 => 10,
        8..40 => 100,
        40..340 => 1000,
        _ => return false,
    };
    std::thread::sleep(Duration::from_micros(micros));
    true
}
