//! Pages are written, zeroed and dropped.

use hikkoshi_memory::{MemoryError, RamWriter};
use hikkoshi_pages::PAGE_SIZE;

use crate::common::aloud;
use crate::guest_process::{GuestProcess, Kind, PAGES};

use super::{data, for_each, range, word};

#[test]
fn pages_are_written_zeroed_and_dropped() {
    for_each(&Kind::WITH_HOLES, |kind| {
        let guest = GuestProcess::new(kind);
        // What a machine has loaded before the guest arrives: firmware.
        guest.write(range(100, 600), 3);
        let ram = guest.ram();
        let memory = RamWriter::open(ram.clone()).unwrap();
        assert!(memory.blocks_that_may_hold_more().unwrap().contains(&true));
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

#[test]
fn content_of_a_private_file_is_overwritten_or_refused() {
    let guest = GuestProcess::new(Kind::FullFile);
    guest.write(range(1, 3), 5);
    let mut memory = RamWriter::open(guest.ram()).unwrap();
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
