//! How pre-copy divides memory into chunks.

use hikkoshi_pages::{Page, PageRange, RamLayout};

use crate::source::unsent::CHUNK;

/// The number of chunks. Some may be empty.
pub(crate) fn count(layout: &RamLayout) -> u64 {
    layout.all().len().div_ceil(CHUNK)
}

/// The `number`th chunk; `None` beyond the last one. May be empty.
///
/// Chunks end at the boundaries of the guest's host pages. The log of a huge page
/// is cleared as a whole, so two threads that each took a part of it could hide it
/// from each other for a round.
pub(crate) fn chunk(layout: &RamLayout, number: u64) -> Option<PageRange> {
    let all = layout.all();
    let cut = |number: u64| {
        let page = Page::new(number.saturating_mul(CHUNK));
        if all.contains(page) {
            layout.host_page_range(page).start()
        } else {
            all.end()
        }
    };
    (number.saturating_mul(CHUNK) < all.len())
        .then(|| PageRange::new(cut(number), cut(number.saturating_add(1))))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock};

    const HUGE: u64 = 2 << 20;

    fn layout(blocks: &[(u64, u64)]) -> RamLayout {
        let blocks = blocks
            .iter()
            .enumerate()
            .map(|(nth, &(bytes, host_page))| RamBlock {
                id: nth.to_string(),
                bytes,
                host_page,
                guest: Vec::new(),
            });
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
            &[(PAGE_BYTES, PAGE_BYTES), (1 << 30, 1 << 30), (HUGE, HUGE)],
        ] {
            let layout = layout(blocks);
            let mut end = Page::new(0);
            for number in 0.. {
                let Some(chunk) = chunk(&layout, number) else {
                    assert_eq!(number, count(&layout), "{blocks:?}");
                    break;
                };
                if chunk.is_empty() {
                    continue;
                }
                assert_eq!(chunk.start(), end, "{blocks:?}");
                assert_eq!(layout.round_out(chunk), chunk, "{blocks:?}");
                end = chunk.end();
            }
            assert_eq!(end, layout.all().end(), "{blocks:?}");
        }
    }
}
