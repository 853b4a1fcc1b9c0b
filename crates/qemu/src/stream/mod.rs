//! QEMU's migration stream: its bytes, and the socket through which QEMU reads or writes it.
//!
//! # The bytes
//!
//! [`SavedDevices`] reads what `xen-save-devices-state` writes: the devices' sections, without
//! memory. [`whole`] writes the stream that an incoming QEMU loads: a frame around these sections,
//! in which no page travels. It asks for no migration blockers: with a device that cannot be
//! migrated, QEMU (7.2 and 10.0) ends with a segmentation fault when it saves it. So
//! `query-migrate` must be asked before.
//!
//! # The socket
//!
//! QEMU reads and writes with its own threads at any time. At our end, a separate
//! thread always serves the socket, so QEMU never waits for the engine.
//!
//! # A guest that its owner has paused
//!
//! After QEMU has written everything, it completes its migration, and the guest's
//! state is *postmigrate*, which QEMU leaves only by running the guest. So a guest that
//! its owner had paused could not return to *paused*. Therefore its stream is not read
//! to the end ([`ReadUntil::Description`]). The devices' state is followed by a
//! description of it (the vmdesc section), which QEMU ignores when it loads. Reading
//! stops there, and QEMU waits in the middle of writing. The engine then decides
//! whether the migration completes ([`DeviceStateReader::finish`]) or fails (it drops
//! the reader, and QEMU restores the guest's state).
//!
//! QEMU 7.2 sets *postmigrate* even then; QEMU 10.0 does not (both tested).

mod format;
mod incoming;
mod reader;
mod saved;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde_json::json;

pub use self::format::StreamError;
pub use self::incoming::{StreamBlock, head, tail, whole};
pub(crate) use self::reader::DeviceStateReader;
pub use self::saved::{SavedDevices, Section};
pub(crate) use self::writer::DeviceStateWriter;
use crate::qmp::{Client, QmpError};

/// The name of our descriptor inside QEMU.
pub(crate) const FD_NAME: &str = "hikkoshi";

/// Sends QEMU one end of a new socket, with the name [`FD_NAME`].
pub(crate) fn open(client: &mut Client, until: ReadUntil) -> Result<UnixStream, QmpError> {
    let failed = |source| QmpError::Socket {
        doing: "creating the socket for the device state".to_owned(),
        source,
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    if until == ReadUntil::Description {
        shrink_send_buffer(&theirs).map_err(failed)?;
    }
    client.send_fd(FD_NAME, theirs.as_fd())?;
    // QEMU has its own copy. Ours is closed here, so QEMU's is the only one.
    Ok(ours)
}

/// The socket's buffer size if QEMU has to wait in the middle of the description: much
/// less than the description's size (53 KB were measured).
const SMALL_BUFFER: usize = 4 << 10;

/// How far the stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadUntil {
    /// To its end.
    End,
    /// To the description at its end, if there is one.
    Description,
}

/// Makes QEMU write to the socket in small pieces.
fn shrink_send_buffer(theirs: &UnixStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_send_buffer_size(theirs, SMALL_BUFFER).map_err(Into::into)
}

/// Closes our named descriptor in QEMU. It may already be gone: `migrate` uses it up.
pub(crate) fn close_fd(client: &mut Client) -> Result<(), QmpError> {
    match client.execute("closefd", json!({ "fdname": FD_NAME })) {
        Err(error) if !error.is_refusal() => Err(error),
        _ => Ok(()),
    }
}
