//! What is known of the pages of one block.

use hikkoshi_pages::{Page, PageRange, usize_from};

use crate::recency::Recency;
use crate::sample::{Sample, UNIT_PAGES};

/// Pages of a chunk: 2 MiB.
const CHUNK_PAGES: usize = 512;

/// The units of 32 KiB of a chunk.
const CHUNK_UNITS: usize = CHUNK_PAGES / 8;

/// The pages of 2 MiB of a block, of which at least one was written.
#[derive(Debug)]
struct Chunk {
    /// The last interval that found each page dirty; 0: never.
    last: [u16; CHUNK_PAGES],
    /// How many pages were reported in each 32 KiB, over all intervals.
    reported: [u32; CHUNK_UNITS],
}

/// The reports of one part of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reports {
    /// Reported pages, over all intervals.
    pub(crate) reported: u64,
    /// Different pages among them.
    pub(crate) different: u64,
}

/// One block: the last interval of each page, and the working sets by level of the sample.
#[derive(Debug)]
pub(crate) struct TrackedBlock {
    pub(crate) sample: Sample,
    chunks: Vec<Option<Box<Chunk>>>,
    /// By the highest level that a page is in. All pages of a sample: this level and higher ones.
    by_level: Vec<Recency>,
    /// The pages that this interval has reported, by level.
    reported: Vec<u64>,
}

impl TrackedBlock {
    pub(crate) fn new(sample: Sample, lengths: usize) -> Self {
        let chunks = sample.pages().len().div_ceil(CHUNK_PAGES as u64);
        let levels = usize::from(sample.deepest()) + 1;
        Self {
            sample,
            chunks: std::iter::repeat_with(|| None)
                .take(usize_from(chunks))
                .collect(),
            by_level: vec![Recency::new(lengths); levels],
            reported: vec![0; levels],
        }
    }

    pub(crate) fn begin(&mut self, now: u16, lengths: &[u32]) {
        self.reported.fill(0);
        for recency in &mut self.by_level {
            recency.begin(now, lengths);
        }
    }

    /// Records that interval `now` has found these pages dirty. A page that is reported twice in an
    /// interval counts once.
    pub(crate) fn dirty(&mut self, run: PageRange, now: u16, lengths: &[u32]) {
        for page in run.intersect(self.sample.pages()).iter() {
            let level = usize::from(self.sample.level_of(page));
            let (chunk, within) = place(self.offset(page));
            let Some(chunk) = self.chunks.get_mut(chunk) else {
                continue;
            };
            let chunk = chunk.get_or_insert_with(|| {
                Box::new(Chunk {
                    last: [0; CHUNK_PAGES],
                    reported: [0; CHUNK_UNITS],
                })
            });
            let last = std::mem::replace(&mut chunk.last[within], now);
            if last == now {
                continue;
            }
            chunk.reported[within / usize_from(UNIT_PAGES)] += 1;
            if let (Some(recency), Some(reported)) =
                (self.by_level.get_mut(level), self.reported.get_mut(level))
            {
                recency.written(last, now, lengths);
                *reported += 1;
            }
        }
    }

    /// The number of pages of the sample that this interval has reported.
    pub(crate) fn reported(&self, level: u8) -> u64 {
        self.of_level(&self.reported, level).iter().sum()
    }

    /// The number of different pages of the sample in the window that ends with this interval.
    pub(crate) fn different(&self, level: u8, length: usize) -> u64 {
        let by_level = self.of_level(&self.by_level, level).iter();
        by_level.map(|recency| recency.different(length)).sum()
    }

    /// All reports of a part of the block. `part` is whole units, or ends with the block.
    pub(crate) fn reports(&self, part: PageRange) -> Reports {
        let mut reports = Reports::default();
        let part = part.intersect(self.sample.pages());
        let mut page = part.start();
        while page < part.end() {
            let (chunk, within) = place(self.offset(page));
            let left = (CHUNK_PAGES - within) as u64;
            let pages = left.min(part.end().index() - page.index());
            if let Some(Some(chunk)) = self.chunks.get(chunk) {
                let last = &chunk.last[within..within + usize_from(pages)];
                reports.different += last.iter().filter(|last| **last > 0).count() as u64;
                let unit = usize_from(UNIT_PAGES);
                let units = within / unit..(within + usize_from(pages)).div_ceil(unit);
                reports.reported += chunk.reported[units]
                    .iter()
                    .map(|n| u64::from(*n))
                    .sum::<u64>();
            }
            page = page.saturating_add(pages);
        }
        reports
    }

    /// The items of the levels whose pages are in the sample of `level`.
    fn of_level<'a, T>(&self, by_level: &'a [T], level: u8) -> &'a [T] {
        let from = usize::from(level.min(self.sample.deepest()));
        by_level.get(from..).unwrap_or_default()
    }

    fn offset(&self, page: Page) -> u64 {
        page.index()
            .saturating_sub(self.sample.pages().start().index())
    }
}

/// The chunk of a page of the block, and its number in it.
fn place(offset: u64) -> (usize, usize) {
    let offset = usize_from(offset);
    (offset / CHUNK_PAGES, offset % CHUNK_PAGES)
}
