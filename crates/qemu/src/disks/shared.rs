//! Names of files and devices by which another host recognises them.
//!
//! They can only show that two images are one: different names say nothing. A server has several
//! addresses, and not every device has a number of its own.

use std::fs;
use std::path::Path;

/// File systems that one host uses at a time. Any other may be one that several hosts use: over a
/// network, on a device that all reach, or a folder of the host below.
const OWN: [&str; 30] = [
    "aufs",
    "bcachefs",
    "btrfs",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "fuseblk",
    "hfsplus",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "minix",
    "msdos",
    "nilfs2",
    "ntfs3",
    "overlay",
    "ramfs",
    "reiserfs",
    "rootfs",
    "squashfs",
    "tmpfs",
    "udf",
    "ufs",
    "vfat",
    "xfs",
    "zfs",
];

/// Those whose source names the same thing on each host, and whose inode numbers are the server's
/// or the file system's. Others number files as each host sees them first (`sshfs`), or have a
/// folder of the host as their source (`virtiofs`, `9p`, `bindfs`, `mergerfs`).
const WITH_SERVER: [&str; 18] = [
    "acfs",
    "afs",
    "beegfs",
    "ceph",
    "coda",
    "fuse.ceph-fuse",
    "fuse.glusterfs",
    "gfs2",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "panfs",
    "pvfs2",
    "cifs",
    "smb3",
];

/// The kind of a file system that is not among the mounts of QEMU: of a descriptor that another
/// program has passed, or one that was unmounted lazily.
const UNKNOWN: &str = "its mount is not known";

/// Those whose `f_fsid` follows from a number in the file system itself.
const WITH_NUMBER: [&str; 3] = ["ceph", "gfs2", "ocfs2"];

/// A file system that other hosts may use as well, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SharedFileSystem {
    /// Its type.
    pub(super) kind: String,
    /// What is mounted: for instance `server:/export`.
    source: String,
    /// Whether the source names the same thing on each host, and inode numbers are the server's.
    has_server: bool,
    /// Its own number. `None`: it has none.
    number: Option<u64>,
}

impl SharedFileSystem {
    /// That of a file that process `pid` has open, by its entry in `/proc/PID/fd`. `None`: it is
    /// one of this host only.
    pub(super) fn of(pid: u32, descriptor: &Path) -> Option<Self> {
        let number = descriptor.file_name().unwrap_or_default();
        let fdinfo = Path::new("/proc")
            .join(format!("{pid}/fdinfo"))
            .join(number);
        // What cannot be read is not known.
        let fdinfo = fs::read_to_string(fdinfo).unwrap_or_default();
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let mut shared = Self::among(&mounts, &fdinfo)?;
        if WITH_NUMBER.contains(&shared.kind.as_str()) {
            let found = rustix::fs::statvfs(descriptor).ok()?.f_fsid;
            shared.number = (found != 0).then_some(found);
        }
        Some(shared)
    }

    /// That of the mount which `fdinfo` names (proc_pid_fdinfo(5), proc_pid_mountinfo(5)).
    fn among(mountinfo: &str, fdinfo: &str) -> Option<Self> {
        let Some((kind, source, options)) = mount(mountinfo, fdinfo) else {
            return Some(Self {
                kind: UNKNOWN.to_owned(),
                source: String::new(),
                has_server: false,
                number: None,
            });
        };
        let has_server = match kind {
            // Linux gives this option for a mount that uses the server's numbers, which is the
            // default. Without it each host has numbers of its own.
            "cifs" | "smb3" => options.split(',').any(|option| option == "serverino"),
            kind => WITH_SERVER.contains(&kind),
        };
        (!OWN.contains(&kind)).then(|| Self {
            kind: kind.to_owned(),
            source: source.to_owned(),
            has_server,
            number: None,
        })
    }

    /// Names of the file with this inode number, which is the same on all hosts: the server has it,
    /// or the file system.
    pub(super) fn names_of(&self, inode: u64) -> Vec<String> {
        let kind = match self.kind.as_str() {
            "nfs4" => "nfs",
            "smb3" => "cifs",
            kind => kind,
        };
        let by_source = (self.has_server)
            .then(|| format!("{kind}:{}:{inode}", self.source.trim_end_matches('/')));
        let by_number = self.number.map(|fs| format!("{kind}:{fs:x}:{inode}"));
        by_source.into_iter().chain(by_number).collect()
    }
}

/// Type, source and options of the mount which `fdinfo` names.
fn mount<'m>(mountinfo: &'m str, fdinfo: &str) -> Option<(&'m str, &'m str, &'m str)> {
    let mut lines = fdinfo.lines();
    let mount = lines.find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mut lines = mountinfo.lines();
    let line = lines.find(|line| line.split(' ').next() == Some(mount))?;
    let (_, after) = line.split_once(" - ")?;
    let mut fields = after.split(' ');
    Some((
        fields.next()?,
        fields.next()?,
        fields.next().unwrap_or_default(),
    ))
}

/// Names of a block device that other hosts reach as well: the World Wide Name of a disk, or the
/// UUID of a logical volume, multipath or encrypted device. `sys` is where sysfs is mounted.
pub(super) fn device_names(sys: &Path, device: u64) -> Vec<String> {
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    // A link to the device's folder.
    let Ok(folder) = fs::canonicalize(sys.join("dev/block").join(number)) else {
        return Vec::new();
    };
    let read = |folder: &Path, name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        let text = text.trim().replace(' ', "_");
        (!text.is_empty()).then_some(text)
    };
    let mut names = Vec::new();
    // The folder of a partition is in that of its disk.
    let (disk, part) = match read(&folder, "partition") {
        Some(_) => (folder.parent().unwrap_or(&folder), read(&folder, "start")),
        None => (&*folder, Some("0".to_owned())),
    };
    let world_wide = read(disk, "wwid").or_else(|| read(disk, "device/wwid"));
    // Names of other kinds have serial numbers, which virtual disks have in common.
    let is_unique = |name: &String| {
        ["naa.", "eui.", "uuid."]
            .iter()
            .any(|kind| name.starts_with(kind))
    };
    if let (Some(name), Some(part)) = (world_wide.filter(is_unique), part) {
        names.push(format!("wwn:{name}:{part}"));
    }
    let mapped = read(&folder, "dm/uuid").filter(|uuid| {
        ["LVM-", "mpath-", "CRYPT-LUKS"]
            .iter()
            .any(|kind| uuid.starts_with(kind))
            || uuid.contains("-mpath-")
    });
    names.extend(mapped.map(|uuid| format!("dm:{uuid}")));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 252:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 22 0:50 / /images rw shared:9 - nfs4 server:/images rw,vers=4.2,addr=10.0.0.5
32 22 0:51 /a /other rw - nfs server:/images/ rw,vers=3
33 22 0:52 / /remote rw - fuse.sshfs root@host:/ rw
34 22 8:1 / /usb rw - fuseblk /dev/sda1 rw
35 22 0:53 / /share rw - virtiofs share rw
37 22 0:55 / /gluster rw - fuse.glusterfs server:/volume rw
38 22 0:56 / /bound rw - fuse.bindfs /srv/images rw
39 22 0:57 / /cifs rw - cifs //server/images rw,vers=3.1.1,serverino,mapposix
40 22 0:58 / /smb rw - smb3 //server/images/ rw,serverino
41 22 0:59 / /own-numbers rw - cifs //server/images rw,vers=3.1.1
42 22 0:60 / /weka rw - wekafs cluster/images rw
43 22 0:61 / /plain rw - fuse something rw
36 22 0:54 / /with\\040space rw - ceph 10.0.0.1:6789:/\\040a rw
";

    fn at(mount: u32) -> Option<SharedFileSystem> {
        let fdinfo = format!("pos:\t0\nflags:\t02100002\nmnt_id:\t{mount}\nino:\t12\n");
        SharedFileSystem::among(MOUNTS, &fdinfo)
    }

    #[test]
    fn file_systems_of_several_hosts_are_known_by_their_types() {
        let kinds = [31, 32, 33, 35, 36].map(|mount| at(mount).unwrap().kind);
        assert_eq!(kinds, ["nfs4", "nfs", "fuse.sshfs", "virtiofs", "ceph"]);
        for mount in [22, 34] {
            assert_eq!(at(mount), None, "{mount}");
        }
        // One that no list has, plain FUSE, and mounts that QEMU does not see.
        let kinds = [42, 43, 99, 3].map(|mount| at(mount).unwrap().kind);
        assert_eq!(kinds, ["wekafs", "fuse", UNKNOWN, UNKNOWN]);
        let unknown = SharedFileSystem::of(std::process::id(), Path::new("/proc/self/fd/99999"));
        assert_eq!(unknown.unwrap().kind, UNKNOWN);
    }

    #[test]
    fn a_file_has_the_same_names_on_all_hosts() {
        let names = |mount, inode| at(mount).unwrap().names_of(inode);
        assert_eq!(names(31, 12), ["nfs:server:/images:12"]);
        assert_eq!(
            names(31, 12),
            names(32, 12),
            "by another version, and at another place"
        );
        assert_ne!(names(31, 12), names(31, 13));
        assert_eq!(names(36, 5), ["ceph:10.0.0.1:6789:/\\040a:5"]);
        assert_eq!(names(37, 5), ["fuse.glusterfs:server:/volume:5"]);
        assert_eq!(names(39, 5), ["cifs://server/images:5"]);
        assert_eq!(names(39, 5), names(40, 5));
        // The name of the folder is that of another folder on another host, or each host has
        // numbers of its own.
        for mount in [33, 35, 38, 41, 42, 43, 99] {
            assert!(names(mount, 12).is_empty(), "{mount}");
        }
        let numbered = SharedFileSystem {
            number: Some(0xabc),
            ..at(36).unwrap()
        };
        assert_eq!(numbered.names_of(5)[1], "ceph:abc:5");
    }

    /// The real thing: this host's own file systems are not shared, or have a name.
    #[test]
    fn an_open_file_of_this_host_is_not_shared() {
        use std::os::fd::AsRawFd;
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        let descriptor = format!("/proc/self/fd/{}", shm.as_raw_fd());
        let found = SharedFileSystem::of(std::process::id(), Path::new(&descriptor));
        assert_eq!(found, None);
    }

    /// A folder as sysfs has it, with these files.
    fn sysfs(files: &[(&str, &str)], link: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join("devices").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, text) in files {
            write(name, text);
        }
        let block = folder.path().join("dev/block");
        fs::create_dir_all(&block).unwrap();
        let target = Path::new("../../devices").join(link);
        std::os::unix::fs::symlink(target, block.join("8:1")).unwrap();
        folder
    }

    #[test]
    fn devices_have_the_names_that_other_hosts_know() {
        let device = rustix::fs::makedev(8, 1);
        let names = |files: &[(&str, &str)], link: &str| {
            let folder = sysfs(files, link);
            device_names(folder.path(), device)
        };
        let disk = ("sda/device/wwid", "naa.600508b1001c\n");
        assert_eq!(names(&[disk], "sda"), ["wwn:naa.600508b1001c:0"]);
        let part = [
            disk,
            ("sda/sda1/partition", "1\n"),
            ("sda/sda1/start", "2048\n"),
        ];
        assert_eq!(names(&part, "sda/sda1"), ["wwn:naa.600508b1001c:2048"]);
        assert_eq!(
            names(&[("nvme0n1/wwid", "eui.0025388\n")], "nvme0n1"),
            ["wwn:eui.0025388:0"]
        );
        let volume = ("dm-0/dm/uuid", "LVM-abcDEF\n");
        assert_eq!(names(&[volume], "dm-0"), ["dm:LVM-abcDEF"]);
        // Serial numbers of virtual disks, and mappings without a number of their own.
        let virtual_disk = ("sda/device/wwid", "t10.ATA     QEMU HARDDISK   QM00001\n");
        assert!(names(&[virtual_disk], "sda").is_empty());
        assert!(names(&[("dm-0/dm/uuid", "\n")], "dm-0").is_empty());
        assert!(device_names(Path::new("/no/such/folder"), device).is_empty());
    }
}
