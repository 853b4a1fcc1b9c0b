//! The guest's disks, where they are copied: what QEMU calls them, and what can be copied.
//!
//! The source's QEMU copies a disk by a block job (`blockdev-mirror`) to a block node of the driver
//! `nbd`, and the destination's QEMU serves its disk by the NBD protocol (`block-export-add`). Both
//! sockets are passed to QEMU as descriptors: nothing has a name that others could use.

mod allocated;
pub(crate) mod copy_error;
mod image;
mod job;
pub(crate) mod job_speed;
pub(crate) mod jobs;
mod list;
pub(crate) mod nbd;
mod select;
mod select_error;
pub(crate) mod sent_image;
mod shared;

pub(crate) use allocated::allocated;
pub(crate) use image::{ImageFile, same_image};
pub(crate) use list::{BlockDisk, device_id, is_file, list};
pub use select::DiskSelection;
pub(crate) use select::{CopiedDisk, choose};
pub use select_error::SelectError;

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
