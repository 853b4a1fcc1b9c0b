//! Property tests of ranges and layouts against simple models that visit every page.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a panic is the test's failure")]

use hikkoshi_pages::{
    Extent, GuestRange, HOST_PAGE_SIZES, LayoutError, MAX_BLOCKS, MAX_GUEST_RANGES, MAX_ID_BYTES,
    PAGE_BYTES, Page, PageRange, RamBlock, RamLayout, usize_from,
};
use proptest::prelude::*;

const MIB2: u64 = 2 << 20;

fn block(id: &str, bytes: u64, host_page: u64) -> RamBlock {
    RamBlock::new(id, bytes, host_page)
}

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(Page::new(start), Page::new(end))
}

/// Layouts small enough to visit every page: up to 5 blocks of up to 24 small or 3 large host
/// pages.
fn layout() -> impl Strategy<Value = RamLayout> {
    let size = prop_oneof![
        (1..24u64).prop_map(|pages| (pages * 4096, 4096)),
        (1..4u64).prop_map(|pages| (pages * MIB2, MIB2)),
    ];
    prop::collection::vec(size, 1..6).prop_map(|sizes| {
        let blocks = sizes
            .into_iter()
            .enumerate()
            .map(|(index, (bytes, host_page))| block(&format!("ram{index}"), bytes, host_page))
            .collect();
        RamLayout::new(blocks).unwrap()
    })
}

/// Returns the position of each page by counting: block, offset, host page.
fn every_page(layout: &RamLayout) -> Vec<(usize, u64, PageRange)> {
    let mut pages = Vec::new();
    for (index, (block, _)) in layout.blocks().enumerate() {
        let first = pages.len() as u64;
        for offset in (0..block.bytes).step_by(4096) {
            let host_page = offset / block.host_page;
            let per_host_page = block.host_page / PAGE_BYTES;
            let start = first + host_page * per_host_page;
            pages.push((index, offset, range(start, start + per_host_page)));
        }
    }
    pages
}

proptest! {
    #[test]
    fn every_page_is_located_as_in_the_model(layout in layout()) {
        let expected = every_page(&layout);
        prop_assert_eq!(layout.pages(), expected.len() as u64);
        prop_assert_eq!(layout.bytes(), expected.len() as u64 * PAGE_BYTES);
        for (page, (block, offset, host_page)) in layout.all().iter().zip(expected) {
            prop_assert_eq!(layout.locate(page), Some((block, offset)));
            prop_assert_eq!(layout.page_at(block, offset), Some(page));
            prop_assert_eq!(layout.page_at(block, offset + 4095), Some(page));
            prop_assert_eq!(layout.host_page_range(page), host_page);
            let (_, pages) = layout.block(block).unwrap();
            prop_assert!(pages.contains(page));
        }
        for beyond in [layout.pages(), layout.pages() + 1, u64::MAX] {
            prop_assert_eq!(layout.locate(Page::new(beyond)), None);
            prop_assert!(layout.host_page_range(Page::new(beyond)).is_empty());
        }
        for (index, (block, _)) in layout.blocks().enumerate() {
            prop_assert_eq!(layout.page_at(index, block.bytes), None);
        }
        prop_assert_eq!(layout.page_at(layout.blocks().len(), 0), None);
    }

    #[test]
    fn a_range_is_split_at_block_boundaries(layout in layout(), start in 0..3000u64, len in 0..3000u64) {
        let asked = PageRange::from_len(Page::new(start), len);
        let extents: Vec<Extent> = layout.locate_range(asked).collect();
        // Together they are the range, in order, without the pages beyond the end.
        let pages: Vec<Page> = extents.iter().flat_map(|extent| extent.pages.iter()).collect();
        prop_assert_eq!(pages, asked.intersect(layout.all()).iter().collect::<Vec<_>>());
        for extent in &extents {
            prop_assert!(!extent.pages.is_empty());
            prop_assert_eq!(layout.locate(extent.pages.start()), Some((extent.block, extent.offset)));
            let (_, block) = layout.block(extent.block).unwrap();
            prop_assert!(block.contains_range(extent.pages));
        }
        // One part for each block, so each part is as long as possible.
        prop_assert!(extents.windows(2).all(|pair| pair[0].block < pair[1].block));
    }

    #[test]
    fn round_out_returns_the_smallest_range_of_host_pages(layout in layout(), start in 0..3000u64, len in 0..3000u64) {
        let asked = PageRange::from_len(Page::new(start), len).intersect(layout.all());
        let touched: Vec<PageRange> = every_page(&layout)
            .into_iter()
            .enumerate()
            .filter(|(page, _)| asked.contains(Page::new(*page as u64)))
            .map(|(_, (_, _, host_page))| host_page)
            .collect();
        let expected = match (touched.first(), touched.last()) {
            (Some(first), Some(last)) => PageRange::new(first.start(), last.end()),
            _ => PageRange::EMPTY,
        };
        prop_assert_eq!(layout.round_out(PageRange::from_len(Page::new(start), len)), expected);
    }

    #[test]
    fn ranges_match_lists_of_pages(
        (a, b) in (0..40u64, 0..40u64),
        (c, d) in (0..40u64, 0..40u64),
        at in 0..45u64,
        size in 0..12u64,
    ) {
        let list = |from: u64, to: u64| (from..to).map(Page::new).collect::<Vec<_>>();
        let (one, two) = (range(a, b), range(c, d));
        prop_assert_eq!(one.iter().collect::<Vec<_>>(), list(a, b));
        prop_assert_eq!(one.len(), list(a, b).len() as u64);
        prop_assert_eq!(one.bytes(), one.len() * 4096);
        prop_assert_eq!(one.is_empty(), list(a, b).is_empty());
        prop_assert_eq!(one.contains(Page::new(at)), list(a, b).contains(&Page::new(at)));
        let both: Vec<Page> = list(a, b).into_iter().filter(|page| two.contains(*page)).collect();
        prop_assert_eq!(one.contains_range(two), both.len() as u64 == two.len());
        prop_assert_eq!(one.intersect(two).iter().collect::<Vec<_>>(), both);
        let (before, after) = one.split_at(Page::new(at));
        let (low, high): (Vec<Page>, Vec<Page>) =
            list(a, b).into_iter().partition(|page| page.index() < at);
        prop_assert_eq!(before.iter().collect::<Vec<_>>(), low);
        prop_assert_eq!(after.iter().collect::<Vec<_>>(), high);
        let pieces: Vec<Vec<Page>> = one.chunks(size).map(|piece| piece.iter().collect()).collect();
        let expected: Vec<Vec<Page>> = list(a, b)
            .chunks(usize_from(size.max(1)))
            .map(<[Page]>::to_vec)
            .collect();
        prop_assert_eq!(pieces, expected);
    }
}

#[test]
fn the_largest_page_numbers_do_not_overflow() {
    let last = PageRange::from_len(Page::new(u64::MAX - 3), u64::MAX);
    assert_eq!(last.len(), 3);
    assert_eq!(last.iter().count(), 3);
    assert_eq!(last.chunks(u64::MAX).count(), 1);
    assert_eq!(range(0, u64::MAX).bytes(), u64::MAX);
    assert_eq!(range(9, 3), range(9, 9));
}

#[test]
fn valid_layouts_are_accepted_and_others_rejected() {
    for host_page in HOST_PAGE_SIZES {
        let layout = RamLayout::new(vec![block("ram", 2 << 30, host_page)]).unwrap();
        assert_eq!(layout.host_page_range(Page::new(0)).bytes(), host_page);
    }
    let refused = |blocks| RamLayout::new(blocks).unwrap_err();
    assert_eq!(refused(Vec::new()), LayoutError::NoBlocks);
    assert_eq!(
        refused(
            (0..=MAX_BLOCKS)
                .map(|n| block(&n.to_string(), 4096, 4096))
                .collect()
        ),
        LayoutError::TooManyBlocks {
            blocks: MAX_BLOCKS + 1
        }
    );
    assert_eq!(
        refused(vec![block(&"x".repeat(MAX_ID_BYTES + 1), 4096, 4096)]),
        LayoutError::IdTooLong {
            bytes: MAX_ID_BYTES + 1
        }
    );
    assert_eq!(
        refused(vec![block("ram", 4096, 4096), block("ram", 8192, 4096)]),
        LayoutError::DuplicateId { id: "ram".into() }
    );
    assert_eq!(
        refused(vec![block("ram", 0, 4096)]),
        LayoutError::EmptyBlock { id: "ram".into() }
    );
    for host_page in [0, 1, 2048, 8192, 3 << 20, 1 << 31] {
        assert_eq!(
            refused(vec![block("ram", 1 << 32, host_page)]),
            LayoutError::HostPage {
                id: "ram".into(),
                host_page
            }
        );
    }
    assert_eq!(
        refused(vec![block("ram", MIB2 + 4096, MIB2)]),
        LayoutError::PartialHostPage {
            id: "ram".into(),
            bytes: MIB2 + 4096,
            host_page: MIB2
        }
    );
    // 64 TiB are accepted; one page more is rejected, and so is a sum that would overflow.
    assert!(RamLayout::new(vec![block("a", 1 << 46, 1 << 30)]).is_ok());
    let huge = u64::MAX - 4095;
    for (a, b) in [(1 << 46, 4096), (huge, huge)] {
        let error = refused(vec![block("a", a, 4096), block("b", b, 4096)]);
        assert!(matches!(error, LayoutError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn guest_ranges_must_be_inside_the_block() {
    let with = |pieces: Vec<GuestRange>| {
        RamLayout::new(vec![RamBlock {
            guest: pieces,
            ..block("ram", 8 << 20, 4096)
        }])
    };
    let piece = |gpa, offset, bytes| GuestRange { gpa, offset, bytes };
    // The usual two: below and above the hole under 4 GiB.
    assert!(with(vec![piece(0, 0, 3 << 20), piece(1 << 32, 3 << 20, 5 << 20)]).is_ok());
    for bad in [
        piece(0, 0, 0),
        piece(0, 8 << 20, 4096),
        piece(0, 4 << 20, 5 << 20),
        piece(0, u64::MAX, 4096),
        piece(0, 4096, u64::MAX),
        piece(u64::MAX - 4095, 0, 8192),
    ] {
        let error = with(vec![bad.clone()]).unwrap_err();
        assert!(
            matches!(error, LayoutError::GuestRange { .. }),
            "{bad:?}: {error}"
        );
    }
    let many = vec![piece(0, 0, 4096); MAX_GUEST_RANGES + 1];
    let error = with(many).unwrap_err();
    assert!(
        matches!(error, LayoutError::TooManyGuestRanges { .. }),
        "{error}"
    );
}

#[test]
fn error_message_of_a_partial_host_page() {
    let error = RamLayout::new(vec![block("ram0", MIB2 + 4096, MIB2)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "laying out RAM block \"ram0\": its size of 2101248 bytes is not a multiple of its host \
         page size, 2097152 bytes; change the size"
    );
}
