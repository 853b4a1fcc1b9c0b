//! The network: a virtio card, TCP/IP by smoltcp in a task of its own, and connections, each with a
//! task that serves it.
//!
//! The network's task alone uses the card and the TCP/IP library. A page fault of this task stalls
//! the whole network, so its memory is small and used all the time: the buffers of frames (1 MiB),
//! and 36 KiB for a connection. Of these, a connection's task accesses most before the network's.

mod card;
mod connection;
mod datagrams;
mod network_task;
mod pci;
mod queue;
mod registers;
mod ring;
mod virtio;

pub use connection::{Broken, Connection};
pub use datagrams::counts as datagram_counts;
pub use network_task::{WORK, is_ready, run};

/// The longest datagram.
const DATAGRAM: usize = 1472;

/// Most connections to the server of lines.
pub const MOST_LINES: usize = 32;
/// Most connections to the server of files.
pub const MOST_FILES: usize = 136;

/// The places for connections to the server of lines.
pub static LINES: [Connection; MOST_LINES] = [const { Connection::new() }; MOST_LINES];
/// The places for connections to the server of files.
pub static FILES: [Connection; MOST_FILES] = [const { Connection::new() }; MOST_FILES];

/// The guest's address, with the length of its network's prefix.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The address.
    pub bytes: [u8; 4],
    /// Bits of the prefix.
    pub prefix: u8,
}

impl Address {
    /// Parses `10.88.0.2/24`.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: core::net::Ipv4Addr = address.parse().ok()?;
        Some(Self {
            bytes: address.octets(),
            prefix: prefix.parse().ok().filter(|bits| *bits <= 32)?,
        })
    }
}
