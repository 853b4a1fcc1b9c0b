//! The two traits that a virtual-machine monitor implements to take part in a migration:
//! [`SourceGuest`] and [`DestinationGuest`].
//!
//! The QEMU adapter implements them from outside QEMU's process. Your own monitor can implement
//! them inside it.

mod destination;
mod error;
mod source;

pub use destination::{DestinationGuest, ThreadName};
pub use source::SourceGuest;
