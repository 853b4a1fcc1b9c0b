//! QEMU's machine protocol, as far as a migration needs it.
//!
//! QMP is lines of JSON over a Unix socket. QEMU greets, the client asks for
//! command mode, and from then on every command gets one answer; **events come
//! at any time, also between a command and its answer**. Answers are matched
//! to commands by `id`, so that an answer that comes after we stopped waiting
//! for it is not taken for the next one.
//!
//! A QMP socket serves one client at a time: while another program holds it,
//! QEMU accepts nobody and says nothing, and a connection just waits in the
//! kernel. Here that is an error of its own, [`ConnectError::NoGreeting`].
//!
//! Blocking, with a deadline on everything; nothing that QEMU sends makes the
//! client allocate without bound.

pub(crate) mod announce;
mod client;
mod connection;
mod error;
mod lines;
mod message;
pub(crate) mod migration;
pub(crate) mod monitor;
pub(crate) mod qom;
#[cfg(test)]
mod tests;

/// What the fuzz targets look at.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    pub(crate) use super::lines::{Lines, MAX_LINE};
    pub(crate) use super::message::Message;
}

pub use client::{COMMAND_TIMEOUT, Client};
pub(crate) use connection::connect;
pub use error::{ConnectError, QmpError};
pub use lines::MAX_LINE;
pub use message::{QmpEvent, Version};
