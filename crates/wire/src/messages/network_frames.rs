//! Network frames that arrived for the guest during the switchover.

use serde::{Deserialize, Serialize};

use super::bounded::Bytes;

/// The length of [`NetworkFrame::offload`] in bytes.
pub const OFFLOAD_LEN: usize = 10;

/// The longest frame, in bytes: a segment of 64 KiB that a network device would
/// divide, with its Ethernet header and two VLAN tags.
pub const MAX_NETWORK_FRAME: usize = (64 << 10) + 22;

/// The most frames in one message.
pub const MAX_NETWORK_FRAMES: usize = 256;

/// An Ethernet frame, without its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFrame {
    /// What is left for the network device to do, such as computing a checksum:
    /// `struct virtio_net_hdr` (virtio 1.2, section 5.1.6) without the number of
    /// buffers, little-endian.
    pub offload: [u8; OFFLOAD_LEN],
    /// From the destination address on; at most [`MAX_NETWORK_FRAME`] bytes.
    #[serde(with = "Bytes::<MAX_NETWORK_FRAME>")]
    pub bytes: Vec<u8>,
}
