//! Finds and opens the file of a memory backend.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use hikkoshi_linux::Process;

use crate::attach::maps::Mapping;
use crate::attach::ram::RamError;
use crate::attach::ram::backend::Backend;
use crate::attach::reopen::{self, FileAccess, MappedFileRange};

/// The opened file of a backend.
#[derive(Debug)]
pub(crate) struct BackendFile {
    /// The file.
    pub(crate) file: File,
    /// Its metadata when it was opened.
    pub(crate) metadata: Metadata,
    /// Where the backend begins in QEMU's address space.
    pub(crate) address: u64,
    /// The host page size, in bytes.
    pub(crate) host_page: u64,
    /// Whether it is on hugetlbfs (else on tmpfs).
    pub(crate) huge: bool,
}

/// Modes of files and folders, see inode(7).
const OTHERS_READ: u32 = 0o004;
const OTHERS_SEARCH: u32 = 0o001;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Finds the mapping of `backend` among `mappings`, and opens its file.
pub(crate) fn find(
    process: &Process,
    mappings: &[Mapping],
    backend: &Backend,
    access: FileAccess,
) -> Result<BackendFile, RamError> {
    let given = backend.path.as_deref().unwrap_or_default();
    // Only used to select one of QEMU's mappings.
    let place = path_from_outside(process, given);
    let metadata = std::fs::metadata(&place).ok();
    let mut candidates: Vec<(&Mapping, u64)> = mappings
        .iter()
        .filter(|mapping| mapping.shared && is_of(mapping, backend, given, metadata.as_ref()))
        .filter_map(|mapping| Some((mapping, mapping.address_of(backend.offset, backend.bytes)?)))
        .collect();
    if candidates.is_empty() {
        return Err(RamError::NotMapped {
            id: backend.id.clone(),
            path: given.to_owned(),
            pid: process.pid(),
            name: crate::attach::process::name(process),
        });
    }
    candidates.retain(|(mapping, _)| mapping.writable);
    let Some((mapping, address)) = candidates.pop() else {
        return Err(RamError::NotWritable {
            id: backend.id.clone(),
            path: given.to_owned(),
            pid: process.pid(),
        });
    };
    if !candidates.is_empty() {
        return Err(RamError::Ambiguous {
            id: backend.id.clone(),
            path: given.to_owned(),
            mappings: candidates.len() + 1,
        });
    }
    let cannot = |source| RamError::Open {
        id: backend.id.clone(),
        path: mapping.path.clone(),
        source,
    };
    let range = MappedFileRange {
        device: mapping.device,
        inode: mapping.inode,
        offset: backend.offset,
        bytes: backend.bytes,
        address,
    };
    let file = reopen::mapped(process, &range, access).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if others_can_read(&place, &metadata) {
        tracing::warn!(
            "other users of this host can read the guest's memory: its file {given} has mode {:o}, \
             as QEMU creates it; remove that permission (chmod o= FILE, possible at any time), or use \
             a folder that they cannot enter",
            metadata.mode() & 0o7777
        );
    }
    let system = rustix::fs::fstatfs(&file).map_err(|errno| cannot(errno.into()))?;
    let kind: i64 = system.f_type;
    let huge = kind == HUGETLBFS_MAGIC;
    if !huge && kind != TMPFS_MAGIC {
        return Err(RamError::FileSystem {
            id: backend.id.clone(),
            path: mapping.path.clone(),
        });
    }
    let host_page = u64::try_from(system.f_bsize).unwrap_or(0);
    if metadata.len() < backend.offset.saturating_add(backend.bytes) {
        return Err(RamError::Short {
            id: backend.id.clone(),
            path: mapping.path.clone(),
            bytes: metadata.len(),
            needed: backend.offset.saturating_add(backend.bytes),
        });
    }
    if access == FileAccess::Read && !huge {
        // hugetlbfs supports reads, too, but only of whole pages.
        let mut byte = [0];
        file.read_exact_at(&mut byte, backend.offset)
            .map_err(cannot)?;
    }
    Ok(BackendFile {
        file,
        metadata,
        address,
        host_page,
        huge,
    })
}

/// Converts QEMU's path to ours: QEMU may have another root.
fn path_from_outside(process: &Process, given: &str) -> PathBuf {
    let base = if given.starts_with('/') {
        "root"
    } else {
        "cwd"
    };
    Path::new(&format!("/proc/{}/{base}", process.pid())).join(given.trim_start_matches('/'))
}

/// Whether all users of this host can read the file with this metadata at this path,
/// according to its mode and its folders' modes.
fn others_can_read(place: &Path, file: &Metadata) -> bool {
    let there = |path: &Path| std::fs::metadata(path).ok();
    let at_place =
        there(place).is_some_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino()));
    at_place
        && file.mode() & OTHERS_READ != 0
        && place.ancestors().skip(1).all(|folder| {
            // The prefix in /proc/PID, which other users cannot follow.
            folder.starts_with("/proc") && folder.components().count() <= 4
                || there(folder).is_some_and(|folder| folder.mode() & OTHERS_SEARCH != 0)
        })
}

/// Whether a mapping is of the backend's file. `metadata` belongs to the file that is at
/// the path now, which can be another one than when QEMU opened it.
fn is_of(mapping: &Mapping, backend: &Backend, given: &str, metadata: Option<&Metadata>) -> bool {
    match metadata {
        // QEMU created a file in the folder and removed it at once.
        Some(metadata) if metadata.is_dir() => {
            mapping.deleted
                && mapping.device == metadata.dev()
                && Path::new(&mapping.path)
                    .file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| is_generated_by_qemu(name, &backend.id))
        }
        Some(metadata) if (mapping.device, mapping.inode) == (metadata.dev(), metadata.ino()) => {
            true
        }
        // Removed or replaced in the meantime.
        _ => mapping.deleted && mapping.path == given,
    }
}

/// Whether QEMU generates this file name for a backend: `qemu_back_mem.`, the region's
/// name (the id, or on old machine types the whole QOM path, with `_` for `/`), a dot,
/// six characters.
fn is_generated_by_qemu(name: &str, id: &str) -> bool {
    let id = id.replace('/', "_");
    let Some(rest) = name.strip_prefix("qemu_back_mem.") else {
        return false;
    };
    let Some((region, random)) = rest.rsplit_once('.') else {
        return false;
    };
    random.len() == 6 && (region == id || region == format!("_objects_{id}"))
}

#[cfg(test)]
mod hostile_process_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn readability_depends_on_the_modes_of_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ram");
        std::fs::write(&path, b"memory").unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let place = path_from_outside(&own, path.to_str().unwrap());
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (folder_mode, mode, expected) in [
            (0o711, 0o644, true),
            (0o711, 0o640, false),
            (0o700, 0o644, false),
        ] {
            set(folder.path(), folder_mode);
            set(&path, mode);
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(others_can_read(&place, &metadata), expected, "{mode:o}");
        }
        let gone = std::fs::metadata(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!others_can_read(&place, &gone));
    }

    #[test]
    fn file_names_that_qemu_generates() {
        assert!(is_generated_by_qemu("qemu_back_mem.ram1.jk4S9C", "ram1"));
        assert!(is_generated_by_qemu(
            "qemu_back_mem._objects_ram1.jk4S9C",
            "ram1"
        ));
        assert!(is_generated_by_qemu("qemu_back_mem.a.b.jk4S9C", "a.b"));
        assert!(!is_generated_by_qemu("qemu_back_mem.a.b.jk4S9C", "a"));
        assert!(!is_generated_by_qemu("qemu_back_mem.ram1.jk4S9", "ram1"));
        assert!(!is_generated_by_qemu("qemu_back_mem.ram10.jk4S9C", "ram1"));
        assert!(!is_generated_by_qemu("ram1", "ram1"));
    }
}
