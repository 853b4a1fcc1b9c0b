//! Where a guest's memory has content, about: [`ContentMap`].

use std::io;
use std::time::{Duration, Instant};

use hikkoshi_pages::{Page, PageRange, usize_from};

use crate::guest_ram::GuestRam;
use crate::page_reader::{PageReader, PageRun};

/// The parts of the memory, all of about the same size, of which each is looked at in one place.
const PARTS: u32 = 1024;

/// Pages that are read there. All pages of a guest of 64 MiB are read.
const PLACE: u64 = 16;

/// What was found, made from a look at a small part of a guest's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentMap {
    /// Pages of the memory.
    pages: u64,
    /// Which part of the pages at each place has content. `None`: there was no time for it.
    places: Vec<Option<f64>>,
}

/// A number of pages, and between which ends it is likely to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContentPages {
    /// The low end.
    pub low: f64,
    /// The most likely number.
    pub likely: f64,
    /// The high end.
    pub high: f64,
}

impl ContentMap {
    /// Reads pages of `ram` at 1,024 places at equal distances, for at most about `time`: on a
    /// guest whose memory is not swapped out that takes some 10 ms. Holes stay holes.
    ///
    /// # Errors
    /// The errors of [`GuestRam::read`].
    pub fn sample(ram: &GuestRam, time: Duration) -> io::Result<Self> {
        let pages = ram.layout().pages();
        let mut places = vec![None; usize_from(PARTS.into())];
        let mut reader = PageReader::new(usize_from(PLACE));
        let begun = Instant::now();
        // In an order in which the first places, too, are spread over all memory.
        for number in 0..PARTS {
            if begun.elapsed() > time {
                break;
            }
            let part = number.reverse_bits() >> (u32::BITS - PARTS.trailing_zeros());
            let range = place(pages, part);
            let mut data = 0;
            reader.runs(ram, range, |run| {
                if let PageRun::Data(range, _) = run {
                    data += range.len();
                }
                Ok::<_, io::Error>(())
            })?;
            if let Some(place) = places.get_mut(usize_from(part.into())) {
                *place = Some(float(data) / float(range.len().max(1)));
            }
        }
        Ok(Self { pages, places })
    }

    /// How many pages from the page with this number on have content.
    #[must_use]
    pub fn pages_from(&self, number: u64) -> ContentPages {
        let known = self.places.iter().flatten();
        let mean = known.clone().sum::<f64>() / float(known.count().max(1) as u64);
        let (mut left, mut likely) = (0.0, 0.0);
        // Looked at, among those that are left.
        let (mut looked_at, mut found) = (0.0, 0.0);
        for (part, content) in (0..).zip(&self.places) {
            let range = part_of(self.pages, part);
            let rest = PageRange::new(range.start().max(Page::new(number)), range.end());
            left += float(rest.len());
            likely += float(rest.len()) * content.unwrap_or(mean);
            if let (Some(content), false) = (content, rest.is_empty()) {
                looked_at += 1.0;
                found += content;
            }
        }
        // Two standard errors of as many places at random. One of each kind more keeps it from
        // being certain after a few.
        let part: f64 = (found + 1.0) / (looked_at + 2.0);
        let is_all_read = place(self.pages, 0) == part_of(self.pages, 0);
        let error = match is_all_read {
            true => 0.0,
            false => 2.0 * (part * (1.0 - part) / f64::max(looked_at, 1.0)).sqrt() * left,
        };
        ContentPages {
            low: (likely - error).max(0.0),
            likely,
            high: (likely + error).min(left),
        }
    }
}

/// The pages of this part of so many pages.
fn part_of(pages: u64, part: u32) -> PageRange {
    let at = |part: u64| {
        let page = u128::from(pages) * u128::from(part) / u128::from(PARTS);
        Page::new(u64::try_from(page).unwrap_or(pages))
    };
    PageRange::new(at(part.into()), at(u64::from(part) + 1))
}

/// Those of them that are read: in the middle.
fn place(pages: u64, part: u32) -> PageRange {
    let range = part_of(pages, part);
    let before = range.len().saturating_sub(PLACE) / 2;
    let start = range.start().saturating_add(before);
    PageRange::from_len(start, range.len().min(PLACE))
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram_file::RamFile;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock, RamLayout};
    use std::os::unix::fs::FileExt;

    const LONG: Duration = Duration::from_secs(60);

    /// A block of so many pages, of which these have content; the others are holes.
    fn ram(pages: u64, has_content: impl Fn(u64) -> bool) -> GuestRam {
        let block = RamBlock::new("ram", pages * PAGE_BYTES, PAGE_BYTES);
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(pages * PAGE_BYTES).unwrap();
        for page in (0..pages).filter(|&page| has_content(page)) {
            file.write_all_at(&[7], page * PAGE_BYTES).unwrap();
        }
        let layout = RamLayout::new(vec![block]).unwrap();
        GuestRam::new(layout, vec![RamFile::new(file, 0)]).unwrap()
    }

    #[test]
    fn a_small_guest_is_read_completely() {
        let ram = ram(3001, |page| page >= 3000 || page % 3 == 0);
        let map = ContentMap::sample(&ram, LONG).unwrap();
        let exactly = |number| {
            let pages = map.pages_from(number);
            assert!((pages.low - pages.high).abs() < 1e-6, "{pages:?}");
            pages.likely
        };
        assert!((exactly(0) - 1001.0).abs() < 1e-6);
        assert!((exactly(1500) - 501.0).abs() < 3.0);
        assert!(exactly(3001).abs() < 1e-6);
    }

    /// 256 MiB: content in the first eighth, and in every second page of the last quarter.
    #[test]
    fn what_is_left_is_known_by_its_place() {
        let pages = 65_536;
        let ram = ram(pages, |page| {
            page < pages / 8 || (page >= pages / 4 * 3 && page % 2 == 0)
        });
        let map = ContentMap::sample(&ram, LONG).unwrap();
        for (from, truth) in [(0, 16_384.0), (pages / 8, 8192.0), (pages / 8 * 7, 4096.0)] {
            let found = map.pages_from(from);
            assert!(found.low <= truth && truth <= found.high, "{found:?}");
            assert!(
                (found.likely - truth).abs() < 200.0,
                "{found:?} for {truth}"
            );
        }
        // The first place only: everything may be as it, and need not.
        let map = ContentMap::sample(&ram, Duration::ZERO).unwrap();
        let found = map.pages_from(0);
        assert!(found.low < 16_384.0 && found.high > 16_384.0, "{found:?}");
    }
}
