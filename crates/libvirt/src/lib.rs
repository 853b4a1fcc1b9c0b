//! libvirt domains: QEMU guests that libvirt has started and owns.
//!
//! libvirt is the only client of the monitor of its QEMU processes. It lends the monitor through
//! its library: a command at a time (`virDomainQemuMonitorCommandWithFiles`), and the events of one
//! domain. [`Domain::monitor`] makes a QMP session of that, the same as one on QEMU's own socket,
//! so that the QEMU adapter works on either. Everything else that the adapter does with a guest, it
//! does with QEMU's process, and libvirt is not involved.
//!
//! # Words
//!
//! * *Domain*: libvirt's word for a virtual machine.
//! * *URI*: names a libvirt daemon, such as `qemu:///system`.
//!
//! # What libvirt sees
//!
//! The first monitor command marks the domain as *tainted* by `custom-monitor` in libvirt's log.
//! libvirt lets one command wait for another, and for what else changes the domain: a command fails
//! after 30 s if libvirt is busy with the domain for so long ("cannot acquire state change lock").
//!
//! # Moving a domain away
//!
//! [`Domain`] is a monitor for the QEMU adapter. libvirt itself resumes the guest after a failed
//! move (it takes its locks on disks again), and destroys the domain when its guest runs at the
//! destination, without letting QEMU write to the images any more (`end.rs`). libvirt does not know
//! of the move, so the domain is compared with what it was at the beginning right before the guest
//! is paused (`unchanged.rs`), and watched until it has ended (`watch.rs`).
//!
//! The daemon may be restarted at any moment. A session outlives it: while the daemon is away, it
//! uses QEMU's monitor socket, which no other program uses then, and repeats a command whose answer
//! was lost. Afterwards it registers for the events again (`monitor/`).
//!
//! The daemon may also hang. Each call has a time limit (`call.rs`), and an error that names the
//! daemon. A daemon that hangs keeps QEMU's monitor socket, so a guest that is paused meanwhile can
//! be resumed only when the daemon answers or has ended.
//!
//! # Receiving a domain
//!
//! [`IncomingOptions::start`] lets libvirt restore a domain from a named pipe, into which the QEMU
//! adapter writes the guest's stream (`incoming/`). libvirt has created the domain then, owns it,
//! and runs its guest when the stream ends.
//!
//! # What is missing
//!
//! A guest that is resumed while the daemon is away is resumed by QEMU, without the locks of a lock
//! manager of libvirt's. Checkpoints stay at the source, and so does an emulated TPM whose state
//! both hosts would use. Most events that come while the daemon is away are lost. What `virsh
//! destroy` ends is gone. libvirt's events and hooks at the destination are those of a restored
//! domain. Daemons on other hosts are refused, because the guest's memory is reached through its
//! process. A user's own daemon (`qemu:///session`) receives no domains: docs/libvirt.md.

#[cfg(feature = "libvirt")]
mod call;
#[cfg(feature = "libvirt")]
mod changes;
#[cfg(feature = "libvirt")]
mod connection;
#[cfg(feature = "libvirt")]
mod daemon;
mod domain;
#[cfg(feature = "libvirt")]
mod end;
mod error;
#[cfg(feature = "libvirt")]
mod image_owners;
mod incoming;
#[cfg(feature = "libvirt")]
mod job;
#[cfg(feature = "libvirt")]
mod lifecycle;
#[cfg(feature = "libvirt")]
mod monitor;
mod process;
#[cfg(feature = "libvirt")]
mod unchanged;
#[cfg(feature = "libvirt")]
mod watch;

pub use domain::{DEFAULT_URI, Domain, MoveOptions};
pub use error::DomainError;
pub use incoming::{
    Change, DescriptionError, IncomingError, IncomingOptions, NetworkKind, SharedState,
    check_daemon, discard, resumed_owner,
};
