//! The file into which QEMU saves the device state.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use hikkoshi_wire::MAX_DEVICE_STATE;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};

/// Marks the descriptor sets for device states in QEMU (`query-fdsets`).
const OPAQUE: &str = "hikkoshi";

/// A file in memory that QEMU opens as `/dev/fdset/N`. QEMU writes all of it before it answers, so
/// no thread has to read meanwhile, and QEMU never waits for us. A pipe does not work with all
/// versions: `/dev/fdset/N` is truncated when it is opened.
#[derive(Debug)]
pub(crate) struct SaveFile {
    file: File,
    /// The number of the descriptor set in QEMU.
    set: u64,
}

impl SaveFile {
    /// Creates the file and passes it to QEMU.
    pub(crate) fn pass(client: &mut Client) -> Result<Self, QmpError> {
        let (file, writable) = create().map_err(|source| QmpError::Socket {
            doing: "creating the file for the device state".to_owned(),
            source,
        })?;
        let arguments = json!({ "opaque": OPAQUE });
        let answer = client.execute_with_fd("add-fd", arguments, writable.as_fd())?;
        let set = answer.get("fdset-id").and_then(Value::as_u64);
        let set = set.ok_or_else(|| QmpError::unexpected("add-fd", answer.to_string()))?;
        Ok(Self { file, set })
    }

    /// Its path in QEMU.
    pub(crate) fn path(&self) -> String {
        format!("/dev/fdset/{}", self.set)
    }

    /// Everything that QEMU has written.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let bytes = self.file.metadata()?.len();
        if bytes > MAX_DEVICE_STATE {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("the device state has {bytes} bytes, more than {MAX_DEVICE_STATE}"),
            ));
        }
        let mut state = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut state, 0)?;
        Ok(state)
    }
}

impl Drop for SaveFile {
    fn drop(&mut self) {
        // QEMU 7.2 keeps its descriptor as long as the guest is paused.
        let _ = self.file.set_len(0);
    }
}

/// The file, for reading, and a descriptor that can only write it: QEMU looks for one with the
/// access with which it opens the path.
fn create() -> io::Result<(File, File)> {
    let file = File::from(memfd_create("hikkoshi-device-state", MemfdFlags::CLOEXEC)?);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let writable = File::options().write(true).open(path)?;
    Ok((file, writable))
}

/// Removes the descriptor sets for device states from QEMU, also those of a killed engine.
pub(crate) fn remove_all(client: &mut Client) -> Result<(), QmpError> {
    remove_sets(client, OPAQUE)
}

/// Removes all descriptor sets with this mark from QEMU.
pub(crate) fn remove_sets(client: &mut Client, mark: &str) -> Result<(), QmpError> {
    let sets = client.execute("query-fdsets", json!({}))?;
    let sets = sets.as_array().map(Vec::as_slice).unwrap_or_default();
    for set in sets {
        let ours = set.get("fds").and_then(Value::as_array).is_some_and(|fds| {
            let mut opaques = fds.iter().filter_map(|fd| fd.get("opaque"));
            opaques.any(|opaque| opaque == mark)
        });
        if !ours {
            continue;
        }
        let arguments = json!({ "fdset-id": set.get("fdset-id") });
        match client.execute("remove-fd", arguments) {
            Err(error) if !error.is_refusal() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
