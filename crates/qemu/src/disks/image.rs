//! The file of a disk's image, as QEMU's process has it open.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use hikkoshi_linux::has_locked_byte;

/// The bytes that QEMU locks in an image that it uses (`RAW_LOCK_PERM_BASE` and
/// `RAW_LOCK_SHARED_BASE` in QEMU's `file-posix.c`, each with up to 64 permissions).
const LOCKS: Range<u32> = 100..264;

/// The file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFile {
    /// Equal only for the same file on the same running host.
    pub(crate) identity: String,
    /// Whether QEMU has locked it. `None`: that cannot be found out.
    pub(crate) locked: Option<bool>,
    /// Whether it is a device of the host.
    pub(crate) is_device: bool,
}

impl ImageFile {
    /// The file that QEMU's process `pid` has open by this name. `None`: there is none.
    pub(crate) fn of(pid: u32, name: &str) -> Option<Self> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let open = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|entry| fs::read_link(entry).is_ok_and(|path| is_at(&path, name)))?;
        let metadata = fs::metadata(&open).ok()?;
        let kind = metadata.file_type();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let is_device = kind.is_block_device() || kind.is_char_device();
        // A device has the same number by every name.
        let (device, number) = match is_device {
            true => (0, metadata.rdev()),
            false => (metadata.dev(), metadata.ino()),
        };
        let locked = (kind.is_file())
            .then(|| has_locked_byte(File::open(&open).ok()?, LOCKS).ok())
            .flatten();
        Some(Self {
            identity: format!("{}:{device}:{number}", boot.trim()),
            locked,
            is_device,
        })
    }
}

/// Whether both identities are known, and are of one file.
pub(crate) fn same_image(one: &str, other: &str) -> bool {
    !one.is_empty() && one == other
}

/// Whether `name`, perhaps relative to QEMU's folder, is the file at `path`.
fn is_at(path: &Path, name: &str) -> bool {
    path == Path::new(name) || (!name.starts_with('/') && path.ends_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_linux::lock_byte_shared;

    #[test]
    fn an_open_file_is_found_with_its_locks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().to_str().unwrap().to_owned();
        let of = |name: &str| ImageFile::of(std::process::id(), name);
        let found = of(&name).unwrap();
        assert_eq!((found.locked, found.is_device), (Some(false), false));
        let other = File::open(file.path()).unwrap();
        lock_byte_shared(&other, 101).unwrap();
        let locked = of(&name).unwrap();
        assert_eq!(locked.locked, Some(true));
        assert!(same_image(&found.identity, &locked.identity));
        let base = file.path().file_name().unwrap().to_str().unwrap();
        assert_eq!(
            of(base).unwrap().identity,
            found.identity,
            "a relative name"
        );
        assert_eq!(of("/no/such/file"), None);
        assert!(!same_image("", ""));
    }
}
