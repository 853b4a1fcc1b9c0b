//! Memory that a destination fills counts in the memory cgroup of the guest's process, and not in
//! that of this process.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_memory::RamWriter;
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE};
use hikkoshi_userfault::{Features, RemoteUserfault};

use crate::guest_process::{GuestProcess, Kind, PAGES};

use super::range;

/// A memory cgroup, version 1 or 2. Removed on drop.
struct Group {
    folder: PathBuf,
    used: &'static str,
}

impl Group {
    /// `None` where no memory controller is mounted. A run of CI fails then.
    fn new(kind: Kind) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let found = mounts.lines().find_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let root = Path::new(words[1]);
            let enabled = || fs::read_to_string(root.join("cgroup.subtree_control")).unwrap();
            match words[2] {
                "cgroup" if words[3].split(',').any(|option| option == "memory") => {
                    Some((root.to_owned(), "memory.usage_in_bytes"))
                }
                "cgroup2" if enabled().split_whitespace().any(|name| name == "memory") => {
                    Some((root.to_owned(), "memory.current"))
                }
                _ => None,
            }
        });
        let Some((root, used)) = found else {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "no hierarchy with the memory controller is mounted");
            eprintln!("NOT TESTED: no hierarchy with the memory controller is mounted");
            return None;
        };
        let folder = root.join(format!("hikkoshi-charged-{}-{kind:?}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Some(Self { folder, used })
    }

    fn add(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn used_pages(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.used)).unwrap();
        text.trim().parse::<u64>().unwrap() / PAGE_BYTES
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let since = Instant::now();
        // A process that was ended may still be in it.
        while let Err(error) = fs::remove_dir(&self.folder) {
            if error.kind() == ErrorKind::NotFound || since.elapsed() > Duration::from_secs(10) {
                eprintln!("removing {}: {error}", self.folder.display());
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn filled_memory_is_charged_to_the_process_of_the_guest() {
    let kinds = [
        (Kind::Anonymous, true),
        (Kind::Anonymous, false),
        (Kind::Shared, true),
        (Kind::Shared, false),
        (Kind::SharedHuge, false),
    ];
    for (kind, by_userfault) in kinds {
        let Some(group) = Group::new(kind) else {
            return;
        };
        let guest = GuestProcess::new(kind);
        group.add(guest.process.pid());
        let before = group.used_pages();
        let mut memory = RamWriter::open(guest.ram()).unwrap();
        memory.drop_all().unwrap();
        if by_userfault {
            let remote = RemoteUserfault::create_in(&guest.process, Features::NONE).unwrap();
            remote.close_remote().unwrap();
            memory.install_absent(remote.userfault().clone()).unwrap();
        }
        let content = vec![7; 64 * PAGE_SIZE];
        for start in (0..PAGES).step_by(64) {
            memory.write(range(start, start + 64), &content).unwrap();
        }
        memory.end_installing();
        let charged = group.used_pages() - before;
        // The kernel charges in batches of 64 pages for each processor.
        assert!(
            charged + 256 >= PAGES,
            "{kind:?} {by_userfault}: {charged} of {PAGES} pages"
        );
        guest.finish();
    }
}
