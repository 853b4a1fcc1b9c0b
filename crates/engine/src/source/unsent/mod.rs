//! The pages that have not been sent yet in post-copy.

mod write_counts;

use std::io;

use hikkoshi_dirty::DirtyLog;
use hikkoshi_pages::{PageBitmap, PageRange, RamLayout};

use crate::report::MissingRanges;
use crate::source::bit_scan::first_run;
use crate::source::error::SourceFailure;
use crate::source::read_log::{join, peek_log, take_log};
use crate::source::repeat_counter::RepeatCounter;
use hikkoshi_memory::GuestRam;
pub(crate) use write_counts::HOTTEST;
use write_counts::WriteCounts;

/// The set of unsent pages. A thread claims a page before it sends it, so each page is
/// sent once. Shared by all threads that send pages in post-copy, without a lock.
#[derive(Debug)]
pub(crate) struct UnsentPages {
    pages: PageBitmap,
    /// How often each page was written, if that decides which are sent first.
    write_counts: Option<WriteCounts>,
}

impl UnsentPages {
    /// An empty set, for a guest of `pages` pages. `write_counts` says whether writes
    /// are counted.
    pub(crate) fn empty(pages: u64, write_counts: bool) -> Self {
        Self {
            pages: PageBitmap::empty(pages),
            write_counts: write_counts.then(|| WriteCounts::new(pages)),
        }
    }

    /// Counts a write to each of these pages, which the dirty log has reported.
    pub(crate) fn count_write(&self, pages: PageRange) {
        if let Some(write_counts) = &self.write_counts {
            write_counts.count(pages);
        }
    }

    /// Whether writes are counted.
    pub(crate) fn counts_writes(&self) -> bool {
        self.write_counts.is_some()
    }

    /// The part of `range` from its first unsent page on; `None` if there is none.
    /// Claims nothing.
    pub(crate) fn first(&self, range: PageRange) -> Option<PageRange> {
        let range = range.intersect(self.pages.all());
        let run = first_run(range, |number| self.pages.load_word(number))?;
        Some(PageRange::new(run.start(), range.end()))
    }

    /// The first unsent pages in `range` that were written at least `times`. Claims
    /// nothing.
    pub(crate) fn first_hot(&self, times: usize, range: PageRange) -> Option<PageRange> {
        let range = range.intersect(self.pages.all());
        let unsent = |number| self.pages.load_word(number);
        self.write_counts.as_ref()?.first(times, range, unsent)
    }

    pub(crate) fn count(&self) -> u64 {
        self.pages.count()
    }

    /// Empties the set, and returns what it contained. No other thread may claim pages
    /// meanwhile.
    pub(crate) fn take(&self) -> PageBitmap {
        let all = PageBitmap::empty(self.pages.pages());
        for run in self.runs() {
            all.set_range(run);
        }
        self.pages.clear_range(self.pages.all());
        all
    }

    /// Adds `pages` again.
    pub(crate) fn put_back(&self, pages: &PageBitmap) {
        for run in pages.runs(pages.all()) {
            self.pages.set_range(run);
        }
    }

    /// All unsent pages, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.pages.runs(self.pages.all())
    }

    /// The unsent pages in `range`, in order.
    pub(crate) fn runs_in(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        self.pages.runs(range)
    }

    /// Claims up to `max` adjacent unsent pages, the first ones in `within`.
    pub(crate) fn claim(&self, within: PageRange, max: u64) -> Option<PageRange> {
        self.pages.claim_run(within, max)
    }

    /// Takes the whole dirty log of memory in the layout `source` and adds its pages, rounded to
    /// the destination's host pages. Returns the runs that were not in the set.
    ///
    /// `destination` is the layout with the destination's host page sizes. The
    /// destination can only drop a whole host page, and needs all of it again. `sent` notes which
    /// of them the guest has written to.
    pub(crate) fn add_dirty(
        &self,
        log: &dyn DirtyLog,
        source: &RamLayout,
        destination: &RamLayout,
        sent: &RepeatCounter,
    ) -> Result<Vec<PageRange>, SourceFailure> {
        take_log(log, source, |run, new| {
            self.count_write(run);
            sent.note_written(run);
            self.add(destination.round_out(run), new);
        })
    }

    /// Adds what is dirty in the log, and leaves it dirty there: the guest is paused. A page that
    /// is in the set needs no second look, because its content is read when it is sent, after the
    /// switchover. `count_writes` says whether these are writes of the guest's that were not
    /// counted before.
    pub(crate) fn add_dirty_of_paused(
        &self,
        log: &dyn DirtyLog,
        source: &RamLayout,
        destination: &RamLayout,
        sent: &RepeatCounter,
        count_writes: bool,
    ) -> Result<Vec<PageRange>, SourceFailure> {
        peek_log(log, source, |run, new| {
            if count_writes {
                self.count_write(run);
            }
            sent.note_written(run);
            self.add(destination.round_out(run), new);
        })
    }

    /// Adds the pages in `range` that the RAM files hold data for. Returns the runs that
    /// were not in the set.
    pub(crate) fn add_data(
        &self,
        ram: &GuestRam,
        destination: &RamLayout,
        range: PageRange,
    ) -> io::Result<Vec<PageRange>> {
        let mut new = Vec::new();
        ram.data_runs(range, |data| {
            self.add(destination.round_out(data), &mut new)
        })?;
        Ok(new)
    }

    /// Adds pages, rounded to the destination's host pages. Returns the runs that were not in the
    /// set.
    pub(crate) fn add_pages(&self, pages: &[PageRange], destination: &RamLayout) -> Vec<PageRange> {
        let mut new = Vec::new();
        for &run in pages {
            self.add(destination.round_out(run), &mut new);
        }
        new
    }

    /// Adds the pages between the unsent ones that the RAM files hold data for now.
    pub(crate) fn add_data_in_gaps(
        &self,
        ram: &GuestRam,
        destination: &RamLayout,
    ) -> io::Result<Vec<PageRange>> {
        let mut new = Vec::new();
        let all = destination.all();
        let mut from = all.start();
        let unsent: Vec<_> = self.pages.runs(all).collect();
        for run in unsent {
            new.extend(self.add_data(ram, destination, PageRange::new(from, run.start()))?);
            from = run.end();
        }
        new.extend(self.add_data(ram, destination, PageRange::new(from, all.end()))?);
        Ok(new)
    }

    /// Adds the pages in `range`, which the destination reported as missing, that the
    /// RAM files hold data for, rounded to its host pages. `known` is the run of data
    /// that was found last: it may contain many ranges, and finding its end takes long
    /// (see [`GuestRam::data_run`]).
    pub(crate) fn add_missing(
        &self,
        ram: &GuestRam,
        destination: &RamLayout,
        range: PageRange,
        known: &mut PageRange,
    ) -> io::Result<()> {
        let mut rest = range;
        while !rest.is_empty() {
            let data = known.intersect(rest);
            if data.is_empty() {
                match ram.data_run(rest)? {
                    Some(run) => *known = run,
                    None => return Ok(()),
                }
            } else {
                self.pages.set_range(destination.round_out(data));
                rest = PageRange::new(data.end(), rest.end());
            }
        }
        Ok(())
    }

    /// Adds `range`.
    #[cfg(test)]
    pub(crate) fn insert(&self, range: PageRange) {
        self.pages.set_range(range);
    }

    /// Adds `run`. Appends the parts that were not in the set to `new`, joined to its last run if
    /// they touch.
    fn add(&self, run: PageRange, new: &mut Vec<PageRange>) {
        let mut from = run.start();
        let end = PageRange::new(run.end(), run.end());
        for known in self.pages.runs(run).chain([end]) {
            let gap = PageRange::new(from, known.start());
            if !gap.is_empty() {
                join(new, gap);
            }
            from = known.end();
        }
        self.pages.set_range(run);
    }
}

impl MissingRanges for UnsentPages {
    fn each_missing(&self, each: &mut dyn FnMut(PageRange)) {
        self.runs().for_each(each);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_dirty::DirtyError;
    use hikkoshi_pages::{PAGE_BYTES, Page, RamBlock};
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;

    use hikkoshi_memory::RamFile;

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    /// 3 small pages, then two huge ones.
    fn layout(host_page: u64) -> RamLayout {
        let block = |id: &str, bytes, host_page| RamBlock::new(id, bytes, host_page);
        let small = block("small", 3 * PAGE_BYTES, PAGE_BYTES);
        let large = block("large", 1024 * PAGE_BYTES, host_page);
        RamLayout::new(vec![small, large]).unwrap()
    }

    /// Reports its runs, and makes none of them clean.
    #[derive(Debug)]
    struct Log(Mutex<Vec<PageRange>>);

    impl DirtyLog for Log {
        fn take(
            &self,
            range: PageRange,
            dirty: &mut dyn FnMut(PageRange),
        ) -> Result<(), DirtyError> {
            for run in self.0.lock().unwrap().iter() {
                let run = run.intersect(range);
                if !run.is_empty() {
                    dirty(run);
                }
            }
            Ok(())
        }

        fn peek(
            &self,
            range: PageRange,
            dirty: &mut dyn FnMut(PageRange),
        ) -> Result<(), DirtyError> {
            self.take(range, dirty)
        }

        fn stop(&self) -> Result<(), DirtyError> {
            Ok(())
        }
    }

    #[test]
    fn dirty_pages_are_added_in_whole_host_pages_of_the_destination() {
        let unsent = UnsentPages::empty(1027, false);
        let layout = layout(512 * PAGE_BYTES);
        let log = Log(Mutex::new(vec![
            range(1, 2),
            range(100, 101),
            range(300, 310),
        ]));
        let sent = RepeatCounter::unknown();
        let add = || unsent.add_dirty(&log, &layout, &layout, &sent).unwrap();
        let new = add();
        // Joined where rounding makes them touch; the last huge page is clean.
        assert_eq!(new, [range(1, 2), range(3, 515)]);
        assert_eq!(unsent.count(), 513);
        // Pages that are in the set are not returned again, even if only a part is dirty.
        assert_eq!(add(), []);
        *log.0.lock().unwrap() = vec![range(0, 3), range(514, 516)];
        let new = add();
        assert_eq!(new, [range(0, 1), range(2, 3), range(515, 1027)]);
        assert_eq!(unsent.count(), 1027);
    }

    #[test]
    fn a_paused_guests_pages_are_new_once_and_its_writes_are_counted_once() {
        let unsent = UnsentPages::empty(1027, true);
        let layout = layout(PAGE_BYTES);
        let log = Log(Mutex::new(vec![range(10, 20)]));
        let sent = RepeatCounter::unknown();
        let peek = |count_writes| {
            unsent
                .add_dirty_of_paused(&log, &layout, &layout, &sent, count_writes)
                .unwrap()
        };
        assert_eq!(peek(true), [range(10, 20)]);
        // What saving the device state has written extends a run.
        *log.0.lock().unwrap() = vec![range(9, 21), range(50, 51)];
        assert_eq!(peek(false), [range(9, 10), range(20, 21), range(50, 51)]);
        assert_eq!(unsent.first_hot(1, layout.all()), Some(range(10, 20)));
        assert_eq!(unsent.first_hot(2, layout.all()), None);
    }

    #[test]
    fn data_that_appears_in_the_gaps_is_found() {
        let layout = layout(PAGE_BYTES);
        let files: Vec<_> = layout
            .blocks()
            .map(|(block, _)| {
                let file = tempfile::tempfile_in("/dev/shm").unwrap();
                file.set_len(block.bytes).unwrap();
                file
            })
            .collect();
        let write = |page: u64| {
            let (block, offset) = layout.locate(Page::new(page)).unwrap();
            files[block].write_all_at(&[1], offset).unwrap();
        };
        let opened = files
            .iter()
            .map(|file| RamFile::new(file.try_clone().unwrap(), 0));
        let ram = GuestRam::new(layout.clone(), opened.collect::<Vec<_>>()).unwrap();
        let unsent = UnsentPages::empty(1027, false);
        for page in [2, 3, 4, 100] {
            write(page);
        }
        let new = unsent.add_data(&ram, &layout, layout.all()).unwrap();
        // Two blocks, but pages that follow each other.
        assert_eq!(new, [range(2, 5), range(100, 101)]);
        assert_eq!(unsent.add_data_in_gaps(&ram, &layout).unwrap(), []);
        for page in [0, 3, 5, 99, 101, 1026] {
            write(page);
        }
        let new = unsent.add_data_in_gaps(&ram, &layout).unwrap();
        assert_eq!(
            new,
            [
                range(0, 1),
                range(5, 6),
                range(99, 100),
                range(101, 102),
                range(1026, 1027)
            ]
        );
        assert_eq!(unsent.count(), 9);
    }

    #[test]
    fn missing_pages_with_data_are_added() {
        for (host_page, expected) in [
            (
                PAGE_BYTES,
                &[(2, 3), (100, 101), (102, 103), (105, 107)][..],
            ),
            (512 * PAGE_BYTES, &[(2, 515)]),
        ] {
            let layout = layout(host_page);
            let files = layout.blocks().map(|(block, _)| {
                let file = tempfile::tempfile_in("/dev/shm").unwrap();
                file.set_len(block.bytes).unwrap();
                file
            });
            let files: Vec<_> = files.collect();
            for page in [1, 2, 99, 100, 101, 102, 103, 104, 105, 106] {
                let (block, offset) = layout.locate(Page::new(page)).unwrap();
                files[block].write_all_at(&[1], offset).unwrap();
            }
            let opened = files.into_iter().map(|file| RamFile::new(file, 0));
            let ram = GuestRam::new(layout.clone(), opened.collect::<Vec<_>>()).unwrap();
            let unsent = UnsentPages::empty(1027, false);
            let mut known = PageRange::EMPTY;
            for (from, to) in [
                (0, 1),
                (2, 3),
                (50, 60),
                (100, 101),
                (102, 103),
                (105, 1027),
            ] {
                let missing = layout.round_out(range(from, to));
                unsent
                    .add_missing(&ram, &layout, missing, &mut known)
                    .unwrap();
            }
            let runs: Vec<_> = unsent.runs().collect();
            let expected: Vec<_> = expected.iter().map(|&(a, b)| range(a, b)).collect();
            assert_eq!(runs, expected);
            let before = unsent.take();
            assert_eq!(
                (unsent.count(), before.runs(before.all()).collect()),
                (0, runs)
            );
            before.clear_range(range(0, 50));
            unsent.put_back(&before);
            assert!(unsent.runs().eq(before.runs(before.all())));
        }
    }

    #[test]
    fn a_page_is_claimed_once() {
        let unsent = UnsentPages::empty(100, false);
        unsent.add(range(10, 30), &mut Vec::new());
        assert_eq!(unsent.first(range(0, 100)), Some(range(10, 100)));
        assert_eq!(unsent.claim(range(0, 100), 8), Some(range(10, 18)));
        assert_eq!(unsent.first(range(0, 25)), Some(range(18, 25)));
        assert_eq!(unsent.claim(range(0, 20), 8), Some(range(18, 20)));
        assert_eq!(unsent.claim(range(0, 20), 8), None);
        assert_eq!(unsent.first(range(0, 20)), None);
        assert_eq!(unsent.count(), 10);
    }

    #[test]
    fn hot_pages_are_unsent_and_were_written_often() {
        let unsent = UnsentPages::empty(100, true);
        unsent.count_write(range(10, 20));
        unsent.count_write(range(15, 30));
        unsent.add(range(0, 18), &mut Vec::new());
        assert_eq!(unsent.first_hot(1, range(0, 100)), Some(range(10, 18)));
        assert_eq!(unsent.first_hot(2, range(0, 100)), Some(range(15, 18)));
        assert_eq!(unsent.first_hot(3, range(0, 100)), None);
        let cold = UnsentPages::empty(100, false);
        cold.count_write(range(0, 100));
        assert_eq!(cold.first_hot(1, range(0, 100)), None);
    }
}
