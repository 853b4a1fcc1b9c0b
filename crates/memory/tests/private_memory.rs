//! The same tests for each kind of memory that a RAM block can have.

#![allow(missing_docs)]
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../linux/tests/common/mod.rs"]
mod common;
#[path = "common/guest_process.rs"]
mod guest_process;
#[path = "common/swap.rs"]
mod swap;

use common::{HugePages, aloud};
use guest_process::{GuestProcess, Kind, PAGES, in_file};
use hikkoshi_linux::{COLLAPSE_BYTES, HostAddr, HostRange};
use hikkoshi_memory::{GuestRam, MemoryError, MemoryLost, RamWriter, missing_pages};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, PageRange};
use hikkoshi_userfault::{Features, RegisterMode, RemoteUserfault};
use swap::Swap;

fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

/// Runs a test for each kind; hugetlb needs a pool.
fn for_each(kinds: &[Kind], test: impl Fn(Kind)) {
    for &kind in kinds {
        let _pool = match kind {
            Kind::Hugetlb => match HugePages::reserve(PAGES / 512 + 2) {
                Some(pool) => Some(pool),
                None => continue,
            },
            _ => None,
        };
        eprintln!("{kind:?}");
        test(kind);
    }
}

/// The runs of pages that are not holes.
fn data(ram: &GuestRam) -> Vec<PageRange> {
    let mut found: Vec<PageRange> = Vec::new();
    let mut rest = ram.layout().all();
    while let Some(run) = ram.next_data(rest).unwrap() {
        assert!(!run.is_empty() && ram.has_data(run).unwrap());
        match found.last_mut() {
            Some(last) if last.end() == run.start() => {
                *last = range(last.start().index(), run.end().index())
            }
            _ => found.push(run),
        }
        rest = PageRange::new(run.end(), rest.end());
    }
    found
}

/// The first word of a page.
fn word(ram: &GuestRam, page: u64) -> u64 {
    let mut content = [0xff; PAGE_SIZE];
    ram.read(range(page, page + 1), &mut content).unwrap();
    u64::from_le_bytes(content[..8].try_into().unwrap())
}

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

#[test]
fn pages_are_written_zeroed_and_dropped() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        // What a machine has loaded before the guest arrives: firmware.
        guest.write(range(100, 600), 3);
        let ram = guest.ram();
        let memory = RamWriter::open(ram.clone()).unwrap();
        assert!(memory.may_hold_more().unwrap());
        memory.drop_all().unwrap();
        if kind != Kind::Hugetlb {
            assert_eq!(data(&ram), [], "{kind:?}");
        }
        assert_eq!((word(&ram, 100), guest.read(300)), (0, 0), "{kind:?}");
        let content: Vec<u8> = (1..=u8::MAX).cycle().take(600 * PAGE_SIZE).collect();
        memory.write(range(1000, 1600), &content).unwrap();
        let mut read = vec![0; content.len()];
        ram.read(range(1000, 1600), &mut read).unwrap();
        assert!(read == content, "{kind:?}");
        let first = u64::from_le_bytes(content[PAGE_SIZE..][..8].try_into().unwrap());
        assert_eq!(guest.read(1001), first, "{kind:?}: the process sees it");
        memory.zero(range(900, 1100)).unwrap();
        assert_eq!((guest.read(1050), word(&ram, 1099)), (0, 0), "{kind:?}");
        assert_ne!(guest.read(1100), 0, "{kind:?}");
        // Whole huge pages.
        memory.drop_stale(&[range(1024, 1536)]).unwrap();
        assert_eq!((word(&ram, 1100), guest.read(1535)), (0, 0), "{kind:?}");
        assert_ne!(guest.read(1536), 0, "{kind:?}");
        guest.finish();
    });
}

/// As QEMU's monitor does by `pmemsave`: reading a hole of a file fills it.
#[test]
fn the_process_reads_memory_while_it_is_dropped() {
    let guest = GuestProcess::new(Kind::Shared);
    let ram = guest.ram();
    let memory = RamWriter::open(ram.clone()).unwrap();
    let ranges: Vec<_> = (0..PAGES / 2).map(|n| range(n * 2, n * 2 + 1)).collect();
    for round in 0..3 {
        guest.write(range(0, PAGES), round);
        std::thread::scope(|scope| {
            // Each page once: a page that was dropped again is not read again.
            let reader = scope.spawn(|| {
                for page in 0..PAGES {
                    guest.read(page);
                }
            });
            memory.drop_stale(&ranges).unwrap();
            reader.join().unwrap();
        });
        for page in (0..PAGES).step_by(2) {
            assert_eq!(word(&ram, page), 0, "round {round}: page {page}");
        }
    }
    guest.finish();
}

#[test]
fn a_thousand_ranges_are_dropped_together() {
    let kinds = [Kind::Anonymous, Kind::Locked, Kind::EmptyFile, Kind::Shared];
    for_each(&kinds, |kind| {
        let guest = GuestProcess::new(kind);
        let ram = guest.ram();
        let memory = RamWriter::open(ram.clone()).unwrap();
        memory.drop_all().unwrap();
        guest.write(range(0, PAGES), 1);
        let ranges: Vec<_> = (0..PAGES / 3).map(|n| range(n * 3, n * 3 + 2)).collect();
        let begun = std::time::Instant::now();
        memory.drop_stale(&ranges).unwrap();
        aloud(&format!(
            "{kind:?}: {} ranges in {:?}",
            ranges.len(),
            begun.elapsed()
        ));
        let left: Vec<_> = (0..PAGES / 3)
            .map(|n| range(n * 3 + 2, n * 3 + 3))
            .collect();
        let rest = data(&ram);
        assert_eq!(rest[..left.len() - 1], left[..left.len() - 1], "{kind:?}");
        assert_eq!(guest.read(2), 3);
        guest.finish();
    });
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

#[test]
fn content_of_a_private_file_is_overwritten_or_refused() {
    let guest = GuestProcess::new(Kind::FullFile);
    guest.write(range(1, 3), 5);
    let memory = RamWriter::open(guest.ram()).unwrap();
    let refused = memory.drop_all().unwrap_err();
    assert!(
        matches!(refused, MemoryError::FileContent { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("--mode precopy"), "{refused}");
    assert_eq!(guest.read(1), 1 ^ 5, "nothing was dropped");
    // Only where the file has data.
    memory.drop_stale(&[range(1, 2)]).unwrap();
    memory.clear_all().unwrap();
    for page in [0, 1, 2, 3, 9, PAGES - 1] {
        assert_eq!(guest.read(page), 0, "page {page}");
    }
    memory.write(range(3, 4), &[7; PAGE_SIZE]).unwrap();
    memory.zero(range(0, 6)).unwrap();
    assert_eq!(guest.read(3), 0);
    guest.finish();
}

/// Pages come through a userfaultfd only, and are present from then on.
#[test]
fn missing_pages_are_those_that_were_not_installed() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        guest.write(range(0, PAGES), 3);
        let ram = guest.ram();
        let memory = RamWriter::open(ram.clone()).unwrap();
        memory.drop_all().unwrap();
        let remote = RemoteUserfault::create_in(&guest.process, Features::FOR_MISSING).unwrap();
        let userfault = remote.userfault();
        let host = HostRange::new(HostAddr(guest.address()), PAGES * PAGE_BYTES);
        userfault.register(host, RegisterMode::MISSING).unwrap();
        let hosts = [guest.address()];
        let missing = || {
            let mut found: Vec<PageRange> = Vec::new();
            missing_pages(&ram, userfault, &hosts, |run| match found.last_mut() {
                Some(last) if last.end() == run.start() => {
                    *last = PageRange::new(last.start(), run.end());
                }
                _ if run.is_empty() => {}
                _ => found.push(run),
            })
            .unwrap();
            found
        };
        assert_eq!(missing(), [range(0, PAGES)], "{kind:?}");
        let (from, to) = match kind.host_page() {
            PAGE_BYTES => (700, 701),
            _ => (512, 1024),
        };
        let content = vec![9; usize::try_from(range(from, to).bytes()).unwrap()];
        let at = HostAddr(guest.address() + from * PAGE_BYTES);
        userfault.copy(at, &content).unwrap();
        let expected = [range(0, from), range(to, PAGES)];
        assert_eq!(missing(), expected, "{kind:?}");
        assert_eq!(guest.read(700), u64::from_le_bytes([9; 8]), "{kind:?}");
        // A page that is installed and dropped is missing again: a stale one, for instance.
        assert_eq!(word(&ram, 700), u64::from_le_bytes([9; 8]), "{kind:?}");
        memory.drop_stale(&[range(from, to)]).unwrap();
        assert_eq!(missing(), [range(0, PAGES)], "{kind:?}");
        userfault.unregister(host).unwrap();
        assert_eq!(guest.read(700), 0, "{kind:?}");
        remote.close_remote().unwrap();
        guest.finish();
    });
}

/// Memory that is installed by userfaultfd, as the engine does it: no copy in the process.
fn installing(guest: &GuestProcess) -> RamWriter {
    let mut memory = RamWriter::open(guest.ram()).unwrap();
    memory.drop_all().unwrap();
    let remote = RemoteUserfault::create_in(&guest.process, Features::NONE).unwrap();
    remote.close_remote().unwrap();
    memory.install_absent(remote.userfault().clone()).unwrap();
    memory
}

/// Each page: its number, XOR `value`.
fn content(pages: PageRange, value: u64) -> Vec<u8> {
    let page = |page: Page| {
        let mut content = vec![0x5a; PAGE_SIZE];
        content[..8].copy_from_slice(&(page.index() ^ value).to_le_bytes());
        content
    };
    pages.iter().flat_map(page).collect()
}

#[test]
fn absent_pages_are_installed_and_present_ones_written() {
    for kind in [Kind::Anonymous, Kind::Transparent, Kind::Locked] {
        let guest = GuestProcess::new(kind);
        let memory = installing(&guest);
        let before = guest.memory_used();
        assert_eq!(guest.read(50), 0, "an access is answered");
        // Touched meanwhile, in the middle of what arrives: zeros, and content.
        assert_eq!(guest.read(1200), 0, "{kind:?}");
        guest.write(range(1300, 1301), 1);
        let mut expected = vec![0; usize::try_from(PAGES).unwrap()];
        expected[1300] = 1300 ^ 1;
        // Over pages that were written before, and beyond them at both sides.
        let writes = [
            (1000, 1600, 7),
            (1100, 1101, 8),
            (900, 1050, 9),
            (1590, 1700, 10),
            (800, 1800, 11),
            (1250, 1350, 12),
        ];
        for (from, to, value) in writes {
            let pages = range(from, to);
            memory.write(pages, &content(pages, value)).unwrap();
            for page in from..to {
                expected[usize::try_from(page).unwrap()] = page ^ value;
            }
            for (page, expected) in (700..1900).zip(&expected[700..]) {
                assert_eq!(word(memory.ram(), page), *expected, "{kind:?} {page}");
            }
        }
        // 1,000 pages, and no huge page around them.
        let used = (guest.memory_used() - before) / PAGE_BYTES;
        assert!((1000..1024).contains(&used), "{kind:?}: {used} pages");

        memory.drop_stale(&[range(1000, 1010)]).unwrap();
        memory.zero(range(1010, 1020)).unwrap();
        let zeros = data(memory.ram()).contains(&range(800, 1000));
        assert!(zeros, "{kind:?}: {:?}", data(memory.ram()));
        let pages = range(990, 1030);
        memory.write(pages, &content(pages, 13)).unwrap();
        assert_eq!(
            [990, 1000, 1010, 1029].map(|page| guest.read(page)),
            [990, 1000, 1010, 1029].map(|page| page ^ 13)
        );

        memory.end_installing();
        memory.end_installing();
        let pages = range(1795, 1810);
        memory.write(pages, &content(pages, 14)).unwrap();
        assert_eq!(
            [1795, 1809, 1810].map(|page| guest.read(page)),
            [1795 ^ 14, 1809 ^ 14, 0]
        );
        // Post-copy registers it next.
        let remote = RemoteUserfault::create_in(&guest.process, Features::FOR_MISSING).unwrap();
        let host = HostRange::new(HostAddr(guest.address()), PAGES * PAGE_BYTES);
        remote
            .userfault()
            .register(host, RegisterMode::MISSING)
            .unwrap();
        remote.userfault().unregister(host).unwrap();
        remote.close_remote().unwrap();
        guest.finish();
    }
}

/// What cannot be registered is written as before.
#[test]
fn only_anonymous_memory_is_installed() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        let memory = RamWriter::open(guest.ram()).unwrap();
        let expected = matches!(kind, Kind::Anonymous | Kind::Transparent | Kind::Locked);
        assert_eq!(memory.can_install_absent(), expected, "{kind:?}");
        if !expected {
            let memory = installing(&guest);
            let pages = range(512, 1024);
            memory.write(pages, &content(pages, 3)).unwrap();
            assert_eq!(
                [600, 1500].map(|page| guest.read(page)),
                [600 ^ 3, 0],
                "{kind:?}"
            );
        }
        guest.finish();
    });
}

#[test]
fn another_userfaultfd_in_the_memory_leaves_it_to_be_written() {
    let guest = GuestProcess::new(Kind::Anonymous);
    let other = RemoteUserfault::create_in(&guest.process, Features::FOR_MISSING).unwrap();
    let half = HostRange::new(
        HostAddr(guest.address() + PAGES / 2 * PAGE_BYTES),
        PAGES / 2 * PAGE_BYTES,
    );
    other
        .userfault()
        .register(half, RegisterMode::MISSING)
        .unwrap();
    let mut memory = RamWriter::open(guest.ram()).unwrap();
    let own = RemoteUserfault::create_in(&guest.process, Features::NONE).unwrap();
    let refused = memory.install_absent(own.userfault().clone()).unwrap_err();
    assert!(
        refused.to_string().contains("another userfaultfd"),
        "{refused}"
    );
    other.userfault().unregister(half).unwrap();
    let pages = range(2040, 2060);
    memory.write(pages, &content(pages, 3)).unwrap();
    assert_eq!(
        [0, 2040, 2059].map(|page| guest.read(page)),
        [0, 2040 ^ 3, 2059 ^ 3]
    );
    own.close_remote().unwrap();
    other.close_remote().unwrap();
    guest.finish();
}

/// The process ends while pages are installed, and is found to have ended by the next one.
#[test]
fn a_process_that_ends_while_it_is_filled_is_noticed() {
    let guest = GuestProcess::new(Kind::Transparent);
    let memory = installing(&guest);
    let pages = range(0, 64);
    let filled = content(pages, 3);
    memory.write(pages, &filled).unwrap();
    let failed = std::thread::scope(|scope| {
        let filling = scope.spawn(|| {
            (1..PAGES / 64)
                .cycle()
                .map(|number| range(number * 64, (number + 1) * 64))
                .find_map(|pages| memory.write(pages, &filled).err())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        guest.process.kill().unwrap();
        filling.join().unwrap().unwrap()
    });
    let MemoryError::Write { cause, .. } = &failed else {
        panic!("{failed}")
    };
    assert!(MemoryLost::is_in(cause), "{cause:?}");
}

/// A huge page over missing pages would be present, with zeros. Neither the kernel's own thread nor
/// `--collapse` puts one there while the memory is registered.
#[test]
fn no_huge_page_covers_missing_pages() {
    let guest = GuestProcess::new(Kind::Transparent);
    let ram = guest.ram();
    let memory = RamWriter::open(ram.clone()).unwrap();
    let host = HostRange::new(HostAddr(guest.address()), PAGES * PAGE_BYTES);
    let start = guest.address().next_multiple_of(COLLAPSE_BYTES);
    let huge = HostRange::new(HostAddr(start), COLLAPSE_BYTES);
    let first = (start - guest.address()) / PAGE_BYTES;
    for registered in [true, false] {
        memory.drop_all().unwrap();
        let remote = RemoteUserfault::create_in(&guest.process, Features::FOR_MISSING).unwrap();
        let userfault = remote.userfault();
        userfault.register(host, RegisterMode::MISSING).unwrap();
        let page = vec![9; PAGE_SIZE];
        userfault
            .copy(HostAddr(start + 5 * PAGE_BYTES), &page)
            .unwrap();
        if !registered {
            userfault.unregister(host).unwrap();
        }
        let collapsed = guest.process.collapse(huge);
        assert_eq!(collapsed.is_err(), registered, "{collapsed:?}");
        let expected = match registered {
            true => range(first + 5, first + 6),
            false => range(first, first + 512),
        };
        assert_eq!(data(&ram), [expected]);
        if registered {
            userfault.unregister(host).unwrap();
        }
        remote.close_remote().unwrap();
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

#[test]
fn memory_of_a_process_that_has_ended_is_an_error() {
    let guest = GuestProcess::new(Kind::Anonymous);
    guest.write(range(0, 10), 7);
    let (ram, sent) = (guest.ram(), guest.ram());
    sent.backings()[0].private().unwrap().set_sent();
    guest.finish();
    // What the destination has is not needed any more.
    assert_eq!(data(&sent), []);
    let mut content = [0; PAGE_SIZE];
    let all = ram.layout().all();
    let errors = [
        ram.read(range(3, 4), &mut content).unwrap_err(),
        ram.has_data(all).unwrap_err(),
        ram.next_data(all).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            error.to_string(),
            "the process that holds the memory has ended"
        );
    }
    let memory = RamWriter::open(ram).unwrap();
    assert!(memory.write(range(0, 1), &content).is_err());
    assert!(memory.drop_all().is_err());
}

/// An exiting process gives its memory up some time before it counts as ended. Its pages must not
/// be taken for holes then.
#[test]
fn no_page_of_a_process_that_is_killed_reads_as_zeros() {
    for kind in [Kind::Anonymous, Kind::EmptyFile] {
        eprintln!("{kind:?}");
        for _ in 0..20 {
            let guest = GuestProcess::new(kind);
            let all = range(0, PAGES);
            guest.write(all, 1 << 50);
            let ram = guest.ram();
            let pid = rustix::process::Pid::from_raw(guest.target.pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let mut content = [0; PAGE_SIZE];
            let mut page = 0;
            let lost = loop {
                page = (page + 997) % PAGES;
                let one = PageRange::one(Page::new(page));
                match ram.read(one, &mut content) {
                    Ok(()) => assert_eq!(
                        u64::from_le_bytes(content[..8].try_into().unwrap()),
                        page ^ 1 << 50
                    ),
                    Err(error) => break error,
                }
                match ram.next_data(range(page, PAGES)) {
                    Ok(run) => assert_eq!(run.map(PageRange::start), Some(Page::new(page))),
                    Err(error) => break error,
                }
            };
            assert!(MemoryLost::is_in(&lost), "{lost}");
            assert_eq!(ram.lost_blocks(), ["ram"]);
        }
    }
}
