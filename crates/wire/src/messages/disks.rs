//! Disks whose content moves with the guest.

use serde::{Deserialize, Serialize};

use super::bounded::Label;

/// The most disks of one migration. Each has a link of its own.
pub const MAX_DISKS: usize = 32;

/// A disk whose content the source copies to the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The device that has it, as the hypervisor names it: the same on both sides.
    #[serde(with = "Label")]
    pub device: Box<str>,
    /// The name that its owner gave to the disk itself. May be empty.
    #[serde(with = "Label")]
    pub drive: Box<str>,
    /// Its size in bytes, as the guest sees it.
    pub bytes: u64,
    /// Names of the file or device of its image, separated by spaces. If both sides have a name in
    /// common, it is the same image. The first one is of the running host; the others are those of
    /// network file systems and of devices that several hosts reach. Empty: not known. After the
    /// word `others:` names of disks follow that are not copied: the destination must not write to
    /// these either.
    ///
    /// Two words before the names are none: `place:` and where the guest sees the disk, as in
    /// [`Device::place`](crate::Device::place), and `encrypted:` if the destination's image must
    /// be encrypted as the source's is.
    #[serde(with = "Label")]
    pub image: Box<str>,
}
