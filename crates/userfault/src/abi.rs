//! The kernel's userfaultfd interface from `linux/userfaultfd.h`: structures, request numbers,
//! flags. The only function here issues an ioctl.

use std::os::fd::{AsRawFd, BorrowedFd};

use hikkoshi_linux::{HostRange, last_errno};
use rustix::io::Errno;

/// The only version of the interface.
pub(crate) const UFFD_API: u64 = 0xAA;

/// `userfaultfd(2)` flags of every descriptor. Never `UFFD_USER_MODE_ONLY`: KVM's faults are
/// kernel-mode faults, and with that flag the vCPU livelocks without an error.
pub(crate) const CREATE_FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// `USERFAULTFD_IOC_NEW`, `_IO(0xAA, 0)`: creates a userfaultfd from `/dev/userfaultfd`.
pub(crate) const USERFAULTFD_IOC_NEW: u64 = 0xAA00;

pub(crate) const REGISTER_MISSING: u64 = 1 << 0;
pub(crate) const REGISTER_WP: u64 = 1 << 1;

/// Bits of the set of ioctls that `UFFDIO_REGISTER` reports for a range.
pub(crate) const IOCTL_COPY: u64 = 1 << 0x03;
pub(crate) const IOCTL_ZEROPAGE: u64 = 1 << 0x04;
pub(crate) const IOCTL_WRITEPROTECT: u64 = 1 << 0x06;

pub(crate) const WRITEPROTECT_ON: u64 = 1 << 0;

pub(crate) const EVENT_PAGEFAULT: u8 = 0x12;
pub(crate) const EVENT_FORK: u8 = 0x13;
pub(crate) const EVENT_REMAP: u8 = 0x14;
pub(crate) const EVENT_REMOVE: u8 = 0x15;
pub(crate) const EVENT_UNMAP: u8 = 0x16;

pub(crate) const PAGEFAULT_WRITE: u64 = 1 << 0;
pub(crate) const PAGEFAULT_WP: u64 = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Api {
    pub(crate) api: u64,
    pub(crate) features: u64,
    pub(crate) ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl From<HostRange> for Range {
    fn from(range: HostRange) -> Self {
        Self {
            start: range.addr.0,
            len: range.len,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Register {
    pub(crate) range: Range,
    pub(crate) mode: u64,
    pub(crate) ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copy {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) len: u64,
    pub(crate) mode: u64,
    /// Bytes installed, or a negated errno.
    pub(crate) copy: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ZeroPage {
    pub(crate) range: Range,
    pub(crate) mode: u64,
    /// Bytes installed, or a negated errno.
    pub(crate) zeropage: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Continue {
    pub(crate) range: Range,
    pub(crate) mode: u64,
    /// Bytes mapped, or a negated errno.
    pub(crate) mapped: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteProtect {
    pub(crate) range: Range,
    pub(crate) mode: u64,
}

/// One message, 32 bytes. The union of the C header is three words here, which hold each member:
/// {flags, address, thread}, {descriptor}, {from, to, length}, {start, end}.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Message {
    pub(crate) event: u8,
    pub(crate) reserved: [u8; 7],
    pub(crate) words: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32);

/// The structure that one userfaultfd ioctl takes.
///
/// # Safety
///
/// `REQUEST` must be the request that takes exactly this structure and keeps no pointer to it.
pub(crate) unsafe trait Argument {
    const REQUEST: libc::Ioctl;
}

const fn request(direction: libc::Ioctl, number: libc::Ioctl, size: usize) -> libc::Ioctl {
    // Sizes here are at most 40 bytes, so the cast does not truncate.
    (direction << 30) | ((size as libc::Ioctl) << 16) | (0xAA << 8) | number
}

const READ: libc::Ioctl = 2;
const READ_WRITE: libc::Ioctl = 3;

/// Ioctls that take only a range have a type each, because each type has one request number.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Unregister(pub(crate) Range);
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Wake(pub(crate) Range);

// SAFETY: UFFDIO_API, `_IOWR(0xAA, 0x3F, struct uffdio_api)`.
unsafe impl Argument for Api {
    const REQUEST: libc::Ioctl = request(READ_WRITE, 0x3F, size_of::<Self>());
}
// SAFETY: UFFDIO_REGISTER, `_IOWR(0xAA, 0x00, struct uffdio_register)`.
unsafe impl Argument for Register {
    const REQUEST: libc::Ioctl = request(READ_WRITE, 0x00, size_of::<Self>());
}
// SAFETY: UFFDIO_UNREGISTER, `_IOR(0xAA, 0x01, struct uffdio_range)`.
unsafe impl Argument for Unregister {
    const REQUEST: libc::Ioctl = request(READ, 0x01, size_of::<Self>());
}
// SAFETY: UFFDIO_WAKE, `_IOR(0xAA, 0x02, struct uffdio_range)`.
unsafe impl Argument for Wake {
    const REQUEST: libc::Ioctl = request(READ, 0x02, size_of::<Self>());
}
// SAFETY: UFFDIO_ZEROPAGE, `_IOWR(0xAA, 0x04, struct uffdio_zeropage)`. It only names memory of the
// process that the descriptor belongs to.
unsafe impl Argument for ZeroPage {
    const REQUEST: libc::Ioctl = request(READ_WRITE, 0x04, size_of::<Self>());
}
// SAFETY: UFFDIO_CONTINUE, `_IOWR(0xAA, 0x07, struct uffdio_continue)`. It only names memory of the
// process that the descriptor belongs to.
unsafe impl Argument for Continue {
    const REQUEST: libc::Ioctl = request(READ_WRITE, 0x07, size_of::<Self>());
}
// SAFETY: UFFDIO_WRITEPROTECT, `_IOWR(0xAA, 0x06, struct uffdio_writeprotect)`.
unsafe impl Argument for WriteProtect {
    const REQUEST: libc::Ioctl = request(READ_WRITE, 0x06, size_of::<Self>());
}

/// UFFDIO_COPY, `_IOWR(0xAA, 0x03, struct uffdio_copy)`. Not an [`Argument`], because it reads the
/// caller's memory at `src`.
pub(crate) const UFFDIO_COPY: libc::Ioctl = request(READ_WRITE, 0x03, size_of::<Copy>());

/// Issues one userfaultfd ioctl. Some ioctls report through `argument` even if they fail.
pub(crate) fn ioctl<A: Argument>(fd: BorrowedFd<'_>, argument: &mut A) -> Result<(), Errno> {
    let pointer: *mut A = argument;
    // SAFETY: by the contract of `Argument` the request takes exactly an `A`, which is borrowed
    // for the length of the call, and keeps no pointer to it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), A::REQUEST, pointer) };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}
