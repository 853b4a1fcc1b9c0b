//! Memory of the host that is available for huge pages.

use std::fs;

/// Pages of 2 MiB that the kernel could allocate at once: the free blocks of memory (proc(5),
/// `/proc/buddyinfo`) of at least that size. The zone of the first 16 MiB is not used for guests.
///
/// # Panics
/// When the kernel does not provide the file.
pub fn free_huge_pages() -> u64 {
    count(&fs::read_to_string("/proc/buddyinfo").unwrap())
}

/// 2 MiB are 2^9 pages.
const HUGE: usize = 9;

fn count(buddyinfo: &str) -> u64 {
    let mut huge = 0;
    for line in buddyinfo.lines() {
        // Node 0, zone   Normal   6668   3465 …
        let mut words = line.split_whitespace().skip(3);
        if words.next().is_none_or(|zone| zone == "DMA") {
            continue;
        }
        for (order, pieces) in words.enumerate().skip(HUGE) {
            huge += pieces.parse::<u64>().unwrap() << (order - HUGE);
        }
    }
    huge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_free_blocks_are_counted() {
        let text = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone    DMA32      1      2      4      2      5      4      3      4      5      3      7
Node 1, zone   Normal   6668   3465   2596   2182   1670   1286    930    592    494      2      0
";
        assert_eq!(count(text), 3 + 2 * 7 + 2);
        assert_eq!(count(""), 0);
    }
}
