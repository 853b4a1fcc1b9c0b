//! RAM files on a disk file system.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use hikkoshi_memory::{GuestRam, RamFile};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, RamBlock, RamLayout};
use rustix::fs::{Advice, Mode, OFlags, fadvise};

const PAGES: u64 = 256;

/// A block in a file in the build's folder, which is on a disk on most machines; `None`, with a
/// printed message, if it is not.
fn ram() -> Option<(GuestRam, File)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let folder = env!("CARGO_TARGET_TMPDIR");
    let file = File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).unwrap());
    file.set_len(PAGES * PAGE_BYTES).unwrap();
    let block = RamBlock::new("ram", PAGES * PAGE_BYTES, PAGE_BYTES);
    let opened = RamFile::new(file.try_clone().unwrap(), 0);
    if !opened.is_on_disk() {
        eprintln!("NOT TESTED: {folder} is not on a disk");
        return None;
    }
    let layout = RamLayout::new(vec![block]).unwrap();
    Some((GuestRam::new(layout, vec![opened]).unwrap(), file))
}

fn data(ram: &GuestRam) -> Vec<u64> {
    let mut found = Vec::new();
    let all = ram.layout().all();
    ram.data_runs(all, |run| found.extend(run.iter().map(Page::index)))
        .unwrap();
    found
}

#[test]
fn holes_are_reported_whether_data_is_cached_or_written_back() {
    let Some((ram, file)) = ram() else {
        return;
    };
    assert!(data(&ram).is_empty());
    let written = [0, 3, 4, 100, 255];
    for page in written {
        file.write_all_at(&[1; PAGE_SIZE], page * PAGE_BYTES)
            .unwrap();
    }
    assert_eq!(data(&ram), written, "in the page cache only");
    // Zeros that are cached are not data.
    file.read_exact_at(&mut [0; PAGE_SIZE], 50 * PAGE_BYTES)
        .unwrap();
    assert_eq!(data(&ram), written, "a hole was read");
    file.sync_data().unwrap();
    assert_eq!(data(&ram), written, "written back");
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    assert_eq!(data(&ram), written, "evicted");
}
