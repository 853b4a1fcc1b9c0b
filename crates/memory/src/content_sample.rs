//! How much of a guest's memory has content: [`sample_content`].

use std::io;
use std::time::{Duration, Instant};

use hikkoshi_pages::PageRange;

use crate::guest_ram::GuestRam;
use crate::page_reader::{PageReader, PageRun};

/// Pages that are read at once, as pre-copy reads them.
const UNIT: u64 = 256;

/// The most units that are read: at most 4 GiB of memory.
const UNITS: usize = 4096;

/// What was found by reading a part of a guest's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentSample {
    /// Pages that are not holes.
    pub allocated: u64,
    /// Pages of them that were read.
    pub read: u64,
    /// Pages that were read and have content.
    pub data: u64,
    /// The number of places that were read.
    pub units: u64,
    /// How long reading took, with the test for zeros.
    pub time: Duration,
    /// What was read, in the order of reading.
    pub ranges: Vec<PageRange>,
}

/// Reads pages of `ram` that are not holes, at random places, for at most about `time`. `seed`
/// chooses the places. The memory of a small guest is read completely. Holes stay holes. `each`
/// gets the content that is not zeros, part by part; its time counts for `time`, and not as that
/// of reading.
///
/// # Errors
/// The errors of [`GuestRam::data_runs`] and [`GuestRam::read`].
pub fn sample_content(
    ram: &GuestRam,
    time: Duration,
    seed: u64,
    mut each: impl FnMut(&[u8]),
) -> io::Result<ContentSample> {
    let mut random = Random(seed | 1);
    let mut allocated = 0;
    let mut seen = 0;
    // A random choice of all units (algorithm R: J. S. Vitter, "Random Sampling with a Reservoir",
    // 1985), so that the memory for it is limited.
    let mut units: Vec<PageRange> = Vec::new();
    ram.data_runs(ram.layout().all(), |run| {
        allocated += run.len();
        for unit in run.chunks(UNIT) {
            seen += 1;
            if units.len() < UNITS {
                units.push(unit);
            } else if let Some(other) =
                units.get_mut(hikkoshi_pages::usize_from(random.below(seen)))
            {
                *other = unit;
            }
        }
    })?;
    for number in (1..units.len()).rev() {
        let other = hikkoshi_pages::usize_from(random.below(number as u64 + 1));
        units.swap(number, other);
    }
    let mut reader = PageReader::new(hikkoshi_pages::usize_from(UNIT));
    let (mut read, mut data, mut ranges) = (0, 0, Vec::new());
    let (begun, mut elsewhere) = (Instant::now(), Duration::ZERO);
    for unit in units {
        if begun.elapsed() > time {
            break;
        }
        reader.runs(ram, unit, |run| {
            if let PageRun::Data(range, content) = run {
                data += range.len();
                let begun = Instant::now();
                each(content);
                elsewhere += begun.elapsed();
            }
            Ok::<_, io::Error>(())
        })?;
        read += unit.len();
        ranges.push(unit);
    }
    Ok(ContentSample {
        allocated,
        read,
        data,
        units: ranges.len() as u64,
        time: begun.elapsed().saturating_sub(elsewhere),
        ranges,
    })
}

/// xorshift64 (G. Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    /// A number below `end`, which is not 0. Not exactly uniform, which does not matter for numbers
    /// far below 2^64.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram_file::RamFile;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock, RamLayout};
    use std::os::unix::fs::FileExt;

    /// A block of so many pages; `content` says what is in each: `None` is a hole.
    fn ram(pages: u64, content: impl Fn(u64) -> Option<u8>) -> GuestRam {
        let block = RamBlock::new("ram", pages * PAGE_BYTES, PAGE_BYTES);
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(pages * PAGE_BYTES).unwrap();
        for page in 0..pages {
            if let Some(byte) = content(page) {
                file.write_all_at(&[byte; 4096], page * PAGE_BYTES).unwrap();
            }
        }
        let layout = RamLayout::new(vec![block]).unwrap();
        GuestRam::new(layout, vec![RamFile::new(file, 0)]).unwrap()
    }

    #[test]
    fn content_zeros_and_holes_are_counted() {
        // Of each four pages: two with content, one of zeros, one hole.
        let ram = ram(4000, |page| {
            [Some(7), Some(9), Some(0), None][(page % 4) as usize]
        });
        let sample = sample_content(&ram, Duration::from_secs(60), 3, |_| ()).unwrap();
        assert_eq!(sample.allocated, 3000);
        assert_eq!((sample.read, sample.data), (3000, 2000));
        let mut ranges = sample.ranges.clone();
        ranges.sort_unstable_by_key(|range| range.start());
        assert_ne!(ranges, sample.ranges, "not in order");
        let pages: u64 = ranges.iter().map(|range| range.len()).sum();
        assert_eq!(pages, 3000);
        assert!(
            ranges
                .windows(2)
                .all(|pair| pair[0].end() <= pair[1].start())
        );
    }

    #[test]
    fn a_part_is_read_if_there_is_no_time() {
        let ram = ram(20 * UNIT, |_| Some(1));
        let sample = sample_content(&ram, Duration::ZERO, 3, |_| ()).unwrap();
        assert_eq!(sample.allocated, 20 * UNIT);
        assert!(sample.units <= 2 && sample.read < 20 * UNIT, "{sample:?}");
        let nothing = sample_content(&self::ram(9, |_| None), Duration::ZERO, 3, |_| ()).unwrap();
        assert_eq!((nothing.allocated, nothing.read), (0, 0));
    }

    #[test]
    fn more_units_than_are_kept_are_chosen_at_random() {
        // Runs of one page each: more units than are kept.
        let pages = 4 * UNITS as u64;
        let ram = ram(pages, |page| (page % 2 == 0).then_some(1));
        let sample = sample_content(&ram, Duration::from_secs(60), 3, |_| ()).unwrap();
        assert_eq!(sample.allocated, pages / 2);
        assert_eq!(sample.read, UNITS as u64);
        let late = sample.ranges.iter();
        let late = late
            .filter(|range| range.start().index() > pages / 2)
            .count();
        assert!(
            (UNITS * 2 / 5..UNITS * 3 / 5).contains(&late),
            "{late} in the second half"
        );
    }
}
