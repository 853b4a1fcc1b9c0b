//! The socket through which QEMU's device state goes, one end of it in QEMU.
//!
//! QEMU writes (and reads) with its own threads whenever it likes; a thread of
//! ours is at the other end all the time, so that QEMU never waits for us.
//!
//! # A guest that its owner has paused
//!
//! When all is written QEMU calls its migration complete, and the guest
//! *postmigrate*: a state that QEMU leaves only by running the guest. One that
//! its owner had paused could not be brought back to that. So its stream is
//! not read to the end ([`ReadUntil::Description`]). The devices' state is followed
//! by a description of it for people, which no QEMU looks at when it loads;
//! that is where the reading stops. QEMU waits in the middle of writing it, and
//! whether it ends well ([`DeviceStateReader::finish`]) or not (the reader is dropped, and
//! QEMU puts the guest back to what it was) is still ours to say.
//!
//! QEMU 7.2 makes *postmigrate* of that, too; 10.0 was tried and does not.

mod reader;
mod writer;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde_json::json;

pub(crate) use self::reader::DeviceStateReader;
pub(crate) use self::writer::DeviceStateWriter;
use crate::qmp::{Client, QmpError};

/// The name of our descriptor inside QEMU.
pub(crate) const FD_NAME: &str = "hikkoshi";

/// Gives QEMU one end of a new socket, by the name of [`FD_NAME`].
pub(crate) fn open(client: &mut Client, until: ReadUntil) -> Result<UnixStream, QmpError> {
    let failed = |source| QmpError::Socket {
        doing: "the device state's socket".to_owned(),
        source,
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    if until == ReadUntil::Description {
        shrink_send_buffer(&theirs).map_err(failed)?;
    }
    client.send_fd(FD_NAME, theirs.as_fd())?;
    // QEMU has its own copy; with ours closed, QEMU's end is the only one.
    Ok(ours)
}

/// What goes through the socket at once when QEMU is to wait in the middle of
/// the description: much less than that has (53 KB were seen).
const SMALL_BUFFER: usize = 4 << 10;

/// How far the stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadUntil {
    /// To its end.
    End,
    /// To where only its description follows, if there is one.
    Description,
}

/// Makes QEMU write to our end of the socket in small pieces.
fn shrink_send_buffer(theirs: &UnixStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_send_buffer_size(theirs, SMALL_BUFFER).map_err(Into::into)
}

/// Forgets our descriptor in QEMU. That there is none is fine: `migrate` takes
/// it.
pub(crate) fn close_fd(client: &mut Client) -> Result<(), QmpError> {
    match client.execute("closefd", json!({ "fdname": FD_NAME })) {
        Err(error) if !error.is_refusal() => Err(error),
        _ => Ok(()),
    }
}
