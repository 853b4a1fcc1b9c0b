//! Network frames for a guest, on the tap device of its network card.
//!
//! # Model
//!
//! A frame for the guest is *transmitted* by the host on the tap device. The
//! device queues it until QEMU (or vhost-net in the kernel) reads it. While the
//! guest is paused at the source, frames wait there, and would be lost with the
//! source.
//!
//! * A [`PacketSocket`] sees each frame when it is transmitted on the device, with
//!   the time, and keeps it in its receive buffer. Frames that the guest sends are
//!   left out by a filter in the kernel.
//! * A [`TunQueue`] is QEMU's own descriptor of the device. What can be read from it
//!   has not been taken by the guest's network card.
//! * [`unread()`] combines both: it finds the first frame that the guest did not get.
//! * An [`announcement()`] tells switches that a station of the guest has moved.
//! * At the destination another [`PacketSocket`] transmits the frames on the tap
//!   device there.
//!
//! A frame between two devices of one host may be incomplete: its checksum has not
//! been computed, or it is a large segment that has not been divided, because a
//! later device does that. [`NetworkFrame::offload`] says what is left to do. It goes with
//! the frame, and the destination's kernel does what the device there cannot.
//!
//! # Privileges
//!
//! Packet sockets need `CAP_NET_RAW`, another network namespace `CAP_SYS_ADMIN`.
//!
//! # What is missing
//!
//! Frames longer than [`MAX_NETWORK_FRAME`] (`BIG TCP`) are cut by the kernel, and dropped.

#![allow(unsafe_code)] // Options, addresses and control messages of packet sockets; ioctls of tun.

mod announcement;
mod network_frame;
mod packet_socket;
mod system_calls;
mod tun_queue;
mod unread;

pub use announcement::announcement;
pub use network_frame::{MAX_NETWORK_FRAME, MacAddress, NetworkFrame, OFFLOAD_LEN};
pub use packet_socket::{BufferMib, OpenError, PacketSocket};
pub use tun_queue::TunQueue;
pub use unread::{Captured, unread};
