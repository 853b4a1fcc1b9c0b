//! A domain's monitor, as a QMP session.
//!
//! A thread of its own reads the session's commands from a socket, and lets libvirt execute them.
//! Another one writes answers and events. The session ends when its client closes the socket. It
//! outlives libvirt's daemon, which may be restarted.

pub(crate) mod command;
pub(crate) mod events;
mod qmp;
mod received;
pub(crate) mod serve;
