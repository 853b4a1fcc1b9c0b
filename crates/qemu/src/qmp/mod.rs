//! A client for the QEMU Machine Protocol (QMP), as far as migration needs it, and
//! the command sequences that are used at both sides.
//!
//! QMP sends lines of JSON over a Unix socket. QEMU greets, the client enters
//! command mode, and from then on every command gets one answer. **Events can come
//! at any time, also between a command and its answer**. Answers are matched to
//! commands by `id`, so a late answer is not mistaken for the next command's.
//!
//! A [`Monitor`] is where a session is opened: QEMU's own QMP socket, or that of a program that
//! owns QEMU and lends its monitor.
//!
//! A QMP socket serves one client at a time. While another program is connected,
//! QEMU does not accept, and a new connection waits in the kernel without any
//! answer. The error for this is [`ConnectError::NoGreeting`].
//!
//! All calls block, each with a deadline. The client's memory is bounded, whatever
//! QEMU sends.

pub(crate) mod accelerator;
mod address;
pub(crate) mod announce_self;
mod client;
mod connection;
mod error;
pub(crate) mod human_monitor;
mod lines;
mod listener;
mod message;
pub(crate) mod migration_status;
mod monitor;
pub(crate) mod pause_mark;
pub(crate) mod qom;
pub(crate) mod reconnect;
mod resume_error;
#[cfg(test)]
pub(crate) mod scripted;
mod socket;
mod starting;
#[cfg(test)]
mod tests;

/// What the fuzz targets test.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub(crate) use super::lines::{Lines, MAX_LINE};
    pub(crate) use super::message::Message;
}

pub use address::MonitorAddress;
pub use client::Client;
pub(crate) use client::Submitted;
pub(crate) use client::{COMMAND_TIMEOUT, CONNECT_TIMEOUT, WATCHED_TIMEOUT};
pub(crate) use connection::connect;
pub use error::{ConnectError, QmpError};
#[cfg(test)]
pub(crate) use lines::MAX_LINE;
pub use listener::QmpListener;
pub use message::{QmpEvent, Version};
pub use monitor::Monitor;
pub use resume_error::{RESUME_BY_HAND, ResumeError};
pub use socket::MonitorSocket;
pub use starting::wait_until_started;
