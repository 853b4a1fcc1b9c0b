//! One entry of `/proc/PID/pagemap`.

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = size_of::<u64>();

/// Bytes of the page that an entry describes.
pub(super) const PAGE_BYTES: u64 = 4096;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// A swapped entry's low bits: the type of the swap area.
const SWAP_TYPE: u64 = 0x1f;

/// The type of entries that mark a page table entry without a page, for instance as write-protected
/// (`SWP_PTE_MARKER` in `linux/swap.h`: the last of 32 in every configuration).
const MARKER: u64 = 31;

/// Whether there is a page: present, swapped out or being moved.
///
/// Without `CAP_SYS_ADMIN` the kernel hides the type, and a marker counts as a page. To read it
/// then fills a hole with the shared zero page.
pub(super) fn holds_page(entry: u64) -> bool {
    entry & PRESENT != 0 || (entry & SWAPPED != 0 && entry & SWAP_TYPE != MARKER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_not_a_page() {
        assert!(!holds_page(0));
        assert!(holds_page(PRESENT | MARKER));
        assert!(holds_page(SWAPPED | 0x1240));
        assert!(holds_page(SWAPPED), "the type is hidden");
        assert!(!holds_page(SWAPPED | MARKER | 1 << 5 | 1 << 57));
    }
}
