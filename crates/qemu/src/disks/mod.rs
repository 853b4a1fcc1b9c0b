//! The guest's disks: what QEMU calls them, which the destination must have, and which are copied.
//!
//! Both sides describe their disks (`describe.rs`), with names of the images by which they
//! recognise one that both have open (`image.rs`, `shared.rs`, `network.rs`, `marks.rs`). The
//! destination decides (`destination/compare_disks/`).
//!
//! The source's QEMU copies a disk by a block job (`blockdev-mirror`) to a block node of the driver
//! `nbd`, and the destination's QEMU serves its disk by the NBD protocol (`block-export-add`). Both
//! sockets are passed to QEMU as descriptors: nothing has a name that others could use.

mod allocated;
pub(crate) mod copy_error;
mod describe;
pub(crate) mod end_copies;
pub(crate) mod exports;
pub(crate) mod guest_writes;
mod image;
pub(crate) mod job_speed;
mod left_behind;
mod list;
pub(crate) mod marks;
pub(crate) mod mirror;
mod mirror_status;
pub(crate) mod move_lock;
pub(crate) mod nbd;
mod network;
mod select;
mod select_error;
mod shared;

pub(crate) use allocated::allocated;
pub(crate) use describe::describe;
pub(crate) use image::ImageFile;
pub(crate) use list::{BlockDisk, device_id, image_file, is_cd, is_file, list};
pub use select::{ChosenDisks, DiskSelection, OfferedDisks};
pub(crate) use select::{CopiedDisk, choose};
pub use select_error::SelectError;
pub(crate) use shared::is_of_one_host;
pub use shared::shared_file_system;

use self::marks::Owner;
use crate::qmp::{Client, QmpError};

/// The beginning of the name of everything that hikkoshi adds to QEMU for a copy.
const PREFIX: &str = "hikkoshi-disk-";

/// The name for the copy of a disk: of the job, of the target's node, of the export, and of the
/// descriptor.
pub(crate) fn name(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// The name of the node that QEMU puts above the disk's own while it is copied.
pub(crate) fn filter_name(number: usize) -> String {
    format!("{PREFIX}{number}-copied")
}

/// Removes the marks that a killed engine has left on the images of the guest's disks. Only for the
/// engine that has exclusive access to its QEMU.
pub(crate) fn remove_left_marks(client: &mut Client) -> Result<(), QmpError> {
    let Some(owner) = client.peer().and_then(Owner::of_process) else {
        return Ok(());
    };
    for disk in list(client)? {
        if let Some(image) = ImageFile::of_disk(client, &disk.file)? {
            marks::remove_left(owner, &image);
        }
    }
    Ok(())
}

/// Whether that is the name of a node or job that hikkoshi has added for a copy.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised_and_short_enough_for_qemu() {
        for name in [name(31), filter_name(31)] {
            assert!(is_ours(&name) && name.len() < 32, "{name}");
        }
        assert!(!is_ours("disk0") && !is_ours("moved-by-hikkoshi"));
    }
}
