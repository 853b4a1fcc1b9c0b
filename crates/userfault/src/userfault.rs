//! A userfaultfd: creating one, negotiating features, registering ranges.

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

/// A userfaultfd. It handles the memory of the process that created it, which may be another
/// process; all addresses are in that process.
///
/// Closing the last copy of a descriptor unregisters all ranges, and missing pages then read as
/// **zero**, without an error. Drop this only when every page is present, or when the guest never
/// runs again.
///
/// All methods can be called from several threads at the same time.
///
/// # Example
///
/// One thread reads a missing page; another thread installs it.
///
/// ```
/// use std::thread;
///
/// use hikkoshi_linux::{HostAddr, HostRange, StopEventFd};
/// use hikkoshi_userfault::{UserfaultEvent, EventBuffer, Features, RegisterMode, Userfault};
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
///     userfault.wait(&StopEventFd::new()?, None)?;
///     userfault.read(&mut events)?;
///     let Some(UserfaultEvent::Fault(fault)) = events.pop() else {
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
    /// The process it belongs to, if it is known and not this process.
    process: Option<Arc<Process>>,
}

/// Creating a userfaultfd in this process failed.
#[derive(Debug, Error)]
pub enum CreateError {
    /// Both the system call and the device failed.
    #[error(
        "creating a userfaultfd: userfaultfd(2) failed ({call}) and /dev/userfaultfd failed \
         ({device}); run as root or with CAP_SYS_PTRACE, set sysctl \
         vm.unprivileged_userfaultfd=1, or allow access to /dev/userfaultfd"
    )]
    Refused {
        /// The error of `userfaultfd(2)`.
        call: Errno,
        /// The error of `/dev/userfaultfd`.
        device: io::Error,
    },
    /// It was created, but the handshake failed.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// The handshake (`UFFDIO_API`) failed.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The kernel does not support all features.
    #[error(
        "the userfaultfd of this kernel does not support {missing}; use a kernel of at least that \
         version with CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP"
    )]
    Missing {
        /// The requested features that the kernel does not have.
        missing: Features,
    },
    /// Any other error, for example a second handshake.
    #[error("negotiating the userfaultfd features {wanted}")]
    Handshake {
        /// The requested features.
        wanted: Features,
        /// The error from the kernel.
        source: Errno,
    },
}

/// Which faults of a range to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RegisterMode {
    /// Accesses to missing pages.
    pub missing: bool,
    /// Writes to pages protected with [`Userfault::write_protect`].
    pub write_protect: bool,
}

impl RegisterMode {
    /// Missing pages only.
    pub const MISSING: Self = Self {
        missing: true,
        write_protect: false,
    };
    /// Writes only.
    pub const WRITE_PROTECT: Self = Self {
        missing: false,
        write_protect: true,
    };
}

/// Operations that a registered range supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// [`Userfault::zero`] is supported. Not on hugetlbfs.
    pub zero: bool,
}

/// Registering, unregistering, protecting or waking a range failed.
#[derive(Debug, Error)]
pub enum RangeError {
    /// Another userfaultfd is registered for the memory.
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
    /// The process has exited.
    #[error("{doing} {range}: the process has exited, or the memory is not mapped")]
    Gone {
        /// The operation that failed.
        doing: &'static str,
        /// The memory range.
        range: HostRange,
    },
    /// The kernel registers the range but does not support an operation on it.
    #[error(
        "{doing} {range}: the kernel cannot {operation} this type of memory; use a shared mapping \
         of tmpfs or hugetlbfs"
    )]
    Unsupported {
        /// The operation that failed.
        doing: &'static str,
        /// The memory range.
        range: HostRange,
        /// The operation that it does not support.
        operation: &'static str,
    },
    /// Any other error.
    #[error(
        "{doing} {range} (EINVAL: not a multiple of the page size, not mapped \
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
            // When the whole memory is gone, register returns ENOMEM and write-protect returns
            // ESRCH (`mmget_not_zero` in fs/userfaultfd.c).
            Errno::NOMEM | Errno::SRCH => Self::Gone { doing, range },
            source => Self::Kernel {
                doing,
                range,
                source,
            },
        }
    }
}

impl Features {
    /// Returns the features that this kernel supports, queried with a temporary userfaultfd.
    /// (`UFFDIO_API` works only once per descriptor.)
    ///
    /// # Errors
    ///
    /// When this process cannot create a userfaultfd.
    pub fn supported() -> Result<Self, CreateError> {
        Userfault::create_unready()?.handshake(Self::NONE)
    }
}

impl Userfault {
    /// Creates a userfaultfd for the memory of this process, with `features`.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to create one, or does not support a feature.
    pub fn create_for_self(features: Features) -> Result<Self, CreateError> {
        let userfault = Self::create_unready()?;
        userfault.api(features)?;
        Ok(userfault)
    }

    /// Wraps a descriptor, which must be a userfaultfd. [`Self::api`] must be called next, unless
    /// the handshake was already done.
    #[must_use]
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, process: None }
    }

    /// Sets the process whose memory this descriptor is for, so that waiting for faults also ends
    /// when that process exits.
    #[must_use]
    pub(crate) fn of_process(mut self, process: Arc<Process>) -> Self {
        self.process = Some(process);
        self
    }

    /// The process that the descriptor belongs to, if it is not this process.
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
        // SAFETY: the request takes flags, not a pointer.
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

    /// Performs the handshake, `UFFDIO_API`: once per descriptor, before all other calls. Returns
    /// all features that the kernel supports, requested or not.
    ///
    /// # Errors
    ///
    /// When the kernel does not support one of `features` (the error names it), or when the
    /// handshake was already done.
    pub fn api(&self, features: Features) -> Result<Features, ApiError> {
        let mut api = abi::Api {
            api: abi::UFFD_API,
            features: features.0,
            ioctls: 0,
        };
        match abi::ioctl(self.as_fd(), &mut api) {
            Ok(()) => Ok(Features(api.features)),
            Err(source) => {
                // The kernel does not report which feature is unsupported; only another descriptor
                // can.
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

    /// Registers `range`. It may consist of several mappings without gaps.
    ///
    /// # Errors
    ///
    /// When another userfaultfd is registered for a part of it, when it is not whole pages of a
    /// supported type of memory, or when the process has exited.
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
        // The kernel lists only the operations that every mapping of the range supports.
        let operation = if mode.missing && register.ioctls & abi::IOCTL_COPY == 0 {
            "install pages into"
        } else if mode.write_protect && register.ioctls & abi::IOCTL_WRITEPROTECT == 0 {
            "write-protect"
        } else {
            return Ok(Registered {
                zero: register.ioctls & abi::IOCTL_ZEROPAGE != 0,
            });
        };
        // Undo the registration. An error of that is less important than the one returned here.
        let _ = self.unregister(range);
        Err(RangeError::Unsupported {
            doing: DOING,
            range,
            operation,
        })
    }

    /// Unregisters `range`, wakes the threads that wait there (missing pages then read as zero),
    /// and removes its write protection. Succeeds if the process has exited, if the range is no
    /// longer mapped, and if it was never registered.
    ///
    /// # Errors
    ///
    /// When `range` is not whole pages.
    pub fn unregister(&self, range: HostRange) -> Result<(), RangeError> {
        match abi::ioctl(self.as_fd(), &mut abi::Unregister(abi::Range::from(range))) {
            Ok(()) => {}
            // The process has exited, or the range is not mapped.
            Err(Errno::NOMEM | Errno::SRCH) => return Ok(()),
            Err(source) => return Err(RangeError::new("unregistering", range, source)),
        }
        // The kernel wakes the waiting threads before it locks the mapping. A thread that begins
        // to wait in between would wait for ever (seen with Linux 6.18).
        self.wake(range)
    }

    /// Write-protects `range`, or removes the protection and wakes the blocked writers. The range
    /// must be registered for it. With [`Features::WP_ASYNC`] a write removes the protection of its
    /// page and does not block.
    ///
    /// # Errors
    ///
    /// When a part of the range is not registered for write protection, when the process has
    /// exited, or when its memory layout keeps changing for longer than 0.3 s.
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

    /// Wakes every thread that waits for a page of `range`. If the page is still missing, the
    /// thread faults again and causes a new event: a new reader uses this to take over from one
    /// that died.
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

/// The device through which administrators grant the right to create userfaultfds (Linux 6.1).
pub(crate) const DEVICE: &str = "/dev/userfaultfd";

/// Converts the result of a system call to a descriptor.
fn own_descriptor(result: libc::c_long) -> Result<OwnedFd, Errno> {
    match i32::try_from(result) {
        // SAFETY: the kernel has just created this descriptor for us, and no other code knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last_errno()),
    }
}

/// Sleeps before a retry after `EAGAIN`, which the kernel returns while the process changes its
/// memory layout (fork, mremap, madvise: some of these block until the thread that reads faults
/// reads their event). Sleeps longer each time, 0.3 s in total, and then returns `false`. It does
/// not spin: the thread that changes the layout may need this processor.
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
