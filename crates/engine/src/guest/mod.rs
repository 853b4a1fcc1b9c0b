//! The two traits that a virtual-machine monitor implements to take part in a migration:
//! [`SourceGuest`] and [`DestinationGuest`]. Each has optional parts: disks
//! ([`SourceDisks`], [`DestinationDisks`]), network frames, and what matters if the machine is a
//! process of its own ([`SourceProcess`], [`DestinationProcess`]).
//!
//! The QEMU adapter implements them from outside QEMU's process. Your own monitor can implement
//! them inside it.

mod destination;
mod disks;
mod error;
mod hardware;
mod process;
mod source;

pub use destination::{DestinationGuest, ThreadName};
pub use disks::{DestinationDisks, SourceDisks};
pub(crate) use error::NoDisks;
pub use hardware::Hardware;
pub use process::{DestinationProcess, SourceProcess};
pub use source::SourceGuest;
