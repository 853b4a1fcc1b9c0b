//! Marks on image files, by which the destination sees that its QEMU has the same file open.
//!
//! A mark is an extended attribute of the file: its name is random and was never used before, so a
//! client of a network file system cannot have cached it. Its value is the number of the disk. The
//! source sets the marks before its guest is compared, and removes them afterwards; it does so
//! through the descriptors of its QEMU, not by the name of a file. File systems without such
//! attributes have no marks.

use std::fs::File;
use std::io;

use hikkoshi_wire::ImageMark;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::image::ImageFile;

/// The beginning of the attribute's name; the random number follows.
const PREFIX: &str = "user.hikkoshi.";

/// The longest list of a file's attributes (`XATTR_LIST_MAX` in Linux).
const MAX_LIST: usize = 64 << 10;

/// The marks that are set. They are removed when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Its name.
    pub(crate) number: [u8; 16],
    files: Vec<File>,
}

impl Marks {
    /// None, with a new number.
    ///
    /// # Errors
    ///
    /// No random number is to be had.
    pub(crate) fn new() -> io::Result<Self> {
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(io::Error::other)?;
        Ok(Self {
            number,
            files: Vec::new(),
        })
    }

    /// Marks the file of the disk with this number, if possible.
    pub(crate) fn set(&mut self, disk: u32, image: &ImageFile) -> ImageMark {
        let Ok(file) = image.file() else {
            return ImageMark::Unknown;
        };
        remove_all(&file);
        match fsetxattr(
            &file,
            name(self.number),
            &disk.to_le_bytes(),
            XattrFlags::CREATE,
        ) {
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
    let mut value = [0; 4];
    match fgetxattr(&file, name(number), &mut value) {
        Ok(4) => ImageMark::Of(u32::from_le_bytes(value)),
        Err(Errno::NODATA) => ImageMark::Absent,
        Ok(_) | Err(_) => ImageMark::Unknown,
    }
}

/// Removes the marks that a killed engine has left.
pub(crate) fn remove_left(image: &ImageFile) {
    if image.is_shared
        && let Ok(file) = image.file()
    {
        remove_all(&file);
    }
}

fn remove_all(file: &File) {
    let mut list = vec![0; MAX_LIST];
    let Ok(length) = flistxattr(file, &mut list) else {
        return;
    };
    let names = list
        .get(..length)
        .unwrap_or_default()
        .split(|byte| *byte == 0);
    for name in names.filter(|name| name.starts_with(PREFIX.as_bytes())) {
        if let Err(error) = fremovexattr(file, name) {
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
        let image = ImageFile::of(std::process::id(), name).unwrap();
        let can = fsetxattr(file.as_file(), "user.test", b"x", XattrFlags::empty());
        if can.is_err() {
            println!("files here have no extended attributes: not tested");
            return None;
        }
        Some((file, image))
    }

    fn attributes(file: &tempfile::NamedTempFile) -> String {
        let mut list = vec![0; MAX_LIST];
        let length = flistxattr(file.as_file(), &mut list).unwrap();
        String::from_utf8_lossy(&list[..length]).into_owned()
    }

    #[test]
    fn a_mark_is_seen_through_another_descriptor_until_it_is_removed() {
        let (Some((one, image)), Some((_other, other))) = (file(), file()) else {
            return;
        };
        let mut marks = Marks::new().unwrap();
        let number = marks.number;
        assert_eq!(read(number, &image), ImageMark::Absent);
        assert_eq!(marks.set(7, &image), ImageMark::Of(7));
        let again = ImageFile::of(std::process::id(), one.path().to_str().unwrap()).unwrap();
        assert_eq!(read(number, &again), ImageMark::Of(7));
        assert_eq!(read(number, &other), ImageMark::Absent);
        assert_eq!(read([1; 16], &image), ImageMark::Absent, "of another move");
        drop(marks);
        assert_eq!(read(number, &image), ImageMark::Absent);
        assert_eq!(attributes(&one), "user.test\0");
    }

    #[test]
    fn what_a_killed_engine_has_left_is_removed() {
        let Some((file, image)) = file() else {
            return;
        };
        let leave = || {
            let mut marks = Marks::new().unwrap();
            marks.set(1, &image);
            std::mem::forget(marks);
        };
        leave();
        let mut next = Marks::new().unwrap();
        next.set(2, &image);
        drop(next);
        assert_eq!(attributes(&file), "user.test\0");
        leave();
        let shared = ImageFile {
            is_shared: true,
            ..image.clone()
        };
        remove_left(&shared);
        assert_eq!(attributes(&file), "user.test\0");
    }

    #[test]
    fn a_device_has_no_mark() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let image = ImageFile::of(std::process::id(), "/dev/null").unwrap();
        assert_eq!(Marks::new().unwrap().set(1, &image), ImageMark::Unknown);
        assert_eq!(read([0; 16], &image), ImageMark::Unknown);
        drop(null);
    }
}
