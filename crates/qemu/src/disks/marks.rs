//! Marks on image files, by which the destination sees that its QEMU has the same file open.
//!
//! A mark is an extended attribute of the file: its name is random and was never used before, so a
//! client of a network file system cannot have cached it. Its value is the number of the disk, and
//! whose mark it is. The source sets the marks before its guest is compared, and removes them
//! afterwards; it does so through the descriptors of its QEMU, not by the name of a file. File
//! systems without such attributes have no marks.
//!
//! Several guests that use a file can be compared at once. So a mark that was left is removed only
//! if it belongs to the same QEMU, by the engine that has exclusive access to that, or if it is
//! old.

use std::fs::File;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hikkoshi_wire::ImageMark;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::image::ImageFile;
use crate::process;
use crate::process::namespaces::NamespaceIdentity;

/// The beginning of the attribute's name; the random number follows.
const PREFIX: &str = "user.hikkoshi.";

/// The longest list of a file's attributes (`XATTR_LIST_MAX` in Linux).
const MAX_LIST: usize = 64 << 10;

/// How old a mark is that was left: a comparison takes seconds. Hosts may have different times.
const LEFT_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The QEMU whose images are marked: the boot, the process's number, and when it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner([u8; 28]);

/// The length of a mark's value: the number of the disk, the owner, and when it was set, in
/// seconds since 1970.
const VALUE: usize = 4 + 28 + 8;

impl Owner {
    /// The QEMU with this process. `None`: it has ended.
    pub(crate) fn of_process(pid: u32) -> Option<Self> {
        let boot = NamespaceIdentity::current().ok()?.boot_id.replace('-', "");
        let boot = u128::from_str_radix(&boot, 16).ok()?;
        let since = process::start_time(&*process::open(pid).ok()??).ok()?;
        let mut owner = [0; 28];
        owner[..16].copy_from_slice(&boot.to_be_bytes());
        owner[16..20].copy_from_slice(&pid.to_be_bytes());
        owner[20..].copy_from_slice(&since.to_be_bytes());
        Some(Self(owner))
    }
}

/// The value of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    disk: u32,
    owner: Owner,
    /// Since 1970.
    set: Duration,
}

impl Mark {
    fn to_bytes(self) -> [u8; VALUE] {
        let mut value = [0; VALUE];
        value[..4].copy_from_slice(&self.disk.to_be_bytes());
        value[4..32].copy_from_slice(&self.owner.0);
        value[32..].copy_from_slice(&self.set.as_secs().to_be_bytes());
        value
    }

    fn of_bytes(value: [u8; VALUE]) -> Option<Self> {
        Some(Self {
            disk: u32::from_be_bytes(*value.first_chunk()?),
            owner: Owner(value[4..32].try_into().ok()?),
            set: Duration::from_secs(u64::from_be_bytes(*value.last_chunk()?)),
        })
    }

    /// That of this name. `None`: the file has none, or another value.
    fn read(file: &File, name: &[u8]) -> Result<Option<Self>, Errno> {
        let mut value = [0; VALUE];
        match fgetxattr(file, name, &mut value)? {
            VALUE => Ok(Self::of_bytes(value)),
            _ => Ok(None),
        }
    }
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// The marks that are set. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Its name.
    pub(crate) number: [u8; 16],
    owner: Owner,
    files: Vec<File>,
}

impl Marks {
    /// None, with a new number, for images of this QEMU.
    ///
    /// # Errors
    ///
    /// No random number is to be had.
    pub(crate) fn new(owner: Owner) -> io::Result<Self> {
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        Ok(Self {
            number,
            owner,
            files: Vec::new(),
        })
    }

    /// Marks the file of the disk with this number, if possible. Several disks can have one file:
    /// then it keeps the mark of the first.
    pub(crate) fn set(&mut self, disk: u32, image: &ImageFile) -> ImageMark {
        let Ok(file) = image.file() else {
            return ImageMark::Unknown;
        };
        let name = name(self.number);
        if let Ok(Some(present)) = Mark::read(&file, name.as_bytes()) {
            return ImageMark::Of(present.disk);
        }
        let mark = Mark {
            disk,
            owner: self.owner,
            set: now(),
        };
        match fsetxattr(&file, name, &mark.to_bytes(), XattrFlags::CREATE) {
            Ok(()) => {
                self.files.push(file);
                ImageMark::Of(disk)
            }
            Err(error) => {
                tracing::debug!(%error, image = %image.open.display(), "marking an image");
                ImageMark::Unknown
            }
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        for file in &self.files {
            if let Err(error) = fremovexattr(file, name(self.number)) {
                tracing::warn!(%error, "removing an extended attribute of an image");
            }
        }
    }
}

fn name(number: [u8; 16]) -> String {
    format!("{PREFIX}{:032x}", u128::from_be_bytes(number))
}

/// The mark with this number that the file has.
pub(crate) fn read(number: [u8; 16], image: &ImageFile) -> ImageMark {
    let Ok(file) = image.file() else {
        return ImageMark::Unknown;
    };
    match Mark::read(&file, name(number).as_bytes()) {
        Ok(Some(mark)) => ImageMark::Of(mark.disk),
        Err(Errno::NODATA) => ImageMark::Absent,
        Ok(None) | Err(_) => ImageMark::Unknown,
    }
}

/// Removes the marks that a killed engine of this QEMU has left, and old ones. Only for the engine
/// that has exclusive access to it.
pub(crate) fn remove_left(owner: Owner, image: &ImageFile) {
    let Ok(file) = image.file() else {
        return;
    };
    let mut list = vec![0; MAX_LIST];
    let Ok(length) = flistxattr(&file, &mut list) else {
        return;
    };
    let names = list
        .get(..length)
        .unwrap_or_default()
        .split(|byte| *byte == 0);
    let is_left = |mark: &Mark| mark.owner == owner || now().saturating_sub(mark.set) > LEFT_AGE;
    for name in names.filter(|name| name.starts_with(PREFIX.as_bytes())) {
        let mark = Mark::read(&file, name).ok().flatten();
        if mark.as_ref().is_some_and(is_left)
            && let Err(error) = fremovexattr(&file, name)
        {
            tracing::warn!(%error, "removing an extended attribute that a killed engine has left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes of a file in the folder for temporary files; `None`: it can have none.
    fn file() -> Option<(tempfile::NamedTempFile, ImageFile)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().to_str().unwrap();
        let image = ImageFile::of_process_file(std::process::id(), name).unwrap();
        let can = fsetxattr(file.as_file(), "user.test", b"x", XattrFlags::empty());
        if can.is_err() {
            println!("files here have no extended attributes: not tested");
            return None;
        }
        Some((file, image))
    }

    /// The user's: the host may have given it others (`security.selinux`).
    fn attributes(file: &tempfile::NamedTempFile) -> Vec<String> {
        let mut list = vec![0; MAX_LIST];
        let length = flistxattr(file.as_file(), &mut list).unwrap();
        let names = String::from_utf8_lossy(&list[..length]).into_owned();
        let names = names.split('\0').filter(|name| name.starts_with("user."));
        names.map(str::to_owned).collect()
    }

    fn own() -> Owner {
        Owner::of_process(std::process::id()).unwrap()
    }

    fn another() -> Owner {
        Owner([1; 28])
    }

    #[test]
    fn a_mark_is_seen_through_another_descriptor_until_it_is_removed() {
        let (Some((one, image)), Some((_other, other))) = (file(), file()) else {
            return;
        };
        let mut marks = Marks::new(own()).unwrap();
        let number = marks.number;
        assert_eq!(read(number, &image), ImageMark::Absent);
        assert_eq!(marks.set(7, &image), ImageMark::Of(7));
        let again =
            ImageFile::of_process_file(std::process::id(), one.path().to_str().unwrap()).unwrap();
        assert_eq!(read(number, &again), ImageMark::Of(7));
        assert_eq!(read(number, &other), ImageMark::Absent);
        assert_eq!(read([1; 16], &image), ImageMark::Absent, "of another move");
        drop(marks);
        assert_eq!(read(number, &image), ImageMark::Absent);
        assert_eq!(attributes(&one), ["user.test"]);
    }

    /// Two guests that share a disk, or a move and a check of one guest.
    #[test]
    fn comparisons_leave_each_others_marks() {
        let Some((file, image)) = file() else {
            return;
        };
        for owner in [another(), own()] {
            let mut one = Marks::new(owner).unwrap();
            let mut other = Marks::new(own()).unwrap();
            assert_eq!(one.set(1, &image), ImageMark::Of(1));
            assert_eq!(other.set(2, &image), ImageMark::Of(2));
            assert_eq!(read(one.number, &image), ImageMark::Of(1));
            drop(one);
            assert_eq!(read(other.number, &image), ImageMark::Of(2));
        }
        assert_eq!(attributes(&file), ["user.test"]);
    }

    #[test]
    fn two_disks_of_one_file_have_one_mark() {
        let Some((file, image)) = file() else {
            return;
        };
        let mut marks = Marks::new(own()).unwrap();
        assert_eq!(marks.set(0, &image), ImageMark::Of(0));
        assert_eq!(marks.set(1, &image), ImageMark::Of(0));
        assert_eq!(read(marks.number, &image), ImageMark::Of(0));
        drop(marks);
        assert_eq!(attributes(&file), ["user.test"]);
    }

    #[test]
    fn what_a_killed_engine_has_left_is_removed_and_nothing_else() {
        let Some((file, image)) = file() else {
            return;
        };
        let mut killed = Marks::new(own()).unwrap();
        killed.set(1, &image);
        let mut other = Marks::new(another()).unwrap();
        other.set(2, &image);
        let set = |name: &str, value: &[u8]| {
            fsetxattr(file.as_file(), name, value, XattrFlags::CREATE).unwrap();
        };
        let of_another = |set: Duration| {
            let (disk, owner) = (3, another());
            Mark { disk, owner, set }.to_bytes()
        };
        set("user.hikkoshi.old", &of_another(now() - 2 * LEFT_AGE));
        set("user.hikkoshi.clock", &of_another(now() + 2 * LEFT_AGE));
        set("user.hikkoshi.odd", b"1234");
        remove_left(own(), &image);
        std::mem::forget(killed);
        let mut left = attributes(&file);
        left.sort();
        let other_name = name(other.number);
        let mut expected = [
            &*other_name,
            "user.hikkoshi.clock",
            "user.hikkoshi.odd",
            "user.test",
        ];
        expected.sort_unstable();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_device_has_no_mark() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let image = ImageFile::of_process_file(std::process::id(), "/dev/null").unwrap();
        let mut marks = Marks::new(own()).unwrap();
        assert_eq!(marks.set(1, &image), ImageMark::Unknown);
        assert_eq!(read([0; 16], &image), ImageMark::Unknown);
        drop(null);
    }
}
