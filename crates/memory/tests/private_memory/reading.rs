//! Reading finds what was written, fills no holes and breaks up no huge pages.

use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_memory::RamWriter;
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE};
use hikkoshi_userfault::{Features, RegisterMode, RemoteUserfault};

use crate::common::aloud;
use crate::guest_process::{GuestProcess, Kind, PAGES, in_file};
use crate::swap::Swap;

use super::{data, for_each, range, word};

#[test]
fn reading_fills_no_holes() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        for (from, to) in [(0, 1), (5, 8), (2000, 2100), (4095, 4096)] {
            guest.write(range(from, to), 7);
        }
        let ram = guest.ram();
        let (before, used) = (data(&ram), guest.memory_used());
        match kind {
            Kind::Locked => assert_eq!(before, [range(0, PAGES)]),
            Kind::Transparent | Kind::Hugetlb => {
                assert!(before.contains(&range(1536, 2560)) || kind == Kind::Transparent);
            }
            _ => assert_eq!(
                before,
                [
                    range(0, 1),
                    range(5, 8),
                    range(2000, 2100),
                    range(4095, 4096)
                ]
            ),
        }
        // In parts that end in the middle of data and holes, and that begin there.
        for part in [1, 7, 512, 4096] {
            for pages in ram.layout().all().chunks(part) {
                let mut content = vec![0xff; usize::try_from(pages.bytes()).unwrap()];
                ram.read(pages, &mut content).unwrap();
                for (page, content) in pages.iter().zip(content.chunks(PAGE_SIZE)) {
                    let number = page.index();
                    let written = matches!(number, 0 | 5..8 | 2000..2100 | 4095);
                    let expected = if written { number ^ 7 } else { 0 };
                    assert_eq!(content[..8], expected.to_le_bytes(), "{kind:?} {number}");
                    assert!(content[8..].iter().all(|byte| *byte == 0));
                }
            }
        }
        assert_eq!(data(&ram), before, "{kind:?}");
        assert_eq!(guest.memory_used(), used, "{kind:?}");
        guest.finish();
    });
}

/// In `AnonHugePages` of `/proc/PID/smaps`.
#[test]
fn reading_does_not_break_up_huge_pages() {
    let guest = GuestProcess::new(Kind::Transparent);
    let all = range(0, PAGES);
    guest.write(all, 7);
    let ram = guest.ram();
    let before = guest.huge_bytes();
    if before == 0 {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "the host has no transparent huge pages");
        return aloud("NOT TESTED: the host has no transparent huge pages");
    }
    for part in [1, 7, 512, 4096] {
        for pages in all.chunks(part) {
            assert!(ram.has_data(pages).unwrap());
            let mut content = vec![0; usize::try_from(pages.bytes()).unwrap()];
            ram.read(pages, &mut content).unwrap();
            assert_eq!(content[..8], (pages.start().index() ^ 7).to_le_bytes());
        }
    }
    // The kernel's own thread may have made more of them.
    assert!(guest.huge_bytes() >= before, "{before}");
    // A dropped page breaks up its huge page: the number shows it.
    for page in (5..PAGES).step_by(512) {
        guest.advise(range(page, page + 1), libc::MADV_DONTNEED);
    }
    assert!(guest.huge_bytes() < before, "{before}");
    guest.finish();
}

/// Pages that the process has not written are the file's, and are data.
#[test]
fn a_private_mapping_of_a_file_reads_as_the_process_does() {
    let guest = GuestProcess::new(Kind::FullFile);
    guest.write(range(10, 20), 5);
    let ram = guest.ram();
    let used = guest.memory_used();
    let expected = |page: u64| match page {
        10..20 => page ^ 5,
        page if page.is_multiple_of(3) => u64::from_le_bytes(in_file(page)),
        _ => 0,
    };
    let mut content = vec![0xff; 100 * PAGE_SIZE];
    ram.read(range(0, 100), &mut content).unwrap();
    for (page, content) in (0..100).zip(content.chunks(PAGE_SIZE)) {
        assert_eq!(content[..8], expected(page).to_le_bytes(), "page {page}");
    }
    assert_eq!(guest.memory_used(), used, "nothing was copied");
    let found = data(&ram);
    let begin = [(0, 1), (3, 4), (6, 7), (9, 20), (21, 22)].map(|(from, to)| range(from, to));
    assert_eq!(found[..5], begin);
    for page in [0, 1, 9, 10, 19, 20, 21] {
        assert_eq!(guest.read(page), expected(page), "page {page}");
    }
    guest.finish();
}

/// Pages that a dirty log has protected before they exist are holes.
#[test]
fn write_protected_holes_are_holes() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        guest.write(range(5, 8), 7);
        let ram = guest.ram();
        let (before, used) = (data(&ram), guest.memory_used());
        let remote = RemoteUserfault::create_in(&guest.process, Features::FOR_DIRTY_LOG).unwrap();
        let host = HostRange::new(HostAddr(guest.address()), PAGES * PAGE_BYTES);
        let userfault = remote.userfault();
        userfault
            .register(host, RegisterMode::WRITE_PROTECT)
            .unwrap();
        userfault.write_protect(host, true).unwrap();
        assert_eq!(data(&ram), before, "{kind:?}");
        assert_eq!((word(&ram, 6), word(&ram, 3000)), (6 ^ 7, 0), "{kind:?}");
        assert_eq!(
            (data(&ram), guest.memory_used()),
            (before, used),
            "{kind:?}"
        );
        guest.write(range(3000, 3001), 7);
        assert_eq!(word(&ram, 3000), 3000 ^ 7, "{kind:?}");
        userfault.unregister(host).unwrap();
        remote.close_remote().unwrap();
        guest.finish();
    });
}

#[test]
fn swapped_pages_are_present_and_read() {
    let Some(swap) = Swap::on() else { return };
    for_each(&[Kind::Anonymous, Kind::EmptyFile], |kind| {
        let guest = GuestProcess::new(kind);
        guest.write(range(100, 1000), 7);
        let ram = guest.ram();
        guest.advise(range(0, PAGES), libc::MADV_PAGEOUT);
        let status = format!("/proc/{}/status", guest.target.pid);
        let status = std::fs::read_to_string(status).unwrap();
        let swapped = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
        assert_ne!(
            swapped.unwrap().trim(),
            "0 kB",
            "{kind:?}: nothing was swapped"
        );
        assert_eq!(data(&ram), [range(100, 1000)], "{kind:?}");
        assert_eq!((word(&ram, 99), word(&ram, 500)), (0, 500 ^ 7), "{kind:?}");
        guest.advise(range(0, PAGES), libc::MADV_PAGEOUT);
        let memory = RamWriter::open(ram.clone()).unwrap();
        memory.drop_stale(&[range(0, 200)]).unwrap();
        assert_eq!(data(&ram), [range(200, 1000)], "{kind:?}");
        guest.finish();
    });
    drop(swap);
}
