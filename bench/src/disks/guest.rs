//! The guest, and its disk on both hosts.

use hikkoshi_lab::{DiskContent, DiskFormat, DiskImage, Lab, LabError, Workload};

use super::Sizes;
use crate::plan::{CLIENTS_PORT, NetworkKind};

/// The line between the hosts.
pub(super) const LINE: NetworkKind = NetworkKind::Gbit(1);

/// The guest's writes a second, and the size of each, KiB.
pub(super) const WRITES: u64 = 100;
pub(super) const WRITE_KIB: u64 = 64;

/// Pages of memory that it writes, MiB, and how many a second.
const WRITTEN_MIB: u64 = 64;
const PAGES: u64 = 2000;

/// Two threads write to the file on the disk, at a fixed rate together.
pub(super) fn workload() -> Workload {
    Workload::dirty(WRITTEN_MIB)
        .rate(PAGES)
        .with_server(CLIENTS_PORT)
        .option("mount", "/dev/vda")
        .option("disk", "/disk/blocks")
        .option("disk_threads", 2)
        .option("disk_chunk_kib", WRITE_KIB)
        .option("disk_mib", 4)
        .option("disk_write", 100)
        .option("disk_rate", WRITES)
}

/// The source's image, and the blank one of the destination; qcow2 both.
pub(super) fn images(lab: &Lab, sizes: Sizes) -> Result<[DiskImage; 2], LabError> {
    let content = DiskContent::FileSystem {
        mib: sizes.disk_mib,
        blocks_mib: sizes.file_mib,
    };
    let format = DiskFormat::Qcow2;
    Ok([
        DiskImage::new(lab, "from", format, content)?,
        DiskImage::blank(lab, None, "to", format, content)?,
    ])
}
