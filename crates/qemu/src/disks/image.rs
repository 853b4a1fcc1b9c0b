//! The file of a disk's image, as QEMU's process has it open.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use hikkoshi_linux::has_locked_byte;
use hikkoshi_wire::{ImageName, MAX_IMAGE_NAMES};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::list::BlockDisk;
use super::shared::{FileSystem, device_names};
use crate::disks::image_file;
use crate::qmp::{Client, QmpError};

/// Where QEMU finds descriptors that it was passed.
const DESCRIPTOR_SETS: &str = "/dev/fdset/";

/// The bytes that QEMU locks in an image that it uses (`RAW_LOCK_PERM_BASE` and
/// `RAW_LOCK_SHARED_BASE` in QEMU's `file-posix.c`, each with up to 64 permissions).
const LOCKS: Range<u32> = 100..264;

/// The longest name of an image, in bytes. A longer one is left out.
const MAX_NAME: usize = 2048;

/// How much of a medium is read for its checksum, at its beginning and at its end.
const CHECKED_BYTES: usize = 256 << 10;

/// The file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFile {
    /// QEMU's descriptor, as its entry in `/proc`.
    pub(super) open: PathBuf,
    pub(super) names: Vec<ImageName>,
    /// Whether QEMU has locked it. `None`: that cannot be found out.
    pub(super) locked: Option<bool>,
    /// Whether it is a device of the host.
    pub(super) is_device: bool,
    /// The type of its file system. Empty: it is a device.
    pub(super) file_system: String,
    /// Whether other hosts may use that as well.
    pub(super) is_shared: bool,
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
            return Ok(Self::of_process_file(pid, &name));
        };
        let sets = client.execute("query-fdsets", json!({}))?;
        let entries = descriptors_of_set(&sets, set).into_iter();
        let entries = entries.map(|number| PathBuf::from(format!("/proc/{pid}/fd/{number}")));
        let open = only_file(entries);
        Ok(open.and_then(|open| Self::of_descriptor(pid, &open)))
    }

    /// Those of the images below a disk's own, as far as they are found.
    pub(crate) fn below(
        client: &mut Client,
        disk: &BlockDisk,
    ) -> Result<Vec<Option<Self>>, QmpError> {
        let below = disk.images.iter().skip(1);
        below.map(|file| Self::of_disk(client, file)).collect()
    }

    /// The file that QEMU's process `pid` has open by this name. `None`: there is none, or several.
    pub(crate) fn of_process_file(pid: u32, name: &str) -> Option<Self> {
        Self::of_descriptor(pid, &descriptor(pid, name)?)
    }

    /// That of a descriptor of QEMU's process, by its entry in `/proc/PID/fd`.
    fn of_descriptor(pid: u32, open: &Path) -> Option<Self> {
        let metadata = pin(open).ok()?.metadata().ok()?;
        let kind = metadata.file_type();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let is_device = kind.is_block_device() || kind.is_char_device();
        let (device, number) = file_number(&metadata);
        let file_system = kind.is_file().then(|| FileSystem::of_descriptor(pid, open));
        // Equal only on the same running host.
        let mut names = vec![ImageName {
            name: format!("{}:{device}:{number}", boot.trim()).into(),
            unique: true,
        }];
        if kind.is_block_device() {
            names.extend(device_names(Path::new("/sys"), metadata.rdev()));
        }
        if let Some(shared) = file_system.as_ref().filter(|found| found.is_shared) {
            names.extend(shared.names_of(metadata.ino()));
        }
        names.retain(is_sendable);
        names.truncate(MAX_IMAGE_NAMES);
        let mut found = Self {
            open: open.to_owned(),
            names,
            locked: None,
            is_device,
            is_shared: file_system.as_ref().is_some_and(|found| found.is_shared),
            file_system: file_system.map_or_else(String::new, |found| found.kind),
        };
        found.locked = found.file().ok().and_then(|file| {
            let is_locked = has_locked_byte(file, LOCKS);
            is_locked.ok()
        });
        Some(found)
    }

    /// Opens it, if it is a file.
    pub(super) fn file(&self) -> io::Result<File> {
        if self.is_device {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.open()
    }

    /// A path by which another program opens the file that QEMU has open, whatever its name is.
    pub(crate) fn path(&self) -> String {
        self.open.display().to_string()
    }

    /// Opens it for reading, if it is a file or a block device.
    pub(crate) fn open(&self) -> io::Result<File> {
        let pinned = pin(&self.open)?;
        let kind = pinned.metadata()?.file_type();
        match kind.is_file() || kind.is_block_device() {
            true => File::open(format!("/proc/self/fd/{}", pinned.as_raw_fd())),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// A checksum of the beginning and the end of all of it. `None`: they cannot be read.
    pub(super) fn whole_checksum(&self) -> Option<u32> {
        self.checksum(self.open().ok()?.seek(SeekFrom::End(0)).ok()?)
    }

    /// A checksum of the beginning and the end of the first `bytes` bytes. `None`: they cannot be
    /// read.
    pub(super) fn checksum(&self, bytes: u64) -> Option<u32> {
        let file = self.open().ok()?;
        let mut checked = 0;
        let room = CHECKED_BYTES as u64;
        let begin = 0..bytes.min(room);
        let end = bytes.saturating_sub(room).max(begin.end)..bytes;
        for part in [begin, end] {
            let mut content = vec![0; usize::try_from(part.end - part.start).ok()?];
            file.read_exact_at(&mut content, part.start).ok()?;
            checked = crc32c::crc32c_append(checked, &content);
        }
        Some(checked)
    }
}

/// The file of QEMU's descriptor: QEMU could replace it before it is opened, and opening another
/// one could wait.
fn pin(open: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(open, flags, Mode::empty())?.into())
}

fn is_sendable(name: &ImageName) -> bool {
    let name = &name.name;
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|byte| byte.is_ascii_graphic())
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
        ImageFile::of_process_file(std::process::id(), name)
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
        assert_eq!(found.names, locked.names);
        let base = file.path().file_name().unwrap().to_str().unwrap();
        assert_eq!(of(base).unwrap().names, found.names, "a relative name");
        assert_eq!(of("/no/such/file"), None);
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
            assert_eq!(of(&name(other)).unwrap().names, image.names, "{other}");
        }
        // A file that QEMU does not have open.
        fs::write(path("closed"), "").unwrap();
        assert_eq!(of(&name("closed")), None);
        fs::rename(path("image"), path("renamed")).unwrap();
        assert_eq!(of(&name("image")), None);
        assert_eq!(of(&name("renamed")).unwrap().names, image.names);
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
    fn only_short_words_are_names() {
        let is_name = |name: &str| {
            is_sendable(&ImageName {
                name: name.into(),
                unique: true,
            })
        };
        assert!(is_name("nfs:server:/images:12") && is_name(&"d".repeat(MAX_NAME)));
        for odd in ["", "a b", "c\n", &"d".repeat(MAX_NAME + 1)] {
            assert!(!is_name(odd), "{odd:?}");
        }
    }

    #[test]
    fn the_checksum_is_of_the_beginning_and_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = 3 * CHECKED_BYTES as u64;
        file.as_file().set_len(bytes).unwrap();
        let found = of(file.path().to_str().unwrap()).unwrap();
        let of_zeros = found.checksum(bytes);
        assert!(of_zeros.is_some());
        let with = |offset: u64| {
            file.as_file().write_all_at(b"x", offset).unwrap();
            let checksum = found.checksum(bytes);
            file.as_file().write_all_at(b"\0", offset).unwrap();
            checksum
        };
        assert_ne!(with(0), of_zeros);
        assert_ne!(with(bytes - 1), of_zeros);
        assert_eq!(with(bytes / 2), of_zeros, "not all of it is read");
        assert_eq!(found.checksum(bytes + 1), None, "it is not as long");
        assert_eq!(found.whole_checksum(), of_zeros);
        assert!(found.checksum(1000).is_some() && found.checksum(0).is_some());
    }
}
