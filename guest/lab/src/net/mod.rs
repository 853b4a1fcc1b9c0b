//! Networks of namespaces: hosts with a rate-limited network, and a switch with a guest.
//!
//! The addresses are always the same; namespaces separate them. Everything here needs root.

mod datagram_client;
mod file_clients;
mod guest_network;
mod host_pair;
mod ip;
mod namespace;
mod shared_line;
mod tap_queues;

pub use datagram_client::{DatagramClient, Datagrams, Pace};
pub use file_clients::{FileClients, Files};
pub use guest_network::GuestNetwork;
pub use host_pair::{HostPair, RateLimit};
pub(crate) use ip::ip;
pub use namespace::Namespace;
pub(crate) use namespace::{NAMESPACE_PREFIX, NAMESPACES};
pub use shared_line::SharedLine;
pub(crate) use tap_queues::TapQueues;
