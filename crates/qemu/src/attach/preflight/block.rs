//! How each block driver writes the guest's memory.
//!
//! A guest's read with `cache=none` is direct I/O: the kernel pins the guest's
//! pages, and the disk's controller writes into them. The dirty log sees the
//! pinning, but not the write. The engine therefore drains the disks after it has
//! taken the log of some pages and before it copies them (`pinning.rs`). This covers
//! the drivers that read files and host devices by system calls, with any format
//! and filter above them. Network drivers in user space copy data with QEMU's
//! threads and need no drain.
//!
//! Other drivers do not read by system calls into QEMU's buffers. They register the
//! guest's memory with a device or another process once, for as long as the disk
//! exists. Every page is then pinned or mapped from the start: pre-copy rounds see
//! no writes, and a destination has no missing pages for post-copy. No mode
//! supports these drivers.

use serde_json::{Value, json};

use super::Refusal;
use super::devices::{MemoryWrites, OTHER_PROCESS};
use crate::disks;
use crate::disks::move_lock;
use crate::qmp::{Client, QmpError};

const DMA: &str = "a device of the host writes into the guest's memory by DMA, and all of the memory is \
     pinned for that: its writes cannot be tracked, so pages would be lost in any mode";
const FIXED: &str = "it registers all of the guest's memory with io_uring, which pins it: the disk's \
     writes cannot be tracked, so pages would be lost in any mode";

/// How a block driver (`drv` of `query-named-block-nodes`) writes memory.
pub(crate) fn of_driver(driver: &str) -> MemoryWrites {
    match driver {
        "nvme" | "nvme-io_uring" | "virtio-blk-vhost-vdpa" | "virtio-blk-vfio-pci" => {
            MemoryWrites::Refused(DMA)
        }
        "virtio-blk-vhost-user" => MemoryWrites::Refused(OTHER_PROCESS),
        "io_uring" => MemoryWrites::Refused(FIXED),
        _ if DRIVERS.iter().any(|list| list.contains(&driver)) => MemoryWrites::Tracked,
        _ => MemoryWrites::Unknown,
    }
}

const DRIVERS: [&[&str]; 4] = [
    // By system calls into QEMU's own buffers.
    &["file", "host_cdrom", "host_device"],
    // Over a network, by QEMU's threads.
    &[
        "ftp", "ftps", "gluster", "http", "https", "iscsi", "nbd", "nfs", "rbd", "ssh",
    ],
    // Image formats: they read through other drivers.
    &[
        "bochs",
        "cloop",
        "dmg",
        "luks",
        "parallels",
        "qcow",
        "qcow2",
        "qed",
        "raw",
        "vdi",
        "vhdx",
        "vmdk",
        "vpc",
        "vvfat",
    ],
    // Filters, and drivers for tests.
    &[
        "backup-top",
        "blkdebug",
        "blklogwrites",
        "blkreplay",
        "blkverify",
        "commit_top",
        "compress",
        "copy-before-write",
        "copy-on-read",
        "mirror_top",
        "null-aio",
        "null-co",
        "preallocate",
        "quorum",
        "replication",
        "snapshot-access",
        "throttle",
    ],
];

/// A block node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) file: String,
    pub(crate) direct: bool,
}

/// Every block node of this QEMU, but for those that hikkoshi has added.
pub(crate) fn nodes(client: &mut Client) -> Result<Vec<Node>, QmpError> {
    let answer = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
    let rows = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-named-block-nodes", "not a list"))?;
    let nodes = rows.iter().map(node);
    let is_guests = |node: &Result<Node, _>| !matches!(node, Ok(node) if move_lock::is_node(&node.name) || disks::is_ours(&node.name));
    nodes.filter(is_guests).collect()
}

/// A node that cannot be parsed is an error and is not skipped.
fn node(row: &Value) -> Result<Node, QmpError> {
    let text = |key| row.get(key).and_then(Value::as_str).map(str::to_owned);
    let direct = row
        .get("cache")
        .and_then(|cache| cache.get("direct"))
        .and_then(Value::as_bool);
    match (text("drv"), direct) {
        (Some(driver), Some(direct)) => Ok(Node {
            name: text("node-name").unwrap_or_default(),
            driver,
            file: text("file").unwrap_or_default(),
            direct,
        }),
        _ => Err(QmpError::unexpected(
            "query-named-block-nodes",
            row.to_string(),
        )),
    }
}

/// How libiscsi transfers data. Over TCP its threads copy; over RDMA (iSER) it
/// registers buffers with the adapter, which then writes into memory by DMA.
///
/// QEMU reports a node as the URL from its options, or as `json:` with these
/// options.
fn of_iscsi(file: &str) -> MemoryWrites {
    let transport = match file.strip_prefix("json:") {
        Some(options) => serde_json::from_str::<Value>(options)
            .ok()
            .and_then(|options| Some(options.get("transport")?.as_str()?.to_owned())),
        None if file.starts_with("iser:") => Some("iser".to_owned()),
        None => Some("tcp".to_owned()),
    };
    match transport.as_deref() {
        Some("tcp") => MemoryWrites::Tracked,
        Some("iser") => MemoryWrites::Refused(DMA),
        // QEMU truncates long descriptions.
        _ => MemoryWrites::Unknown,
    }
}

/// How a node writes memory.
pub(super) fn of_node(node: &Node) -> MemoryWrites {
    match of_driver(&node.driver) {
        MemoryWrites::Tracked if node.driver == "iscsi" => of_iscsi(&node.file),
        writes => writes,
    }
}

/// Whether this driver reads through other nodes: an image format or a filter.
pub(super) fn is_layer(driver: &str) -> bool {
    let [_, _, formats, filters] = DRIVERS;
    // These two are not filters: they have no node below them.
    let is_end = driver.starts_with("null-") || driver == "vvfat";
    !is_end && (formats.contains(&driver) || filters.contains(&driver))
}

/// Checks all nodes: those that cannot be moved.
pub(crate) fn check(nodes: &[Node], is_allowed: impl Fn(&str) -> bool) -> Vec<Refusal> {
    let refusal = |node: &Node| {
        match of_node(node) {
            MemoryWrites::Tracked => None,
            // No block driver is `UntilPause`.
            MemoryWrites::Refused(why) | MemoryWrites::UntilPause(why) => Some(Refusal::Disk {
                node: node.name.clone(),
                driver: node.driver.clone(),
                why,
            }),
            MemoryWrites::Unknown if is_allowed(&node.driver) => None,
            MemoryWrites::Unknown => Some(Refusal::Unknown {
                path: format!("the disk with the block node {}", node.name),
                kind: node.driver.clone(),
            }),
        }
    };
    nodes.iter().filter_map(refusal).collect()
}
