//! Makes QEMU itself refuse what would harm a guest that is being moved, whichever program asks.
//!
//! A program that owns QEMU's monitor, as libvirt does, serves others too, and does not know of the
//! move. QEMU refuses two things by means of a block node that no device uses, with an image of a
//! format for which QEMU cannot migrate guests:
//!
//! * From the beginning of the move: every migration of its own, and so also to save the guest to a
//!   file, and snapshots of its memory. (`xen-save-devices-state`, which this crate uses, asks for
//!   no migration blockers.) QEMU's reason names the node, and so hikkoshi.
//! * From *commit* on ([`MoveLock::keep_paused`]): to run the guest. When the device state is
//!   saved, QEMU deactivates all images, and `cont` activates them again, or fails. An image cannot
//!   be activated if a lock says that another program writes to it (`file-posix.c`: byte 100 and
//!   following, one for each permission that is used). That lock is of an open file description
//!   (`fcntl(2)`), of which QEMU has a descriptor: it stays when this program is killed, and when
//!   libvirt's daemon is.
//!
//! Tried with QEMU 7.2 and 10.0. A QEMU that is built without the format refuses neither.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use hikkoshi_linux::{lock_byte_shared, unlock_byte};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};

/// The node's name: QEMU's messages contain it.
pub(crate) const NODE: &str = "moved-by-hikkoshi";

/// The name of the node below it, and of our descriptor in QEMU.
const FILE: &str = "moved-by-hikkoshi-file";

/// `RAW_LOCK_PERM_BASE` and the number of the bit `BLK_PERM_WRITE` (QEMU's `file-posix.c` and
/// `block-common.h`): locked by a program that writes to the image.
const WRITES: u32 = 100 + 1;

/// A QEMU that refuses to migrate the guest.
#[derive(Debug)]
pub(super) struct MoveLock {
    /// A descriptor of the same open file description that QEMU has.
    file: File,
}

impl MoveLock {
    /// Adds the node to QEMU; replaces one that a killed engine has left.
    pub(super) fn add(client: &mut Client) -> Result<Self, QmpError> {
        remove(client)?;
        let (image, file) = create().map_err(|source| QmpError::Socket {
            doing: "creating an image in memory".to_owned(),
            source,
        })?;
        let answer = client.execute_with_fd("add-fd", json!({ "opaque": FILE }), image.as_fd())?;
        let set = answer.get("fdset-id").and_then(Value::as_u64);
        let set = set.ok_or_else(|| QmpError::unexpected("add-fd", answer.to_string()))?;
        let node = json!({
            "driver": "vdi", "node-name": NODE, "read-only": true,
            "file": {
                "driver": "file", "node-name": FILE, "read-only": true, "locking": "on",
                "filename": format!("/dev/fdset/{set}"),
            },
        });
        let added = client.execute("blockdev-add", node);
        // The node has a copy.
        client.execute("remove-fd", json!({ "fdset-id": set }))?;
        added?;
        client.execute_with_fd("getfd", json!({ "fdname": FILE }), file.as_fd())?;
        Ok(Self { file })
    }

    /// From now on QEMU refuses to run the guest, whose images it has deactivated. A system call of
    /// this process, for which neither QEMU nor the monitor's owner is needed.
    pub(super) fn keep_paused(&self) -> io::Result<()> {
        Ok(lock_byte_shared(&self.file, WRITES)?)
    }

    /// Undoes [`keep_paused`](Self::keep_paused).
    pub(super) fn let_run(&self) -> io::Result<()> {
        Ok(unlock_byte(&self.file, WRITES)?)
    }
}

/// Removes all of it from QEMU, if there is any.
pub(super) fn remove(client: &mut Client) -> Result<(), QmpError> {
    for (command, arguments) in [
        ("closefd", json!({ "fdname": FILE })),
        ("blockdev-del", json!({ "node-name": NODE })),
    ] {
        match client.execute(command, arguments) {
            Err(error) if !error.is_refusal() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether this block node is one of ours.
pub(crate) fn is_node(name: &str) -> bool {
    name == NODE || name == FILE
}

/// Whether this migration blocker is that of our node.
pub(crate) fn is_reason(reason: &str) -> bool {
    reason.contains(NODE)
}

/// An empty image in memory, opened twice: for the node, and for the lock.
fn create() -> io::Result<(File, File)> {
    let file = File::from(memfd_create("hikkoshi-move-lock", MemfdFlags::CLOEXEC)?);
    file.write_all_at(&empty_image(), 0)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((File::open(&path)?, File::open(&path)?))
}

const SECTOR: u32 = 512;
const MIB: u32 = 1 << 20;

/// A VDI image of one block of 1 MiB, which is not allocated (QEMU's `block/vdi.c`, `VdiHeader`):
/// the header and the block map, a sector each.
fn empty_image() -> [u8; 2 * SECTOR as usize] {
    let mut image = [0; 2 * SECTOR as usize];
    let mut put = |offset: usize, bytes: &[u8]| {
        if let Some(place) = image.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    for (offset, number) in [
        (0x40, 0xbeda_107f), // signature
        (0x44, 0x0001_0001), // version 1.1
        (0x48, 0x180),       // size of the header
        (0x4c, 1),           // grows
        (0x154, SECTOR),     // offset of the block map
        (0x158, 2 * SECTOR), // offset of the data
        (0x168, SECTOR),     // size of a sector
        (0x170, MIB),        // size of the disk, the lower half of 64 bits
        (0x178, MIB),        // size of a block
        (0x180, 1),          // number of blocks
    ] {
        put(offset, &u32::to_le_bytes(number));
    }
    // Two UUIDs: of the image, and of its last snapshot.
    put(
        0x188,
        NODE.as_bytes().first_chunk::<16>().unwrap_or(&[1; 16]),
    );
    put(0x198, &[1; 16]);
    // No block is allocated.
    put(SECTOR as usize, &u32::MAX.to_le_bytes());
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_and_the_nodes_are_recognised() {
        let reason =
            "The vdi format used by node 'moved-by-hikkoshi' does not support live migration";
        assert!(is_reason(reason) && !is_reason("The vdi format used by node 'disk'"));
        assert!(is_node(NODE) && is_node(FILE) && !is_node("libvirt-1-format"));
        // QEMU's limit (`BDRVNodeName`).
        assert!(FILE.len() < 32);
    }
}
