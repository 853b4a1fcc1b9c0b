//! Disk images that only QEMU's process can reach: files that were deleted. The overlays of
//! `-snapshot` and `snapshot=on` are such files (`vl.XXXXXX` in `/var/tmp` or `$TMPDIR`). A
//! destination would open other files by the same names, or none.

use std::fs;
use std::path::Path;

use super::Refusal;
use super::block::Node;

/// What the kernel appends to the name of a deleted file (proc_pid_fd(5)).
const DELETED: &str = " (deleted)";

/// The disks of the QEMU with this process number that no destination can open.
pub(crate) fn check(nodes: &[Node], pid: Option<u32>) -> Vec<Refusal> {
    let files: Vec<_> = nodes.iter().filter(|node| node.driver == "file").collect();
    if files.is_empty() {
        return Vec::new();
    }
    let deleted = pid.and_then(deleted);
    let is_gone = |file: &str| match &deleted {
        Some(deleted) => deleted.iter().any(|path| is_at(path, file)),
        // Its descriptors cannot be read.
        None => is_overlay(file),
    };
    files
        .into_iter()
        .filter(|node| !node.file.is_empty() && is_gone(&node.file))
        .map(|node| Refusal::Deleted {
            node: node.name.clone(),
            file: node.file.clone(),
        })
        .collect()
}

/// The deleted files that the process has open; `None` if that cannot be found out.
fn deleted(pid: u32) -> Option<Vec<String>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let paths = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let names = paths.filter_map(|path| {
        let name = path.to_str()?.strip_suffix(DELETED)?;
        Some(name.to_owned())
    });
    Some(names.collect())
}

/// Whether `file`, perhaps relative to QEMU's folder, is the file at `path`.
fn is_at(path: &str, file: &str) -> bool {
    path == file || (!file.starts_with('/') && Path::new(path).ends_with(file))
}

/// Whether it is named as QEMU names the overlay of `-snapshot`.
fn is_overlay(file: &str) -> bool {
    let name = Path::new(file).file_name().and_then(|name| name.to_str());
    let random = name.and_then(|name| name.strip_prefix("vl."));
    random.is_some_and(|random| {
        random.len() == 6 && random.chars().all(|c| c.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(file: &str) -> Node {
        Node {
            name: "n".to_owned(),
            driver: "file".to_owned(),
            file: file.to_owned(),
            direct: false,
        }
    }

    #[test]
    fn a_deleted_image_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vl.A1b2C3");
        let open = fs::File::create(&path).unwrap();
        let nodes = [node(path.to_str().unwrap()), node("/nowhere/other")];
        let pid = Some(std::process::id());
        assert!(check(&nodes, pid).is_empty(), "it has a name");
        fs::remove_file(&path).unwrap();
        let found = check(&nodes, pid);
        assert!(
            matches!(&found[..], [Refusal::Deleted { file, .. }] if file.ends_with("vl.A1b2C3")),
            "{found:?}"
        );
        let relative = [node("vl.A1b2C3")];
        assert_eq!(check(&relative, pid).len(), 1);
        drop(open);
        assert!(check(&nodes, pid).is_empty(), "another process's");
    }

    #[test]
    fn an_overlay_is_known_by_its_name_where_descriptors_cannot_be_read() {
        let refused = |file| check(&[node(file)], None).len() == 1;
        assert!(refused("/var/tmp/vl.A1b2C3"));
        for file in ["/disks/vl.A1b2C", "/disks/vl.A1b2C3.raw", "vl.ABC-12", ""] {
            assert!(!refused(file), "{file}");
        }
    }
}
