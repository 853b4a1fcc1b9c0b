//! Parses `/proc/PID/maps`: what a process has mapped, and where.

use std::io::{self, BufRead, BufReader, Read};

/// The most lines that are read. By default a process has at most 65,530 mappings
/// (`vm.max_map_count`).
const MAX_LINES: usize = 4 << 20;

/// One line: a range of a process's addresses with the same properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Area {
    /// First address.
    pub(crate) start: u64,
    /// Address after the last.
    pub(crate) end: u64,
    /// Whether the process may read there.
    pub(crate) readable: bool,
    /// Whether the process may write there.
    pub(crate) writable: bool,
    /// Whether the process may execute code there.
    pub(crate) executable: bool,
    /// Whether writes go to the file.
    pub(crate) shared: bool,
    /// Where it begins in the file, in bytes.
    pub(crate) offset: u64,
    /// The file's device number, as in `stat`.
    pub(crate) device: u64,
    /// The file's inode number; 0 for anonymous memory.
    pub(crate) inode: u64,
    /// The file's path as the kernel reports it, without ` (deleted)`; or a mark such as
    /// `[heap]`, or nothing.
    pub(crate) path: String,
    /// Whether the path has been removed.
    pub(crate) deleted: bool,
}

impl Area {
    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it maps a file, which can be a memfd or another file without a path.
    pub(crate) fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// Whether `next` begins where this ends and maps the same memory with the same
    /// rights.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        self.end == next.start
            && (self.readable, self.writable, self.shared)
                == (next.readable, next.writable, next.shared)
            && (self.device, self.inode) == (next.device, next.inode)
            && (!self.is_file() || self.offset.checked_add(self.bytes()) == Some(next.offset))
    }
}

/// A range of a process's addresses that maps a range of one file, both without gaps.
/// It consists of one or more adjacent mappings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First address.
    pub(crate) start: u64,
    /// Address after the last.
    pub(crate) end: u64,
    /// Address after the last of the first mapping in it, which names it in
    /// `/proc/PID/map_files`.
    pub(crate) first_end: u64,
    /// Where it begins in the file, in bytes.
    pub(crate) offset: u64,
    /// The file's device number, as in `stat`.
    pub(crate) device: u64,
    /// The file's inode number.
    pub(crate) inode: u64,
    /// Whether writes go to the file.
    pub(crate) shared: bool,
    /// Whether the process may write there. If it is also shared, the process has
    /// opened the file for writing: otherwise `mmap` and `mprotect` refuse it
    /// (mmap(2), `EACCES`).
    pub(crate) writable: bool,
    /// The file's path as the kernel reports it, without ` (deleted)`.
    pub(crate) path: String,
    /// Whether the path has been removed.
    pub(crate) deleted: bool,
}

impl Mapping {
    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// The address of `bytes` of the file from `offset` on, if this mapping contains
    /// all of them.
    pub(crate) fn address_of(&self, offset: u64, bytes: u64) -> Option<u64> {
        let into = offset.checked_sub(self.offset)?;
        let end = into.checked_add(bytes)?;
        (end <= self.bytes()).then(|| self.start + into)
    }
}

/// The kernel's mark after the path of a removed file.
const DELETED: &str = " (deleted)";

/// Parses the mappings of files. Skips anonymous memory and the like.
pub(crate) fn read(maps: impl Read) -> io::Result<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    for area in areas(maps)? {
        if !area.is_file() || area.path.is_empty() {
            continue;
        }
        // Mappings are adjacent only if there is nothing between them.
        let next = Mapping::from(area);
        match found.last_mut() {
            Some(last) if continues(last, &next) => last.end = next.end,
            _ => found.push(next),
        }
    }
    Ok(found)
}

/// Parses all lines, ascending. Skips those that are not as the kernel prints them.
pub(crate) fn areas(maps: impl Read) -> io::Result<Vec<Area>> {
    let mut found = Vec::new();
    for line in BufReader::new(maps).split(b'\n').take(MAX_LINES) {
        found.extend(parse(&String::from_utf8_lossy(&line?)));
    }
    Ok(found)
}

impl From<Area> for Mapping {
    fn from(area: Area) -> Self {
        Self {
            start: area.start,
            end: area.end,
            first_end: area.end,
            offset: area.offset,
            device: area.device,
            inode: area.inode,
            shared: area.shared,
            writable: area.writable,
            path: area.path,
            deleted: area.deleted,
        }
    }
}

fn continues(last: &Mapping, next: &Mapping) -> bool {
    last.end == next.start
        && last.offset.checked_add(last.bytes()) == Some(next.offset)
        && (last.device, last.inode) == (next.device, next.inode)
        && (last.shared, last.writable) == (next.shared, next.writable)
        && last.path == next.path
}

/// Parses one line: `start-end perms offset major:minor inode   path`.
fn parse(line: &str) -> Option<Area> {
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    let path = path.trim_start();
    let device = rustix::fs::makedev(
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let (start, end) = (hex(start)?, hex(end)?);
    if end <= start {
        return None;
    }
    // A file may really be named "… (deleted)". Then there is only one more
    // candidate.
    let (path, deleted) = match path.strip_suffix(DELETED) {
        Some(path) => (path, true),
        None => (path, false),
    };
    let may = |at: usize, right| permissions.as_bytes().get(at) == Some(&right);
    Some(Area {
        start,
        end,
        readable: may(0, b'r'),
        writable: may(1, b'w'),
        executable: may(2, b'x'),
        shared: may(3, b's'),
        offset: hex(offset)?,
        device,
        inode: inode.parse().ok()?,
        path: unescape(path),
        deleted,
    })
}

/// The kernel escapes only line feeds in a path, as `\012`.
fn unescape(path: &str) -> String {
    path.replace("\\012", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use vm_memory::{FileOffset, MmapRegion};

    /// Of QEMU 7.2 and 10.0 with `-m 4096`, two NUMA backends (one in a
    /// directory, so that QEMU removed its file) and a DIMM; shortened.
    const CAPTURED: &str = "\
55ee84105000-55ee8459c000 r--p 00000000 fe:00 9978464                    /usr/bin/qemu-system-x86_64
55ee8459c000-55ee84c15000 r-xp 00497000 fe:00 9978464                    /usr/bin/qemu-system-x86_64
55ee9b6a2000-55ee9c0e5000 rw-p 00000000 00:00 0                          [heap]
7f682fffd000-7f683fffd000 rw-s 00000000 00:1b 74                         /dev/shm/carol-b
7f683fffd000-7f683fffe000 ---p 00000000 00:00 0 
7f683fffe000-7f68bfffe000 rw-s 00000000 00:1b 73                         /dev/shm/qemu_back_mem.ram1.jk4S9C (deleted)
7f68bffff000-7f68ffffe000 rw-s 00000000 00:1b 72                         /dev/shm/car ol-a
7f68ffffe000-7f693ffff000 rw-s 3ffff000 00:1b 72                         /dev/shm/car ol-a
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn files_of_a_real_process() {
        let found = read(CAPTURED.as_bytes()).unwrap();
        let shared: Vec<_> = found.iter().filter(|mapping| mapping.shared).collect();
        assert_eq!(found.len(), 4, "{found:#?}");
        assert_eq!(shared.len(), 3);
        assert_eq!(found[0].end - found[0].start, 0x4_97000 + 0x679000);
        assert_eq!(shared[0].path, "/dev/shm/carol-b");
        assert_eq!(shared[0].inode, 74);
        assert_eq!(shared[0].device, rustix::fs::makedev(0, 0x1b));
        assert_eq!(shared[0].bytes(), 256 << 20);
        assert_eq!(shared[1].path, "/dev/shm/qemu_back_mem.ram1.jk4S9C");
        assert!(shared[1].deleted);
        assert_eq!(shared[1].bytes(), 2 << 30);
        assert_eq!(shared[2].path, "/dev/shm/car ol-a");
        assert_eq!(shared[2].bytes(), 2 << 30, "two mappings are one stretch");
    }

    #[test]
    fn anonymous_areas_of_a_real_process() {
        let found = areas(CAPTURED.as_bytes()).unwrap();
        assert_eq!(found.len(), 9);
        let heap = &found[2];
        assert_eq!((heap.path.as_str(), heap.is_file()), ("[heap]", false));
        let guard = &found[4];
        assert_eq!((guard.bytes(), guard.path.as_str()), (4096, ""));
        assert!(!guard.readable && !guard.writable && !guard.shared);
        assert!(found[6].is_continued_by(&found[7]));
        assert!(!found[3].is_continued_by(guard));
    }

    #[test]
    fn read_only_mappings_are_separate() {
        let lines = "\
1000-2000 rw-s 00000000 00:1b 7 /a
2000-3000 r--s 00001000 00:1b 7 /a
3000-4000 rw-s 00002000 00:1b 7 /a
4000-5000 rw-s 00003000 00:1b 7 /a
";
        let found = read(lines.as_bytes()).unwrap();
        let written: Vec<_> = found.iter().map(|mapping| mapping.writable).collect();
        assert_eq!(written, [true, false, true]);
        assert_eq!((found[2].first_end, found[2].end), (0x4000, 0x5000));
    }

    #[test]
    fn mappings_merge_only_if_the_file_continues() {
        let lines = "\
1000-2000 rw-s 00000000 00:1b 7 /a
2000-3000 rw-s 00005000 00:1b 7 /a
3000-4000 rw-p 00006000 00:1b 7 /a
4000-5000 rw-p 00007000 00:1b 8 /a
";
        assert_eq!(read(lines.as_bytes()).unwrap().len(), 4);
    }

    #[test]
    fn addresses_of_parts_of_a_file() {
        let mapping = &read(&b"10000-20000 rw-s 00004000 00:1b 7 /a\n"[..]).unwrap()[0];
        assert_eq!(mapping.address_of(0x4000, 0x10000), Some(0x10000));
        assert_eq!(mapping.address_of(0x5000, 0xf000), Some(0x11000));
        assert_eq!(mapping.address_of(0x5000, 0x10000), None);
        assert_eq!(mapping.address_of(0x3000, 0x1000), None);
        assert_eq!(mapping.address_of(u64::MAX, 2), None);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        let lines =
            "\n-\nx-y rw-s 0 0:0 1 /a\n2000-1000 rw-s 0 0:0 1 /a\n1-2 rw-s\n\u{fffd} 1 2 3 4 5\n";
        assert_eq!(read(lines.as_bytes()).unwrap(), []);
    }

    #[test]
    fn our_own_maps_can_be_read() {
        // A file on tmpfs: on other file systems `stat` and the map can report different
        // numbers.
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(4096).unwrap();
        let stat = file.as_file().metadata().unwrap();
        let offset = FileOffset::new(file.reopen().unwrap(), 0);
        let _mapped = MmapRegion::<()>::from_file(offset, 4096).unwrap();
        let found = read(File::open("/proc/self/maps").unwrap()).unwrap();
        let ours = found
            .iter()
            .find(|mapping| (mapping.device, mapping.inode) == (stat.dev(), stat.ino()))
            .unwrap();
        assert_eq!((ours.bytes(), ours.offset, ours.shared), (4096, 0, true));
        assert_eq!(ours.path, file.path().to_str().unwrap());
    }
}
