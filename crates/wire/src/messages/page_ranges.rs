//! Many page ranges in few bytes.

use std::fmt;

use hikkoshi_pages::{MAX_PAGES, Page, PageRange};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use thiserror::Error;

use crate::limits::Limits;

/// The most ranges in one message. At up to 13 bytes each, the message stays well
/// below [`MAX_CONTROL`](crate::MAX_CONTROL).
pub const MAX_RANGES: usize = 32_768;

/// Up to [`MAX_RANGES`] page ranges: ascending, disjoint, none of them empty.
///
/// A range is sent as two numbers: the pages between it and the previous range,
/// and the pages in it. That takes two or three bytes for most ranges, and the
/// encoding cannot express overlapping ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRanges(Vec<PageRange>);

impl PageRanges {
    /// Splits any number of ranges into as few lists as possible, in the given
    /// order. They are usually the [runs](hikkoshi_pages::PageBitmap::runs) of a
    /// bitmap, and are taken from the iterator only when needed. Empty ranges
    /// and pages beyond the largest layout are omitted.
    pub fn batches(ranges: impl IntoIterator<Item = PageRange>) -> impl Iterator<Item = Self> {
        let largest = PageRange::from_len(Page::new(0), MAX_PAGES);
        let mut ranges = ranges
            .into_iter()
            .map(move |range| range.intersect(largest))
            .filter(|range| !range.is_empty())
            .peekable();
        std::iter::from_fn(move || {
            let mut batch = vec![ranges.next()?];
            let mut end = batch.last().map_or(Page::default(), |range| range.end());
            // A range before the previous one starts a new list.
            while batch.len() < MAX_RANGES
                && let Some(range) = ranges.next_if(|range| range.start() >= end)
            {
                end = range.end();
                batch.push(range);
            }
            Some(Self(batch))
        })
    }

    /// Returns the ranges if all of them lie in the layout. This is the only
    /// access to them, so a peer's ranges are never used unchecked.
    ///
    /// # Errors
    ///
    /// If a range reaches beyond the last page. The peer is faulty.
    pub fn within(&self, limits: &Limits) -> Result<&[PageRange], OutsideLayout> {
        match self.0.last() {
            Some(range) if range.end().index() > limits.pages => Err(OutsideLayout {
                range: *range,
                pages: limits.pages,
            }),
            _ => Ok(&self.0),
        }
    }

    /// Returns the number of pages in all ranges.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|range| range.len()).sum()
    }
}

/// A list of page ranges contains pages that the guest does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "reading a list of pages from the peer: it names {range}, but the guest has only {pages} pages; the peer is faulty or moves another guest; close the link"
)]
pub struct OutsideLayout {
    /// The last range of the list.
    pub range: PageRange,
    /// The number of pages in the layout.
    pub pages: u64,
}

impl Serialize for PageRanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut before = Page::default();
        serializer.collect_seq(self.0.iter().map(|range| {
            let gap = PageRange::new(before, range.start()).len();
            before = range.end();
            (gap, range.len())
        }))
    }
}

impl<'de> Deserialize<'de> for PageRanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(RangesVisitor)
    }
}

struct RangesVisitor;

impl<'de> Visitor<'de> for RangesVisitor {
    type Value = PageRanges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_RANGES} page ranges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<PageRanges, A::Error> {
        let mut ranges = Vec::new();
        let mut end = 0u64;
        while let Some((gap, pages)) = elements.next_element::<(u64, u64)>()? {
            if ranges.len() == MAX_RANGES {
                return Err(de::Error::invalid_length(MAX_RANGES + 1, &self));
            }
            let start = end.checked_add(gap);
            let next = start.and_then(|start| start.checked_add(pages));
            match (start, next) {
                (Some(start), Some(next)) if pages > 0 && next <= MAX_PAGES => {
                    ranges.push(PageRange::new(Page::new(start), Page::new(next)));
                    end = next;
                }
                _ => {
                    return Err(de::Error::custom(
                        "a page range that is empty or beyond the largest layout",
                    ));
                }
            }
        }
        Ok(PageRanges(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(Page::new(start), Page::new(end))
    }

    #[test]
    fn a_typical_range_takes_two_bytes() {
        let runs = (0..1000).map(|n| range(n * 100 + 50, n * 100 + 60));
        let lists: Vec<_> = PageRanges::batches(runs).collect();
        assert_eq!(lists.len(), 1);
        assert_eq!(lists[0].pages(), 10_000);
        let bytes = postcard::to_allocvec(&lists[0]).unwrap();
        assert_eq!(bytes.len(), 2 + 2 * 1000);
    }

    #[test]
    fn batches_keep_all_ranges_in_order_and_their_bound() {
        let runs = || (0..70_000).map(|n| range(n * 2, n * 2 + 1));
        let lists: Vec<_> = PageRanges::batches(runs()).collect();
        let sizes: Vec<_> = lists.iter().map(|list| list.0.len()).collect();
        assert_eq!(sizes, [MAX_RANGES, MAX_RANGES, 70_000 - 2 * MAX_RANGES]);
        let all: Vec<_> = lists.iter().flat_map(|list| list.0.clone()).collect();
        assert_eq!(all, runs().collect::<Vec<_>>());
        // Empty ranges are omitted; a range before the previous one starts a new list.
        let odd = [
            range(5, 5),
            range(7, 9),
            range(9, 10),
            range(8, 9),
            range(1, 2),
        ];
        let lists: Vec<_> = PageRanges::batches(odd).map(|list| list.0).collect();
        assert_eq!(
            lists,
            [
                vec![range(7, 9), range(9, 10)],
                vec![range(8, 9)],
                vec![range(1, 2)]
            ]
        );
        assert_eq!(PageRanges::batches([range(3, 3)]).count(), 0);
    }

    #[test]
    fn ranges_outside_the_layout_are_refused() {
        let list = PageRanges(vec![range(0, 5), range(9, 10)]);
        assert_eq!(list.within(&Limits { pages: 10 }).unwrap().len(), 2);
        let error = list.within(&Limits { pages: 9 }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "reading a list of pages from the peer: it names pages 9..10, but the guest has only \
             9 pages; the peer is faulty or moves another guest; close the link"
        );
    }

    #[test]
    fn empty_and_overflowing_ranges_are_refused() {
        for pairs in [
            vec![(0, 0)],
            vec![(u64::MAX, 1)],
            vec![(1, u64::MAX)],
            vec![(0, 1), (u64::MAX, 1)],
            vec![(0, MAX_PAGES + 1)],
            vec![(0, 1); MAX_RANGES + 1],
        ] {
            let bytes = postcard::to_allocvec::<Vec<(u64, u64)>>(&pairs).unwrap();
            assert!(
                postcard::from_bytes::<PageRanges>(&bytes).is_err(),
                "{:?}",
                pairs.first()
            );
        }
        let most = postcard::to_allocvec(&vec![(0u64, 1u64); MAX_RANGES]).unwrap();
        assert!(postcard::from_bytes::<PageRanges>(&most).is_ok());
    }
}
