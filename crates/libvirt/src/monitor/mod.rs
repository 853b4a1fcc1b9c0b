//! A domain's monitor, as a QMP session.
//!
//! A thread of its own reads the session's commands from a socket, and lets libvirt execute them.
//! Another one writes answers and events. The session ends when its client closes the socket. It
//! outlives libvirt's daemon, which may be restarted: while that is away, commands go to QEMU's
//! monitor socket (`own_socket.rs`).

pub(crate) mod command;
pub(crate) mod events;
pub(crate) mod own_socket;
mod qmp;
mod received;
mod serve;
mod session;
