//! Finds disks that write into pinned guest pages, which pre-copy rounds have to
//! drain.
//!
//! Direct I/O (`cache.direct`) writes into pinned pages. For a buffered read, the
//! kernel copies on most file systems. Some, however, bypass the page cache although
//! the file was opened without `O_DIRECT`: FUSE with `FOPEN_DIRECT_IO`
//! (`Documentation/filesystems/fuse/fuse-io.rst`), and network file systems that are
//! mounted without a cache. The type of a file's file system is read from
//! `/proc/PID/fdinfo` and `/proc/PID/mountinfo` (proc(5)). The file system itself is
//! not queried, because it may not answer.

use std::collections::HashMap;
use std::fs;
use std::io;

use super::block::{Node, nodes, of_driver};
use super::devices::MemoryWrites;
use crate::qmp::{Client, QmpError};

/// Drivers that read by system calls into QEMU's buffers.
const HOST_FILES: [&str; 3] = ["file", "host_cdrom", "host_device"];

/// File systems that copy on reads without `O_DIRECT`. For a file system that is not
/// in this list, the cost is draining an idle disk, about 1 ms each time.
const COPYING: [&str; 27] = [
    "bcachefs",
    "btrfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "mqueue",
    "nfs",
    "nfs4",
    "proc",
    "ramfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "udf",
    "vfat",
    "xfs",
    "zfs",
];

/// The first disk that writes into pinned pages, of the QEMU with this process
/// number. If its files cannot be examined, they count as such disks.
pub(crate) fn first(nodes: &[Node], pid: Option<u32>) -> Option<&Node> {
    let pins = |node: &&Node| match of_driver(&node.driver) {
        MemoryWrites::Tracked => node.direct && HOST_FILES.contains(&node.driver.as_str()),
        // A type that the user allowed: its behaviour is unknown.
        _ => true,
    };
    let buffered = |node: &&Node| HOST_FILES.contains(&node.driver.as_str());
    nodes.iter().find(pins).or_else(|| {
        let node = nodes.iter().find(buffered)?;
        let copies = pid.is_some_and(|pid| all_files_copy(pid).unwrap_or(false));
        (!copies).then_some(node)
    })
}

/// Whether every file that the process has open is on a file system that copies.
fn all_files_copy(pid: u32) -> io::Result<bool> {
    let mounts = mounts(&fs::read_to_string(format!("/proc/{pid}/mountinfo"))?);
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let text = match fs::read_to_string(entry?.path()) {
            Ok(text) => text,
            // Closed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        // Sockets, pipes and the like are on the kernel's internal mounts.
        if let Some(kind) = mount_of(&text).and_then(|mount| mounts.get(&mount))
            && !COPYING.contains(&kind.as_str())
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The types of file systems, by mount number.
fn mounts(mountinfo: &str) -> HashMap<u64, String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let number = before.split(' ').next()?.parse().ok()?;
        Some((number, after.split(' ').next()?.to_owned()))
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// The mount number in a descriptor's `fdinfo`.
fn mount_of(fdinfo: &str) -> Option<u64> {
    let line = fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

/// Whether disks write into pinned pages, so that pre-copy rounds have to drain them.
pub(crate) fn needs_drain(client: &mut Client) -> Result<bool, QmpError> {
    Ok(first(&nodes(client)?, client.peer()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(driver: &str, direct: bool) -> Node {
        Node {
            name: driver.to_owned(),
            driver: driver.to_owned(),
            file: String::new(),
            direct,
        }
    }

    #[test]
    fn direct_files_pin_and_network_disks_do_not() {
        let own = Some(std::process::id());
        for driver in HOST_FILES {
            let disk = [node("qcow2", true), node(driver, true)];
            assert_eq!(first(&disk, own).map(|node| &*node.name), Some(driver));
        }
        for driver in ["rbd", "nbd", "iscsi", "nfs", "gluster", "https", "ssh"] {
            let disk = [node("raw", true), node(driver, true)];
            assert_eq!(first(&disk, own), None, "{driver}");
        }
        let unknown = [node("of-the-future", false)];
        assert!(
            first(&unknown, own).is_some(),
            "a type that the user allows"
        );
    }

    #[test]
    fn a_buffered_file_pins_where_its_file_system_is_not_known_to_copy() {
        let disk = [node("file", false)];
        // It is unknown where its files are.
        assert!(first(&disk, None).is_some());
        assert!(first(&disk, Some(u32::MAX)).is_some(), "no such process");
        let lines = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:27 / /mnt/gluster\\040a rw - fuse.glusterfs server:/v rw,user_id=0
broken
40 22 0:30 / /cifs rw,nosuid shared:9 master:2 - cifs //s/share rw,cache=none
";
        let found = mounts(lines);
        let kind = |number| found.get(&number).map(String::as_str);
        assert_eq!(
            [kind(22), kind(31), kind(40), kind(1)],
            [Some("ext4"), Some("fuse.glusterfs"), Some("cifs"), None]
        );
        for kind in ["fuse.glusterfs", "fuse", "cifs", "9p", "ceph", "overlay"] {
            assert!(!COPYING.contains(&kind), "{kind}");
        }
        assert_eq!(
            mount_of("pos:\t0\nflags:\t0100002\nmnt_id:\t31\nino:\t7\n"),
            Some(31)
        );
        assert_eq!(mount_of("pos:\t0\n"), None);
    }
}
