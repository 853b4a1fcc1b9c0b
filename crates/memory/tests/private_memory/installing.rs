//! Memory that pre-copy installs by a userfaultfd instead of writing it.

use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_memory::{MemoryError, MemoryLost, RamWriter};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, PageRange};
use hikkoshi_userfault::{Features, RegisterMode, RemoteUserfault};

use crate::guest_process::{GuestProcess, Kind, PAGES};

use super::{data, for_each, range, word};

/// What can be registered.
const INSTALLED: [Kind; 4] = [
    Kind::Anonymous,
    Kind::Transparent,
    Kind::Locked,
    Kind::Shared,
];

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
    for kind in INSTALLED {
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
fn other_memory_is_written() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        let memory = RamWriter::open(guest.ram()).unwrap();
        let expected = INSTALLED.contains(&kind);
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
