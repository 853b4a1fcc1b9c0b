//! Disks: copied with their guest, or read by direct I/O.

pub(crate) mod copied;
mod copied_devices;
mod copied_faults;
mod copied_given_up;
pub(crate) mod copied_images;
mod direct_io;
