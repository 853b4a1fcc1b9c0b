//! Controls migrations of this host while they run.
//!
//! # Model
//!
//! The engine of a source has a **control socket** ([`ControlServer`]) in the **control folder**
//! ([`ControlFolder`]), with the name that its status socket has in the status folder
//! (`hikkoshi-status`). A client ([`send`]) connects, writes one [`Request`] as a line, reads one
//! [`Answer`] as a line, and the connection ends. What a request does is decided by the handler
//! that the engine's program gives to the server.
//!
//! | file | holds |
//! |---|---|
//! | `message.rs` | what is sent: JSON, one object a line, with a version |
//! | `folder.rs` | the control folder, which only its owner can enter |
//! | `key.rs` | the key of a socket: who can read it may control the migration |
//! | `server.rs` | serves the socket of this process, on a thread of its own |
//! | `connection.rs` | one connection, which never blocks |
//! | `client.rs` | sends a request to another process |
//!
//! # Who may control a migration
//!
//! The user of the engine, and root. Three things guard that: only the owner can enter the folder;
//! the kernel says which user has connected (`SO_PEERCRED`); and each request has the key of the
//! socket, from a file beside it. The key is for processes of the same user that may not read files
//! outside of their folder, such as `hikkoshi dashboard`: they can connect to any socket of their
//! user.
//!
//! # What is missing
//!
//! - The destination of a migration has no control socket: the source decides.

mod client;
mod connection;
mod folder;
mod key;
mod message;
mod server;

pub use client::{SendError, send};
pub use folder::{ControlFolder, ControlFolderError};
pub use message::{
    Answer, Change, Changed, Command, Outcome, Refusal, RefusalReason, Request, Set,
};
pub use server::{ControlServer, ControlServerError};

/// The version of requests and answers. Others are refused.
pub const VERSION: u32 = 1;

/// The longest request and the longest answer, in bytes, with the end of the line.
pub const MAX_LINE: usize = 4096;
