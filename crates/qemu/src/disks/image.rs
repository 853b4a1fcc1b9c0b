//! The file of a disk's image, as QEMU's process has it open.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use hikkoshi_linux::has_locked_byte;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::shared::{SharedFileSystem, device_names};
use crate::command_line::image_file;
use crate::qmp::{Client, QmpError};

/// Where QEMU finds descriptors that it was passed.
const DESCRIPTOR_SETS: &str = "/dev/fdset/";

/// The bytes that QEMU locks in an image that it uses (`RAW_LOCK_PERM_BASE` and
/// `RAW_LOCK_SHARED_BASE` in QEMU's `file-posix.c`, each with up to 64 permissions).
const LOCKS: Range<u32> = 100..264;

/// The longest [identity](ImageFile::identity), in bytes. A longer name is left out.
const MAX_IDENTITY: usize = 2048;

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
    /// The file of a disk whose `file` QEMU describes so (`query-block`). `None`: it is no file of
    /// this host, or QEMU does not have it open by this name, or which one it is is not clear.
    pub(crate) fn of_disk(client: &mut Client, file: &str) -> Result<Option<Self>, QmpError> {
        let Some(pid) = client.peer() else {
            return Ok(None);
        };
        let name = image_file(file);
        let Some(set) = name.strip_prefix(DESCRIPTOR_SETS) else {
            return Ok(Self::of(pid, &name));
        };
        let sets = client.execute("query-fdsets", json!({}))?;
        let entries = descriptors_of_set(&sets, set).into_iter();
        let entries = entries.map(|number| PathBuf::from(format!("/proc/{pid}/fd/{number}")));
        let open = only_file(entries);
        Ok(open.and_then(|open| Self::of_descriptor(pid, &open)))
    }

    /// The file that QEMU's process `pid` has open by this name. `None`: there is none, or several.
    fn of(pid: u32, name: &str) -> Option<Self> {
        Self::of_descriptor(pid, &descriptor(pid, name)?)
    }

    /// That of a descriptor of QEMU's process, by its entry in `/proc/PID/fd`.
    fn of_descriptor(pid: u32, open: &Path) -> Option<Self> {
        // QEMU could replace the file of its descriptor in between, and opening another one could
        // wait.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let pinned = File::from(rustix::fs::open(open, flags, Mode::empty()).ok()?);
        let metadata = pinned.metadata().ok()?;
        let kind = metadata.file_type();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let is_device = kind.is_block_device() || kind.is_char_device();
        let (device, number) = file_number(&metadata);
        let locked = (kind.is_file())
            .then(|| {
                let opened = File::open(format!("/proc/self/fd/{}", pinned.as_raw_fd()));
                has_locked_byte(opened.ok()?, LOCKS).ok()
            })
            .flatten();
        let shared = (kind.is_file())
            .then(|| SharedFileSystem::of(pid, open))
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
        if is_name && identity.len() + 1 + name.len() <= MAX_IDENTITY {
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
        let has_name = |entry: &&PathBuf| fs::read_link(entry).is_ok_and(|path| is_at(&path, name));
        only_file(entries.iter().filter(has_name).cloned())
    };
    by_number.cloned().or_else(by_name)
}

/// The first of these entries, if all of them are of the same file.
fn only_file(entries: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let entries = Vec::from_iter(entries);
    let number = |entry: &PathBuf| Some(file_number(&fs::metadata(entry).ok()?));
    let first = number(entries.first()?)?;
    let is_first = |entry| number(entry) == Some(first);
    entries.iter().all(is_first).then(|| entries[0].clone())
}

/// The descriptors of this set, as `query-fdsets` lists them.
fn descriptors_of_set(sets: &Value, set: &str) -> Vec<u64> {
    let is_it = |row: &&Value| {
        let number = row.get("fdset-id").and_then(Value::as_u64);
        number.is_some_and(|number| number.to_string() == set)
    };
    let rows = sets.as_array().map(Vec::as_slice).unwrap_or_default();
    let descriptors = rows.iter().find(is_it).and_then(|row| row.get("fds"));
    let descriptors = descriptors.and_then(Value::as_array).into_iter().flatten();
    let numbers = descriptors.filter_map(|row| row.get("fd").and_then(Value::as_u64));
    numbers.collect()
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

    /// As after `-daemonize`, when QEMU's folder is not the one where it was started.
    #[test]
    fn a_relative_name_of_several_open_files_is_not_resolved() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            File::create(path).unwrap()
        };
        let _one = open("one/ambiguous.raw");
        assert!(of("ambiguous.raw").is_some());
        // A second descriptor of the same file.
        let _again = open("one/ambiguous.raw");
        assert!(of("ambiguous.raw").is_some());
        let _other = open("other/ambiguous.raw");
        assert_eq!(of("ambiguous.raw"), None);
        assert!(of("other/ambiguous.raw").is_some());
    }

    #[test]
    fn the_file_of_a_descriptor_set_is_found() {
        use std::os::fd::AsRawFd;
        let (one, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let again = one.try_clone().unwrap();
        let sets = json!([
            { "fdset-id": 1, "fds": [{ "fd": one.as_raw_fd() }, { "fd": again.as_raw_fd() }] },
            { "fdset-id": 11, "fds": [{ "fd": one.as_raw_fd() }, { "fd": other.as_raw_fd() }] },
            { "fdset-id": 2, "fds": [] },
        ]);
        let found = |set: &str| {
            let numbers = descriptors_of_set(&sets, set).into_iter();
            only_file(numbers.map(|number| PathBuf::from(format!("/proc/self/fd/{number}"))))
        };
        let expected = format!("/proc/self/fd/{}", one.as_raw_fd());
        assert_eq!(found("1"), Some(expected.into()));
        // Of two files, which one QEMU uses is not known; so it is if the owner has removed them.
        for set in ["11", "2", "3", ""] {
            assert_eq!(found(set), None, "{set}");
        }
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
            "d".repeat(MAX_IDENTITY + 1),
            "e".into(),
        ]);
        assert_eq!(odd, "e");
    }
}
