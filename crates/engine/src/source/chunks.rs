//! Divides the guest's memory into chunks, whose logs different threads take.

use hikkoshi_pages::{Page, PageRange, RamLayout};

/// Pages whose log is taken at a time, 2 MiB: what one page-table page maps, and small enough that
/// a scan takes little time.
pub(crate) const CHUNK: u64 = 512;

/// The number of chunks of `size` pages. Some may be empty.
pub(crate) fn count(layout: &RamLayout, size: u64) -> u64 {
    layout.all().len().div_ceil(size)
}

/// The `number`th chunk of `size` pages; `None` beyond the last one. May be empty.
///
/// Chunks end at the boundaries of the guest's host pages. The log of a huge page
/// is cleared as a whole, so two threads that each took a part of it could hide it
/// from each other.
pub(crate) fn chunk(layout: &RamLayout, size: u64, number: u64) -> Option<PageRange> {
    let all = layout.all();
    let cut = |number: u64| {
        let page = Page::new(number.saturating_mul(size));
        if all.contains(page) {
            layout.host_page_range(page).start()
        } else {
            all.end()
        }
    };
    (number < count(layout, size))
        .then(|| PageRange::new(cut(number), cut(number.saturating_add(1))))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock};

    const HUGE: u64 = 2 << 20;
    const GIB: u64 = 1 << 30;

    /// The layout of blocks of so many bytes, with host pages of so many.
    fn layout(blocks: &[(u64, u64)]) -> RamLayout {
        let blocks = blocks.iter().enumerate();
        let blocks = blocks
            .map(|(nth, &(bytes, host_page))| RamBlock::new(nth.to_string(), bytes, host_page));
        RamLayout::new(blocks.collect()).unwrap()
    }

    #[test]
    fn chunks_cover_everything_once_and_cut_no_host_page() {
        for blocks in [
            &[(PAGE_BYTES, PAGE_BYTES)][..],
            &[(HUGE, PAGE_BYTES)],
            &[(HUGE + 7 * PAGE_BYTES, PAGE_BYTES)],
            &[
                (3 * PAGE_BYTES, PAGE_BYTES),
                (5 * HUGE, HUGE),
                (9 * PAGE_BYTES, PAGE_BYTES),
            ],
            &[(PAGE_BYTES, PAGE_BYTES), (GIB, GIB), (HUGE, HUGE)],
        ] {
            let layout = layout(blocks);
            for size in [512, 1000, 32768] {
                let mut end = Page::new(0);
                for number in 0..count(&layout, size) {
                    let chunk = chunk(&layout, size, number).unwrap();
                    if chunk.is_empty() {
                        continue;
                    }
                    assert_eq!(chunk.start(), end, "{size}, {blocks:?}");
                    assert_eq!(layout.round_out(chunk), chunk, "{size}, {blocks:?}");
                    end = chunk.end();
                }
                assert_eq!(end, layout.all().end(), "{size}, {blocks:?}");
                assert_eq!(chunk(&layout, size, count(&layout, size)), None);
            }
        }
    }
}
