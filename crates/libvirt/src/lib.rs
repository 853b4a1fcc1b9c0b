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
//! # What is missing
//!
//! A domain can be checked, not moved yet: libvirt has to own it at the destination, too. Daemons
//! on other hosts are refused, because the guest's memory is reached through its process. A user's
//! own daemon (`qemu:///session`) was not tried.

#[cfg(feature = "libvirt")]
mod changes;
#[cfg(feature = "libvirt")]
mod connection;
#[cfg(feature = "libvirt")]
mod daemon;
mod domain;
mod error;
mod incoming;
#[cfg(feature = "libvirt")]
mod job;
#[cfg(feature = "libvirt")]
mod monitor;
mod process;
#[cfg(feature = "libvirt")]
mod unchanged;

pub use domain::{AtSource, DEFAULT_URI, Domain};
pub use error::DomainError;
pub use incoming::{
    Change, DescriptionError, IncomingError, IncomingOptions, NetworkKind, check_daemon,
    resumed_owner,
};
