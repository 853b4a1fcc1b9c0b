//! Networks of namespaces: a shaped line between two hosts, and a switch with a guest on it.
//!
//! Addresses are the same every time; namespaces keep them apart. All of it needs root.

mod guest_network;
mod host_pair;
mod ip;
mod namespace;

pub use guest_network::GuestNetwork;
pub use host_pair::{HostPair, Shape};
pub(crate) use ip::ip;
pub use namespace::Namespace;
pub(crate) use namespace::{NAMESPACE_PREFIX, NAMESPACES};
