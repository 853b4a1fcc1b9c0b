//! Names of files and devices by which another host recognises them.
//!
//! A common name that is *unique* shows that two images are one. Others are also those of clones: a
//! logical volume has the same UUID in each copy of its host. Different names say nothing: a server
//! has several addresses, and not every device has a number of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use hikkoshi_wire::ImageName;

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

/// Whether a file system of this type is one that one host uses at a time.
pub(crate) fn is_of_one_host(kind: &str) -> bool {
    OWN.contains(&kind)
}

/// The type of the file system of an open file, if several hosts may use it. `process` is one that
/// has it mounted.
pub fn shared_file_system(file: &fs::File, process: u32) -> Option<String> {
    let fdinfo = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    // What cannot be read is not known.
    let fdinfo = fs::read_to_string(fdinfo).unwrap_or_default();
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let found = FileSystem::among(&mounts, &fdinfo);
    found.is_shared.then_some(found.kind)
}

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

/// Those of [`WITH_SERVER`] whose sources are unique enough, as they name a server. Others are
/// called by a device or a word, which is the same on hosts that have nothing in common.
const NAMED_BY_SERVER: [&str; 8] = [
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "lustre",
    "nfs",
    "nfs4",
    "orangefs",
    "smb3",
];

/// The kind of a file system that is not among the mounts of QEMU: of a descriptor that another
/// program has passed, or one that was unmounted lazily.
const UNKNOWN: &str = "its mount is not known";

/// Those whose `f_fsid` follows from a number in the file system itself.
const WITH_NUMBER: [&str; 3] = ["ceph", "gfs2", "ocfs2"];

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileSystem {
    /// Its type.
    pub(super) kind: String,
    /// Whether other hosts may use it as well, as far as is known.
    pub(super) is_shared: bool,
    /// What is mounted: for instance `server:/export`.
    source: String,
    /// Whether the source names the same thing on each host, and inode numbers are the server's.
    has_server: bool,
    /// Its own number. `None`: it has none.
    number: Option<u64>,
}

impl FileSystem {
    /// That of a file that process `pid` has open, by its entry in `/proc/PID/fd`.
    pub(super) fn of_descriptor(pid: u32, descriptor: &Path) -> Self {
        let number = descriptor.file_name().unwrap_or_default();
        let fdinfo = Path::new("/proc")
            .join(format!("{pid}/fdinfo"))
            .join(number);
        // What cannot be read is not known.
        let fdinfo = fs::read_to_string(fdinfo).unwrap_or_default();
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let mut found = Self::among(&mounts, &fdinfo);
        if WITH_NUMBER.contains(&found.kind.as_str()) {
            let number = rustix::fs::statvfs(descriptor).map_or(0, |found| found.f_fsid);
            found.number = (number != 0).then_some(number);
        }
        found
    }

    /// That of the mount which `fdinfo` names (proc_pid_fdinfo(5), proc_pid_mountinfo(5)).
    fn among(mountinfo: &str, fdinfo: &str) -> Self {
        let Some((kind, source, options)) = mount(mountinfo, fdinfo) else {
            return Self {
                kind: UNKNOWN.to_owned(),
                is_shared: true,
                source: String::new(),
                has_server: false,
                number: None,
            };
        };
        let has_server = match kind {
            // Linux gives this option for a mount that uses the server's numbers, which is the
            // default. Without it each host has numbers of its own.
            "cifs" | "smb3" => options.split(',').any(|option| option == "serverino"),
            kind => WITH_SERVER.contains(&kind),
        };
        Self {
            kind: kind.to_owned(),
            is_shared: !is_of_one_host(kind),
            source: source.to_owned(),
            has_server,
            number: None,
        }
    }

    /// Names of the file with this inode number, which is the same on all hosts: the server has it,
    /// or the file system.
    pub(super) fn names_of(&self, inode: u64) -> Vec<ImageName> {
        let kind = match self.kind.as_str() {
            "nfs4" => "nfs",
            "smb3" => "cifs",
            kind => kind,
        };
        let source = self.source.trim_end_matches('/');
        // Of GlusterFS, the inode number is made of a random one, and each host mounts itself.
        let is_unique = NAMED_BY_SERVER.contains(&self.kind.as_str())
            && (kind == "fuse.glusterfs" || !is_own_host(source.trim_start_matches('/')));
        let by_source = self.has_server.then(|| ImageName {
            name: format!("{kind}:{source}:{inode}").into(),
            unique: is_unique,
        });
        let by_number = self.number.map(|fs| ImageName {
            name: format!("{kind}:{fs:x}:{inode}").into(),
            unique: true,
        });
        by_source.into_iter().chain(by_number).collect()
    }
}

/// Whether an address, perhaps with a port or a path behind it, means the host that uses it.
pub(super) fn is_own_host(address: &str) -> bool {
    let host = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None if address.starts_with("::") => address,
        None => address.split([':', '/', ',']).next().unwrap_or_default(),
    };
    let own = ["", "*", "localhost", "0.0.0.0", "::", "::1"];
    own.contains(&host) || host.starts_with("127.") || host.starts_with("localhost.")
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
pub(super) fn device_names(sys: &Path, device: u64) -> Vec<ImageName> {
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    // A link to the device's folder.
    let Ok(folder) = fs::canonicalize(sys.join("dev/block").join(number)) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    names.extend(world_wide_name(&folder).map(|name| ImageName {
        name: format!("wwn:{name}").into(),
        unique: true,
    }));
    let mapped = read(&folder, "dm/uuid").filter(|uuid| {
        ["LVM-", "mpath-", "CRYPT-LUKS"]
            .iter()
            .any(|kind| uuid.starts_with(kind))
            || uuid.contains("-mpath-")
    });
    if let Some(uuid) = mapped {
        let name = |name: String, unique| ImageName {
            name: name.into(),
            unique,
        };
        names.push(name(format!("dm:{uuid}"), false));
        // A clone of the disks has that UUID, too, but not their names.
        if let Some(disks) = disks_below(&folder, MAX_LAYERS)
            && !disks.is_empty()
        {
            let disks = Vec::from_iter(disks).join("+");
            names.push(name(format!("dm:{uuid}@{disks}"), true));
        }
    }
    names
}

/// How many mapped devices may be on top of each other.
const MAX_LAYERS: usize = 8;

/// A file of a device's folder in sysfs, as one word.
fn read(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    let text = text.trim().replace(' ', "_");
    (!text.is_empty()).then_some(text)
}

/// The World Wide Name of the disk with this folder, or of the disk of a partition, and where it
/// begins there.
fn world_wide_name(folder: &Path) -> Option<String> {
    // The folder of a partition is in that of its disk.
    let (disk, start) = match read(folder, "partition") {
        Some(_) => (folder.parent().unwrap_or(folder), read(folder, "start")?),
        None => (folder, "0".to_owned()),
    };
    let name = read(disk, "wwid").or_else(|| read(disk, "device/wwid"))?;
    // Names of other kinds have serial numbers, which virtual disks have in common.
    let is_unique = ["naa.", "eui.", "uuid."]
        .iter()
        .any(|kind| name.starts_with(kind));
    is_unique.then(|| format!("{name}:{start}"))
}

/// The World Wide Names of the disks below a mapped device. `None`: one has none.
fn disks_below(folder: &Path, layers: usize) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for slave in fs::read_dir(folder.join("slaves")).ok()? {
        let slave = fs::canonicalize(slave.ok()?.path()).ok()?;
        match world_wide_name(&slave) {
            Some(name) => drop(names.insert(name)),
            None => names.extend(disks_below(&slave, layers.checked_sub(1)?)?),
        }
    }
    (!names.is_empty()).then_some(names)
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

    fn at(mount: u32) -> FileSystem {
        let fdinfo = format!("pos:\t0\nflags:\t02100002\nmnt_id:\t{mount}\nino:\t12\n");
        FileSystem::among(MOUNTS, &fdinfo)
    }

    fn texts(names: &[ImageName]) -> Vec<&str> {
        names.iter().map(|name| &*name.name).collect()
    }

    #[test]
    fn file_systems_of_several_hosts_are_known_by_their_types() {
        let kinds = [31, 32, 33, 35, 36].map(|mount| at(mount).kind);
        assert_eq!(kinds, ["nfs4", "nfs", "fuse.sshfs", "virtiofs", "ceph"]);
        // One that no list has, plain FUSE, and mounts that QEMU does not see.
        let kinds = [42, 43, 99, 3].map(|mount| at(mount).kind);
        assert_eq!(kinds, ["wekafs", "fuse", UNKNOWN, UNKNOWN]);
        for mount in [31, 32, 33, 35, 36, 42, 43, 99, 3] {
            assert!(at(mount).is_shared, "{mount}");
        }
        for mount in [22, 34] {
            assert!(!at(mount).is_shared, "{mount}");
        }
        let unknown =
            FileSystem::of_descriptor(std::process::id(), Path::new("/proc/self/fd/99999"));
        assert_eq!(unknown.kind, UNKNOWN);
    }

    #[test]
    fn a_file_has_the_same_names_on_all_hosts() {
        let names = |mount, inode| at(mount).names_of(inode);
        let unique = |name: &str| {
            [ImageName {
                name: name.into(),
                unique: true,
            }]
        };
        assert_eq!(names(31, 12), unique("nfs:server:/images:12"));
        assert_eq!(
            names(31, 12),
            names(32, 12),
            "by another version, and at another place"
        );
        assert_ne!(names(31, 12), names(31, 13));
        assert_eq!(names(36, 5), unique("ceph:10.0.0.1:6789:/\\040a:5"));
        assert_eq!(names(37, 5), unique("fuse.glusterfs:server:/volume:5"));
        assert_eq!(names(39, 5), unique("cifs://server/images:5"));
        assert_eq!(names(39, 5), names(40, 5));
        // The name of the folder is that of another folder on another host, or each host has
        // numbers of its own.
        for mount in [33, 35, 38, 41, 42, 43, 99] {
            assert!(names(mount, 12).is_empty(), "{mount}");
        }
        let numbered = FileSystem {
            number: Some(0xabc),
            ..at(36)
        };
        assert_eq!(texts(&numbered.names_of(5))[1], "ceph:abc:5");
    }

    /// Two hosts that have nothing in common can mount something of such a name.
    #[test]
    fn a_name_that_is_not_that_of_a_server_shows_nothing() {
        let is_unique = |kind: &str, source: &str| {
            let fs = FileSystem {
                kind: kind.into(),
                source: source.into(),
                ..at(31)
            };
            fs.names_of(12)[0].unique
        };
        for (kind, source) in [
            ("nfs4", "localhost:/images"),
            ("nfs", "127.0.0.1:/images"),
            ("nfs4", "[::1]:/images"),
            ("cifs", "//localhost/images"),
            ("gfs2", "/dev/sdb"),
            ("ocfs2", "/dev/sdb"),
            ("gpfs", "gpfs0"),
            ("beegfs", "beegfs_nodev"),
        ] {
            assert!(!is_unique(kind, source), "{kind} {source}");
        }
        for (kind, source) in [
            ("nfs4", "localhosts.example:/images"),
            ("nfs4", "10.127.0.1:/images"),
            ("fuse.glusterfs", "localhost:/volume"),
        ] {
            assert!(is_unique(kind, source), "{kind} {source}");
        }
    }

    /// The real thing: this host's own file systems are not shared, or have a name.
    #[test]
    fn an_open_file_of_this_host_is_not_shared() {
        use std::os::fd::AsRawFd;
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        let descriptor = format!("/proc/self/fd/{}", shm.as_raw_fd());
        let found = FileSystem::of_descriptor(std::process::id(), Path::new(&descriptor));
        assert_eq!((&*found.kind, found.is_shared), ("tmpfs", false));
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
            let names = device_names(folder.path(), device);
            let texts = names.iter().map(|it| (it.name.to_string(), it.unique));
            texts.collect::<Vec<_>>()
        };
        let unique = |name: &str| vec![(name.to_owned(), true)];
        let disk = ("sda/device/wwid", "naa.600508b1001c\n");
        assert_eq!(names(&[disk], "sda"), unique("wwn:naa.600508b1001c:0"));
        let part = [
            disk,
            ("sda/sda1/partition", "1\n"),
            ("sda/sda1/start", "2048\n"),
        ];
        assert_eq!(
            names(&part, "sda/sda1"),
            unique("wwn:naa.600508b1001c:2048")
        );
        assert_eq!(
            names(&[("nvme0n1/wwid", "eui.0025388\n")], "nvme0n1"),
            unique("wwn:eui.0025388:0")
        );
        // A clone of the host has a volume with the same UUID, on another disk.
        let volume = ("dm-0/dm/uuid", "LVM-abcDEF\n");
        let cloned = ("dm:LVM-abcDEF".to_owned(), false);
        assert_eq!(names(&[volume], "dm-0"), std::slice::from_ref(&cloned));
        let on_disk = [
            volume,
            ("dm-0/slaves/sda/device/wwid", "naa.600508b1001c\n"),
        ];
        let found = names(&on_disk, "dm-0");
        let expected = ("dm:LVM-abcDEF@naa.600508b1001c:0".to_owned(), true);
        assert_eq!(found, [cloned.clone(), expected]);
        // One of its disks has no name.
        let on_disks = [on_disk[0], on_disk[1], ("dm-0/slaves/sdb/size", "1\n")];
        assert_eq!(names(&on_disks, "dm-0"), [cloned]);
        // Serial numbers of virtual disks, and mappings without a number of their own.
        let virtual_disk = ("sda/device/wwid", "t10.ATA     QEMU HARDDISK   QM00001\n");
        assert!(names(&[virtual_disk], "sda").is_empty());
        assert!(names(&[("dm-0/dm/uuid", "\n")], "dm-0").is_empty());
        assert!(device_names(Path::new("/no/such/folder"), device).is_empty());
    }
}
