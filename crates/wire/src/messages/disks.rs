//! The guest's disks, as described to the other side.
//!
//! A disk is not part of the guest's memory: either both sides have the same one, or its content is
//! copied. The source says which, and the destination compares.

use serde::{Deserialize, Serialize};

use super::bounded::{Label, List};

/// The most disks of one guest.
pub const MAX_DISKS: usize = 1024;

/// The most disks that are copied. Each has a link of its own.
pub const MAX_COPIED_DISKS: usize = 32;

/// The most images below that of one disk.
pub const MAX_BACKING: usize = 64;

/// The most names of one image.
pub const MAX_IMAGE_NAMES: usize = 16;

/// All disks of a guest that have a medium.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDisks {
    /// Random: names the marks ([`ImageMark`]) that the source's images have while they are
    /// compared.
    pub mark: [u8; 16],
    /// The disks; at most [`MAX_DISKS`]. The copied ones are numbered by their order.
    #[serde(with = "List::<MAX_DISKS>")]
    pub disks: Vec<Disk>,
}

impl GuestDisks {
    /// The disks that are copied.
    pub fn copied(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter().filter(|disk| disk.plan.is_copied())
    }
}

/// A disk with a medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The device that has it, as the hypervisor names it: the same on both sides.
    #[serde(with = "Label")]
    pub device: Box<str>,
    /// The name that its owner gave to the disk itself. May be empty.
    #[serde(with = "Label")]
    pub drive: Box<str>,
    /// Where the guest sees it, as in [`Device::place`](crate::Device::place). Empty: not known.
    #[serde(with = "Label")]
    pub place: Box<str>,
    /// Its size in bytes, as the guest sees it: that of the image's content in any format. `None`:
    /// not known.
    pub bytes: Option<u64>,
    /// Whether the guest cannot write to it.
    pub read_only: bool,
    /// What the guest has it as.
    pub kind: DiskKind,
    /// What is to be done with it.
    pub plan: DiskPlan,
    /// Its image.
    pub image: DiskImage,
    /// The images below that.
    pub backing: Backing,
}

/// The images below that of a disk: its backing file, the backing file of that, and so on. They are
/// found by names that each host resolves itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// They are not known.
    Unknown,
    /// These, from the top; at most [`MAX_BACKING`].
    Known(#[serde(with = "List::<MAX_BACKING>")] Vec<DiskImage>),
}

impl Backing {
    /// Those that are known.
    #[must_use]
    pub fn images(&self) -> &[DiskImage] {
        match self {
            Self::Unknown => &[],
            Self::Known(images) => images,
        }
    }
}

/// What a guest has a disk as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskKind {
    /// A disk that stays in its device.
    Fixed,
    /// A medium that can be changed, such as a CD.
    Removable,
    /// Flash memory. Its content moves with the guest's memory, and is written to the destination's
    /// image when the guest runs there.
    Flash,
}

/// What is to be done with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskPlan {
    /// Both sides must have the same one, and that must be known.
    Same,
    /// Both sides have the same one: the guest's owner has said so.
    Shared,
    /// The source copies it.
    Copied {
        /// Whether the destination's image must be encrypted, as the source's is.
        encrypted: bool,
    },
}

impl DiskPlan {
    /// Whether the source copies the disk.
    #[must_use]
    pub fn is_copied(self) -> bool {
        matches!(self, Self::Copied { .. })
    }
}

/// The image of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskImage {
    /// Its file, device or URL, as the hypervisor names it; for people.
    #[serde(with = "Label")]
    pub file: Box<str>,
    /// Its format, such as `qcow2`. Empty: not known.
    #[serde(with = "Label")]
    pub format: Box<str>,
    /// What it is on, for people: the type of a file system, a device or a network protocol.
    #[serde(with = "Label")]
    pub storage: Box<str>,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Names of its file or device. Different names say nothing. At most [`MAX_IMAGE_NAMES`].
    #[serde(with = "List::<MAX_IMAGE_NAMES>")]
    pub names: Vec<ImageName>,
    /// Whether it has the mark of this comparison.
    pub mark: ImageMark,
    /// A checksum of parts of its file, if it is a raw medium, or an image below another: nobody
    /// writes to these. Different checksums are those of different contents.
    pub checksum: Option<u32>,
}

/// A name of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageName {
    /// The name.
    #[serde(with = "Label")]
    pub name: Box<str>,
    /// Whether only one image has it: then the same name at both sides shows that they have the
    /// same image. Other names can also be those of copies of an image.
    pub unique: bool,
}

/// A mark that the source has set on the file of an image. If the destination's file has it, it is
/// the same file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageMark {
    /// None was set, or it is not known whether there is one.
    #[default]
    Unknown,
    /// There is none.
    Absent,
    /// That of the source's disk with this number in [`GuestDisks::disks`].
    Of(u32),
}

impl DiskImage {
    /// Whether both are one image, as far as is known. `other`: that of the other side, in the same
    /// comparison.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.mark, other.mark) {
            (ImageMark::Of(one), ImageMark::Of(other)) => one == other,
            (ImageMark::Of(_), ImageMark::Absent) | (ImageMark::Absent, ImageMark::Of(_)) => false,
            _ => self.common_names(other).any(|name| name.unique),
        }
    }

    /// Whether both can be one image: they have a name in common, or are known to be the same.
    #[must_use]
    pub fn may_be_same(&self, other: &Self) -> bool {
        self.is_same(other) || self.common_names(other).next().is_some()
    }

    fn common_names<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a ImageName> {
        let names = self.names.iter().filter(|name| !name.name.is_empty());
        names.filter(|name| other.names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(names: &[(&str, bool)], mark: ImageMark) -> DiskImage {
        let name = |&(name, unique): &(&str, bool)| ImageName {
            name: name.into(),
            unique,
        };
        DiskImage {
            names: names.iter().map(name).collect(),
            mark,
            ..DiskImage::default()
        }
    }

    #[test]
    fn a_unique_name_or_the_mark_shows_that_it_is_one_image() {
        use ImageMark::{Absent, Of, Unknown};
        let (host, lvm) = (("host:1:2", true), ("lvm:a", false));
        for (one, other, same, may_be) in [
            (image(&[host], Unknown), image(&[host], Unknown), true, true),
            (image(&[lvm], Unknown), image(&[lvm], Unknown), false, true),
            (image(&[], Unknown), image(&[], Unknown), false, false),
            (
                image(&[host], Unknown),
                image(&[("host:1:3", true)], Unknown),
                false,
                false,
            ),
            (image(&[], Of(1)), image(&[], Of(1)), true, true),
            (image(&[host], Of(1)), image(&[host], Of(2)), false, true),
            // The file of that name there is another one.
            (image(&[host], Of(1)), image(&[host], Absent), false, true),
            (image(&[host], Of(1)), image(&[host], Unknown), true, true),
            (
                image(&[("", true)], Unknown),
                image(&[("", true)], Unknown),
                false,
                false,
            ),
        ] {
            assert_eq!(one.is_same(&other), same, "{one:?} {other:?}");
            assert_eq!(other.is_same(&one), same, "{one:?} {other:?}");
            assert_eq!(one.may_be_same(&other), may_be, "{one:?} {other:?}");
        }
    }
}
