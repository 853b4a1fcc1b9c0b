//! Makes QEMU itself refuse what would harm a guest that is being moved, whichever program asks.
//!
//! A program that owns QEMU's monitor, as libvirt does, serves others too, and does not know of the
//! move; nor does a person with another monitor. QEMU refuses two things by means of a block node
//! that no device uses, with an image of a format for which QEMU cannot migrate guests (vdi):
//!
//! * From the beginning of the move: every migration of its own, and so also to save the guest to a
//!   file, and snapshots of its memory. (`xen-save-devices-state`, which this crate uses, asks for
//!   no migration blockers.) QEMU's reason names the node, and so hikkoshi.
//! * From when the device state is saved on ([`MoveLock::keep_paused`]): to run the guest. QEMU has
//!   deactivated all images then, and `cont` activates them again, or fails. An image cannot be
//!   activated if a lock says that another program writes to it (`file-posix.c`: byte 100 and
//!   following, one for each permission that is used). That lock is of an open file description
//!   (`fcntl(2)`), of which QEMU has a descriptor: it stays when this program is killed, and when
//!   libvirt's daemon is.
//!
//! A `cont` that fails has activated the guest's images, which come before the node
//! (`bdrv_activate_all` begins with those of devices): QEMU must not write to them when it ends.
//!
//! Tried with QEMU 7.2 and 10.0. A QEMU that is built without the format vdi gets an image in
//! qcow2, which does not keep it from migrating the guest.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use hikkoshi_linux::{lock_byte_shared, unlock_byte};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};
use crate::stream::remove_descriptor_sets;

/// The node's name: QEMU's messages contain it.
pub(crate) const NODE: &str = "moved-by-hikkoshi";

/// The name of the node below it, and of our descriptors in QEMU.
const FILE: &str = "moved-by-hikkoshi-file";

/// `RAW_LOCK_PERM_BASE` and the number of the bit `BLK_PERM_WRITE` (QEMU's `file-posix.c` and
/// `block-common.h`): locked by a program that writes to the image.
const WRITES: u32 = 100 + 1;

/// A QEMU that has the node.
#[derive(Debug)]
pub(crate) struct MoveLock {
    /// A descriptor of the same open file description that QEMU has.
    file: File,
    /// Whether QEMU refuses to migrate the guest.
    refuses_migration: bool,
}

impl MoveLock {
    /// Adds the node to QEMU; replaces one that a killed engine has left.
    ///
    /// If this fails, there may be a node all the same, when QEMU's answer was lost: call
    /// [`remove`].
    pub(crate) fn add(client: &mut Client) -> Result<Self, QmpError> {
        remove(client)?;
        match add_node(client, "vdi", &empty_vdi()) {
            Err(error) if error.is_refusal() => {
                tracing::debug!(%error, "adding a block node of the format vdi");
                // The refusal may be that of the monitor's owner, to whom QEMU's answer was lost.
                // The image of that node would not be the one that is locked.
                remove(client)?;
            }
            added => {
                return Ok(Self {
                    file: added?,
                    refuses_migration: true,
                });
            }
        }
        Ok(Self {
            file: add_node(client, "qcow2", &empty_qcow2())?,
            refuses_migration: false,
        })
    }

    /// Whether QEMU refuses to migrate the guest, and to save it.
    pub(crate) fn refuses_migration(&self) -> bool {
        self.refuses_migration
    }

    /// From now on QEMU refuses to run the guest, whose images it has deactivated. A system call of
    /// this process, for which neither QEMU nor the monitor's owner is needed.
    pub(crate) fn keep_paused(&self) -> io::Result<()> {
        Ok(lock_byte_shared(&self.file, WRITES)?)
    }

    /// Undoes [`keep_paused`](Self::keep_paused).
    pub(crate) fn let_run(&self) -> io::Result<()> {
        Ok(unlock_byte(&self.file, WRITES)?)
    }
}

/// Adds the node with this image. Returns a descriptor of an open file description that QEMU has,
/// too.
fn add_node(client: &mut Client, format: &str, content: &[u8]) -> Result<File, QmpError> {
    let (image, file) = create(content).map_err(|source| QmpError::Socket {
        doing: "creating an image in memory".to_owned(),
        source,
    })?;
    let answer = client.execute_with_fd("add-fd", json!({ "opaque": FILE }), image.as_fd())?;
    let set = answer.get("fdset-id").and_then(Value::as_u64);
    let set = set.ok_or_else(|| QmpError::unexpected("add-fd", answer.to_string()))?;
    let node = json!({
        "driver": format, "node-name": NODE, "read-only": true,
        "file": {
            "driver": "file", "node-name": FILE, "read-only": true, "locking": "on",
            "filename": format!("/dev/fdset/{set}"),
        },
    });
    let added = client.execute("blockdev-add", node);
    // The node has a copy. There are two sets if the answer to `add-fd` was lost with libvirt's
    // daemon: the command is repeated then.
    remove_descriptor_sets(client, FILE)?;
    match added {
        // It was repeated as well.
        Err(error) if error.is_refusal() && exists(client)? => {
            tracing::debug!(%error, "QEMU has added the node already");
        }
        added => drop(added?),
    }
    client.execute_with_fd("getfd", json!({ "fdname": FILE }), file.as_fd())?;
    Ok(file)
}

/// Whether QEMU has the node.
fn exists(client: &mut Client) -> Result<bool, QmpError> {
    let nodes = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
    let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut names = nodes.iter().filter_map(|node| node.get("node-name"));
    Ok(names.any(|name| name == NODE))
}

/// Removes all of it from QEMU, if there is any. A refusal may also be that of the monitor's owner,
/// whose daemon does not answer: so it is an error if QEMU still has the node.
pub(crate) fn remove(client: &mut Client) -> Result<(), QmpError> {
    match client.execute("closefd", json!({ "fdname": FILE })) {
        Err(error) if !error.is_refusal() => return Err(error),
        _ => {}
    }
    match client.execute("blockdev-del", json!({ "node-name": NODE })) {
        Err(error) if !error.is_refusal() || exists(client)? => return Err(error),
        _ => {}
    }
    remove_descriptor_sets(client, FILE)
}

/// Whether this block node is one of ours.
pub(crate) fn is_node(name: &str) -> bool {
    name == NODE || name == FILE
}

/// Whether this migration blocker is that of our node.
pub(crate) fn is_reason(reason: &str) -> bool {
    reason.contains(NODE)
}

/// An image in memory, opened twice: for the node, and for the lock.
fn create(content: &[u8]) -> io::Result<(File, File)> {
    let file = File::from(memfd_create("hikkoshi-move-lock", MemfdFlags::CLOEXEC)?);
    file.write_all_at(content, 0)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok((File::open(&path)?, File::open(&path)?))
}

const SECTOR: u32 = 512;
const MIB: u32 = 1 << 20;

/// A VDI image of one block of 1 MiB, which is not allocated (QEMU's `block/vdi.c`, `VdiHeader`):
/// the header and the block map, a sector each.
fn empty_vdi() -> [u8; 2 * SECTOR as usize] {
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

/// A qcow2 image of version 2 with clusters of 512 bytes, of which none has data (QEMU's
/// `docs/interop/qcow2.txt`): the header, the refcount table, its block and the L1 table, a cluster
/// each.
fn empty_qcow2() -> [u8; 4 * SECTOR as usize] {
    let mut image = [0; 4 * SECTOR as usize];
    let mut put = |offset: u32, bytes: &[u8]| {
        let offset = offset as usize;
        if let Some(place) = image.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, b"QFI\xfb");
    for (offset, number) in [
        (4, 2_u32), // version
        (20, 9),    // bits of a cluster's size
        (36, 1),    // entries of the L1 table
        (56, 1),    // clusters of the refcount table
    ] {
        put(offset, &number.to_be_bytes());
    }
    for (offset, number) in [
        (24, 64 * SECTOR),    // size of the disk: what one entry of the L1 table describes
        (40, 3 * SECTOR),     // offset of the L1 table
        (48, SECTOR),         // offset of the refcount table
        (SECTOR, 2 * SECTOR), // its entry: the offset of the block
    ] {
        put(offset, &u64::from(number).to_be_bytes());
    }
    // Each of the four clusters is used once.
    for cluster in 0..4 {
        put(2 * SECTOR + 2 * cluster, &1_u16.to_be_bytes());
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::qmp::scripted;

    /// Adds the node to a scripted QEMU: `answer` has the answers to its commands, or QEMU's
    /// reasons to refuse them. Returns also the requests.
    fn add_to_scripted(
        mut answer: impl FnMut(&str, &Value) -> Result<Value, &'static str> + Send + 'static,
    ) -> (Result<MoveLock, QmpError>, Vec<Value>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let server = scripted::serve(&path, 10, move |request| {
            let result = answer(scripted::command(request), &request["arguments"]);
            vec![scripted::answered(request, result)]
        });
        let mut client = Client::connect(&path, Duration::from_secs(20)).unwrap();
        let added = MoveLock::add(&mut client);
        drop(client);
        (added, server.join().unwrap())
    }

    /// The arguments with which this command was executed.
    fn arguments<'c>(requests: &'c [Value], name: &str) -> Vec<&'c Value> {
        let named = requests.iter();
        let named = named.filter(|request| scripted::command(request) == name);
        named.map(|request| &request["arguments"]).collect()
    }

    /// libvirt's daemon was killed when QEMU had executed `add-fd`, and then `blockdev-add`: each
    /// was executed twice.
    #[test]
    fn a_node_whose_addition_was_repeated_is_used_and_no_set_is_left() {
        let mut added = false;
        let (lock, got) = add_to_scripted(move |command, _| match command {
            "add-fd" => Ok(json!({ "fdset-id": 8, "fd": 30 })),
            "query-fdsets" if added => Ok(json!([
                { "fdset-id": 6, "fds": [{ "fd": 20, "opaque": "rdwr:libvirt" }] },
                { "fdset-id": 7, "fds": [{ "fd": 29, "opaque": FILE }] },
                { "fdset-id": 8, "fds": [{ "fd": 30, "opaque": FILE }] },
            ])),
            "query-fdsets" => Ok(json!([])),
            "blockdev-add" => {
                added = true;
                Err("Duplicate nodes with node-name='moved-by-hikkoshi'")
            }
            "query-named-block-nodes" if added => Ok(json!([
                { "node-name": "libvirt-1-format" }, { "node-name": NODE },
            ])),
            "query-named-block-nodes" => Ok(json!([])),
            "blockdev-del" => Err("Failed to find node with node-name='moved-by-hikkoshi'"),
            _ => Ok(json!({})),
        });
        assert!(lock.unwrap().refuses_migration());
        let removed = arguments(&got, "remove-fd");
        assert_eq!(
            removed,
            [&json!({ "fdset-id": 7 }), &json!({ "fdset-id": 8 })]
        );
        assert_eq!(arguments(&got, "blockdev-add").len(), 1, "{got:?}");
        assert_eq!(arguments(&got, "getfd"), [&json!({ "fdname": FILE })]);
    }

    #[test]
    fn a_qemu_without_vdi_gets_another_format() {
        let (lock, got) = add_to_scripted(|command, arguments| match command {
            "add-fd" => Ok(json!({ "fdset-id": 8, "fd": 30 })),
            "query-fdsets" | "query-named-block-nodes" => Ok(json!([])),
            "blockdev-add" if arguments["driver"] == "vdi" => Err("Unknown driver 'vdi'"),
            _ => Ok(json!({})),
        });
        assert!(!lock.unwrap().refuses_migration());
        let tried: Vec<_> = arguments(&got, "blockdev-add")
            .iter()
            .map(|arguments| arguments["driver"].clone())
            .collect();
        assert_eq!(tried, ["vdi", "qcow2"]);
    }

    #[test]
    fn a_qemu_that_adds_no_node_is_an_error() {
        let (lock, got) = add_to_scripted(|command, _| match command {
            "add-fd" => Ok(json!({ "fdset-id": 8, "fd": 30 })),
            "query-fdsets" | "query-named-block-nodes" => Ok(json!([])),
            "blockdev-add" => Err("no"),
            _ => Ok(json!({})),
        });
        assert!(lock.unwrap_err().is_refusal());
        assert!(arguments(&got, "getfd").is_empty(), "{got:?}");
    }

    /// The daemon that owns the monitor does not answer, or QEMU refuses: the node is still there.
    #[test]
    fn a_node_that_stays_is_an_error() {
        let (lock, got) = add_to_scripted(|command, _| match command {
            "blockdev-del" => Err("the daemon has not answered for 25 s"),
            "query-named-block-nodes" => Ok(json!([{ "node-name": NODE }])),
            _ => Ok(json!({})),
        });
        assert!(lock.unwrap_err().is_refusal());
        assert!(arguments(&got, "blockdev-add").is_empty(), "{got:?}");
    }

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
