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
//! # Files and sockets
//!
//! At the source QEMU writes into a file in memory (`save_file.rs`). At the destination it reads
//! from a socket (`open`): a thread of ours writes at our end (`socket_writer.rs`), so the engine
//! never waits for QEMU.

mod asynchronous_faults;
mod format;
mod incoming_stream;
mod parse_device_state;
mod save_file;
mod socket_writer;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde_json::json;

pub use self::format::StreamError;
pub use self::incoming_stream::{StreamBlock, head, tail, whole};
pub(crate) use self::incoming_stream::{beginning, filler, first_pages, sections};
pub(crate) use self::parse_device_state::virtual_clock;
pub use self::parse_device_state::{SavedDevices, Section};
pub(crate) use self::save_file::SaveFile;
pub(crate) use self::save_file::remove_all as remove_save_files;
pub(crate) use self::save_file::remove_sets as remove_descriptor_sets;
pub(crate) use self::socket_writer::DeviceStateWriter;
use crate::qmp::{Client, QmpError};

/// The name of our descriptor inside QEMU.
pub(crate) const FD_NAME: &str = "hikkoshi";

/// Sends QEMU one end of a new socket, with the name [`FD_NAME`].
pub(crate) fn open(client: &mut Client) -> Result<UnixStream, QmpError> {
    let (ours, theirs) = UnixStream::pair().map_err(|source| QmpError::Socket {
        doing: "creating the socket for the device state".to_owned(),
        source,
    })?;
    client.execute_with_fd("getfd", json!({ "fdname": FD_NAME }), theirs.as_fd())?;
    // QEMU has its own copy. Ours is closed here, so QEMU's is the only one.
    Ok(ours)
}

/// Closes our named descriptor in QEMU. It may already be gone: `migrate-incoming` uses it up.
pub(crate) fn close_fd(client: &mut Client) -> Result<(), QmpError> {
    match client.execute("closefd", json!({ "fdname": FD_NAME })) {
        Err(error) if !error.is_refusal() => Err(error),
        _ => Ok(()),
    }
}
