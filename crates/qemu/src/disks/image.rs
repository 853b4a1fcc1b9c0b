//! The file of a disk's image, as QEMU's process has it open.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use hikkoshi_linux::has_locked_byte;

use super::shared::{SharedFileSystem, device_names};

/// The bytes that QEMU locks in an image that it uses (`RAW_LOCK_PERM_BASE` and
/// `RAW_LOCK_SHARED_BASE` in QEMU's `file-posix.c`, each with up to 64 permissions).
const LOCKS: Range<u32> = 100..264;

/// The longest [identity](ImageFile::identity), in bytes. A longer name is left out.
const IDENTITY: usize = 2048;

/// The file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFile {
    /// Its names, separated by spaces ([`same_image`]).
    pub(crate) identity: String,
    /// Whether QEMU has locked it. `None`: that cannot be found out.
    pub(crate) locked: Option<bool>,
    /// Whether it is a device of the host.
    pub(crate) is_device: bool,
    /// The type of its file system, if other hosts may use that as well.
    pub(crate) shared: Option<String>,
}

impl ImageFile {
    /// The file that QEMU's process `pid` has open by this name. `None`: there is none.
    pub(crate) fn of(pid: u32, name: &str) -> Option<Self> {
        let open = descriptor(pid, name)?;
        let metadata = fs::metadata(&open).ok()?;
        let kind = metadata.file_type();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let is_device = kind.is_block_device() || kind.is_char_device();
        let (device, number) = file_number(&metadata);
        let locked = (kind.is_file())
            .then(|| has_locked_byte(File::open(&open).ok()?, LOCKS).ok())
            .flatten();
        let shared = (kind.is_file())
            .then(|| SharedFileSystem::of(pid, &open))
            .flatten();
        // Equal only on the same running host.
        let mut names = vec![format!("{}:{device}:{number}", boot.trim())];
        if kind.is_block_device() {
            names.extend(device_names(Path::new("/sys"), metadata.rdev()));
        }
        if let Some(shared) = &shared {
            names.extend(shared.names_of(metadata.ino()));
        }
        Some(Self {
            identity: identity(&names),
            locked,
            is_device,
            shared: shared.map(|shared| shared.kind),
        })
    }
}

/// Whether one of the names is the same in both: then they are of one image. If none is, that says
/// nothing.
pub(crate) fn same_image(one: &str, other: &str) -> bool {
    let mut names = one.split_ascii_whitespace();
    names.any(|name| other.split_ascii_whitespace().any(|it| it == name))
}

fn identity(names: &[String]) -> String {
    let mut identity = String::new();
    for name in names {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        if is_name && identity.len() + 1 + name.len() <= IDENTITY {
            if !identity.is_empty() {
                identity.push(' ');
            }
            identity.push_str(name);
        }
    }
    identity
}

/// QEMU's descriptor of the file that it opened by this name, as its entry in `/proc`.
fn descriptor(pid: u32, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let entries: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    // The name may be a link, and QEMU may have other mounts.
    let place = match name.strip_prefix('/') {
        Some(name) => format!("/proc/{pid}/root/{name}"),
        None => format!("/proc/{pid}/cwd/{name}"),
    };
    let number = |path: &Path| Some(file_number(&fs::metadata(path).ok()?));
    let named = number(Path::new(&place));
    let by_number = entries
        .iter()
        .find(|entry| named.is_some() && number(entry) == named);
    // It was renamed since, or is relative to the folder where QEMU was started.
    let by_name = || {
        entries
            .iter()
            .find(|entry| fs::read_link(entry).is_ok_and(|path| is_at(&path, name)))
    };
    by_number.or_else(by_name).cloned()
}

/// What a file is known by on this host. A device has the same number by every name.
fn file_number(metadata: &fs::Metadata) -> (u64, u64) {
    let kind = metadata.file_type();
    match kind.is_block_device() || kind.is_char_device() {
        true => (0, metadata.rdev()),
        false => (metadata.dev(), metadata.ino()),
    }
}

/// Whether `name`, perhaps relative to QEMU's folder, is the file at `path`.
fn is_at(path: &Path, name: &str) -> bool {
    path == Path::new(name) || (!name.starts_with('/') && path.ends_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_linux::lock_byte_shared;

    fn of(name: &str) -> Option<ImageFile> {
        ImageFile::of(std::process::id(), name)
    }

    #[test]
    fn an_open_file_is_found_with_its_locks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().to_str().unwrap().to_owned();
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

    #[test]
    fn a_file_is_found_by_a_link_and_after_it_was_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let name = |name: &str| path(name).to_str().unwrap().to_owned();
        let _file = File::create(path("image")).unwrap();
        std::os::unix::fs::symlink("image", path("link")).unwrap();
        fs::hard_link(path("image"), path("other")).unwrap();
        let image = of(&name("image")).unwrap();
        for other in ["link", "other"] {
            assert_eq!(of(&name(other)), Some(image.clone()), "{other}");
        }
        // A file that QEMU does not have open.
        fs::write(path("closed"), "").unwrap();
        assert_eq!(of(&name("closed")), None);
        fs::rename(path("image"), path("renamed")).unwrap();
        assert_eq!(of(&name("image")), None);
        assert_eq!(of(&name("renamed")), Some(image));
    }

    #[test]
    fn one_common_name_says_that_it_is_one_image() {
        let here = identity(&["host-a:5:6".into(), "nfs4:server:/images:12".into()]);
        let there = identity(&["host-b:7:6".into(), "nfs4:server:/images:12".into()]);
        assert!(same_image(&here, &there));
        assert!(!same_image(&here, "host-b:5:6"));
        // That of an engine that knows one name only.
        assert!(same_image(&here, "host-a:5:6"));
        let odd = identity(&[
            "a b".into(),
            "c\n".into(),
            "d".repeat(IDENTITY + 1),
            "e".into(),
        ]);
        assert_eq!(odd, "e");
    }
}
