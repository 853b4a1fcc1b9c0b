//! Networks of namespaces: a shaped line between two hosts, and a switch with a guest on it.
//!
//! Addresses are the same every time; namespaces keep them apart. All of it needs root.

mod guest_network;
mod link;
mod namespace;

pub use guest_network::GuestNetwork;
pub use link::{Link, Shape};
pub use namespace::Namespace;
pub(crate) use namespace::{NAMESPACE_PREFIX, NAMESPACES};

use crate::{LabError, spawn};
use std::process::Command;

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &[&str]) -> Result<String, LabError> {
    spawn::run(Command::new("ip").args(arguments))
}
