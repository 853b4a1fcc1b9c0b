//! Creating a userfaultfd inside a process that may not call `userfaultfd(2)`.
//!
//! `userfaultfd(2)` requires a privilege of the caller, and a QEMU that runs as an ordinary user
//! does not have it unless `vm.unprivileged_userfaultfd` is 1. `/dev/userfaultfd` requires only the
//! permission to *open* it. So this process opens the device and passes the open file: the other
//! process creates a socket pair, we copy one end and send the descriptor through it, and the other
//! process creates the userfaultfd from the descriptor it received. It needs no permission for the
//! device, no device node in its own file tree, and no entry in its device cgroup.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_linux::inject::{InjectError, Remote, int_arg};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use thiserror::Error;

use crate::abi;

/// Creating a userfaultfd from the device failed.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// This process could not open the device.
    #[error("opening {path}")]
    Open {
        /// Path of the device.
        path: String,
        /// The error from the system.
        source: io::Error,
    },
    /// An injected system call failed.
    #[error("{doing} in the process")]
    Remote {
        /// The operation that failed.
        doing: &'static str,
        /// The error from the kernel.
        source: Errno,
    },
    /// An operation in this process failed.
    #[error("{doing}")]
    Local {
        /// The operation that failed.
        doing: &'static str,
        /// The error from the system.
        source: io::Error,
    },
    /// The message arrived without the descriptor.
    #[error(
        "the process may not receive the open device (AppArmor or SELinux), or it has no free \
         descriptors"
    )]
    NotReceived,
}

/// Offsets in the scratch memory on the stack of the other process.
const SOCKETS: u64 = 0;
const VECTOR: u64 = 16;
const BYTE: u64 = 48;
const HEADER: u64 = 64;
const CONTROL: u64 = 128;
const SCRATCH: u16 = 192;

/// Bytes of a control message with one descriptor, including padding.
const CONTROL_SPACE: u64 = 24; // three words

/// Creates the userfaultfd and returns its number inside the process. Closes all other descriptors
/// that were opened there.
pub(crate) fn create(
    remote: &mut Remote,
    process: &Arc<Process>,
    device: &File,
) -> Result<Result<i32, DeviceError>, InjectError> {
    let scratch = remote.scratch(SCRATCH)?;
    let result = with_sockets(remote, process, device.as_fd(), scratch.at);
    remote.restore_scratch(&scratch)?;
    result
}

fn with_sockets(
    remote: &mut Remote,
    process: &Arc<Process>,
    device: BorrowedFd<'_>,
    at: u64,
) -> Result<Result<i32, DeviceError>, InjectError> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let made = call(
        remote,
        "creating a socket pair",
        libc::SYS_socketpair,
        [int_arg(libc::AF_UNIX), int_arg(kind), 0, at + SOCKETS, 0, 0],
    )?;
    if let Err(error) = made {
        return Ok(Err(error));
    }
    let mut pair = [0; 8];
    remote.read(at + SOCKETS, &mut pair)?;
    let [a, b, c, d, e, f, g, h] = pair;
    let (theirs, ours) = (
        i32::from_ne_bytes([a, b, c, d]),
        i32::from_ne_bytes([e, f, g, h]),
    );
    let received = match send(process, ours, device) {
        Ok(()) => receive(remote, theirs, at),
        Err(error) => Ok(Err(error)),
    };
    close(remote, ours)?;
    close(remote, theirs)?;
    let device = match received? {
        Ok(device) => device,
        Err(error) => return Ok(Err(error)),
    };
    let made = call(
        remote,
        "creating a userfaultfd from the device",
        libc::SYS_ioctl,
        [
            int_arg(device),
            abi::USERFAULTFD_IOC_NEW,
            int_arg(abi::CREATE_FLAGS),
            0,
            0,
            0,
        ],
    );
    close(remote, device)?;
    Ok(made?.and_then(number))
}

/// Sends the device through `socket`, a descriptor number in the process.
fn send(process: &Process, socket: i32, device: BorrowedFd<'_>) -> Result<(), DeviceError> {
    let local = |doing| move |source| DeviceError::Local { doing, source };
    let socket = process
        .descriptor(socket)
        .map_err(local("copying one end of the socket pair"))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let devices = [device];
    // The buffer has exactly the required size.
    if !control.push(SendAncillaryMessage::ScmRights(&devices)) {
        return Err(local("sending the open device")(io::Error::other(
            "control buffer too small",
        )));
    }
    sendmsg(
        &socket,
        &[IoSlice::new(b"u")],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )
    .map(drop)
    .map_err(|errno| local("sending the open device")(errno.into()))
}

/// Makes the process receive the descriptor; returns its number there.
fn receive(
    remote: &mut Remote,
    socket: i32,
    at: u64,
) -> Result<Result<i32, DeviceError>, InjectError> {
    remote.write(at + VECTOR, &words([at + BYTE, 1]))?;
    // struct msghdr: no name, one vector, room for one control message, no flags.
    let header = words([0, 0, at + VECTOR, 1, at + CONTROL, CONTROL_SPACE, 0]);
    remote.write(at + HEADER, &header)?;
    remote.write(at + CONTROL, &words([0; 3]))?;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let received = call(
        remote,
        "receiving the open device",
        libc::SYS_recvmsg,
        [int_arg(socket), at + HEADER, int_arg(flags), 0, 0, 0],
    )?;
    if let Err(error) = received {
        return Ok(Err(error));
    }
    let mut control = [0; 20];
    remote.read(at + CONTROL, &mut control)?;
    // struct cmsghdr: length (8 bytes), level (4), type (4); then the descriptor.
    let expected = words::<1>([20])
        .into_iter()
        .chain(libc::SOL_SOCKET.to_ne_bytes())
        .chain(libc::SCM_RIGHTS.to_ne_bytes());
    let (start, descriptor) = control.split_at(16);
    if !start.iter().copied().eq(expected) {
        return Ok(Err(DeviceError::NotReceived));
    }
    let descriptor = descriptor
        .try_into()
        .map_or(-1, |bytes: [u8; 4]| i32::from_ne_bytes(bytes));
    Ok(Ok(descriptor))
}

/// Closes a descriptor inside the process.
pub(crate) fn close(remote: &mut Remote, number: i32) -> Result<(), InjectError> {
    // Linux frees the descriptor even if close(2) returns an error.
    remote
        .syscall(
            "closing a descriptor in it",
            libc::SYS_close,
            [int_arg(number), 0, 0, 0, 0, 0],
        )
        .map(drop)
}

fn call(
    remote: &mut Remote,
    doing: &'static str,
    number: libc::c_long,
    arguments: [u64; 6],
) -> Result<Result<u64, DeviceError>, InjectError> {
    let result = remote.syscall(doing, number, arguments)?;
    Ok(result.map_err(|source| DeviceError::Remote { doing, source }))
}

fn number(result: u64) -> Result<i32, DeviceError> {
    i32::try_from(result).map_err(|_| DeviceError::Remote {
        doing: "creating a userfaultfd from the device",
        source: Errno::BADF,
    })
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}
