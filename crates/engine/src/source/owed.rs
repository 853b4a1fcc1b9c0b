//! The pages that the destination still has to get in post-copy.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_pages::{Page, PageBitmap, PageRange, RamLayout};

use super::error::SourceFailure;
use crate::ram::RamFiles;

/// Pages whose log is taken at once, 2 MiB: what one page-table page maps, and
/// small enough for a scan not to matter.
pub(super) const CHUNK: u64 = 512;

/// No urgent page was sent yet.
const NOWHERE: u64 = u64::MAX;

/// Which pages are owed, and by whom they are sent: whoever claims one sends
/// it. Shared by the urgent and the background thread, without a lock.
#[derive(Debug)]
pub(super) struct Owed {
    pages: PageBitmap,
    /// The page after the last urgent one: where the guest is likely to go
    /// next. Background sending moves there.
    hint: AtomicU64,
}

impl Owed {
    pub(super) fn none(pages: u64) -> Self {
        Self {
            pages: PageBitmap::empty(pages),
            hint: AtomicU64::new(NOWHERE),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.pages.count()
    }

    /// Claims up to `max` adjacent owed pages, the first there are in `within`.
    pub(super) fn claim(&self, within: PageRange, max: u64) -> Option<PageRange> {
        self.pages.claim_run(within, max)
    }

    /// The guest has just asked for the pages before `next`.
    pub(super) fn asked_upto(&self, next: Page) {
        // Only a hint: whatever order it is seen in, no page depends on it.
        self.hint.store(next.index(), Ordering::Relaxed);
    }

    /// Where background sending should go on, if there is news of that.
    pub(super) fn take_hint(&self) -> Option<Page> {
        match self.hint.load(Ordering::Relaxed) {
            NOWHERE => None,
            _ => Some(self.hint.swap(NOWHERE, Ordering::Relaxed))
                .filter(|&page| page != NOWHERE)
                .map(Page::new),
        }
    }

    /// Takes the whole dirty log into the owed set; gives the runs that are
    /// new to it, rounded to the destination's host pages.
    ///
    /// `destination` is the layout with the destination's host page sizes: it
    /// can only drop a whole host page, and must get all of it again.
    pub(super) fn add_dirty(
        &self,
        log: &dyn DirtyLog,
        destination: &RamLayout,
    ) -> Result<Vec<PageRange>, SourceFailure> {
        let mut new = Vec::new();
        for chunk in destination.all().chunks(CHUNK) {
            log.take(chunk, &mut |run| {
                self.add(destination.round_out(run), &mut new)
            })?;
        }
        Ok(new)
    }

    /// Adds everything that the RAM files hold data for in `range`; gives the
    /// runs that are new.
    pub(super) fn add_data(
        &self,
        ram: &RamFiles,
        destination: &RamLayout,
        range: PageRange,
    ) -> io::Result<Vec<PageRange>> {
        let mut new = Vec::new();
        let mut rest = range;
        while let Some(data) = ram.next_data(rest)? {
            self.add(destination.round_out(data), &mut new);
            rest = PageRange::new(data.end(), rest.end());
        }
        Ok(new)
    }

    /// Adds what has become data in the gaps between owed pages.
    pub(super) fn add_data_in_gaps(
        &self,
        ram: &RamFiles,
        destination: &RamLayout,
    ) -> io::Result<Vec<PageRange>> {
        let mut new = Vec::new();
        let all = destination.all();
        let mut from = all.start();
        let owed: Vec<_> = self.pages.runs(all).collect();
        for run in owed {
            new.extend(self.add_data(ram, destination, PageRange::new(from, run.start()))?);
            from = run.end();
        }
        new.extend(self.add_data(ram, destination, PageRange::new(from, all.end()))?);
        Ok(new)
    }

    /// Adds `run`; appends it to `new`, joined to the last one where they
    /// touch, unless all of it was owed already.
    fn add(&self, run: PageRange, new: &mut Vec<PageRange>) {
        if self.pages.set_range(run) == 0 {
            return;
        }
        match new.last_mut() {
            Some(last) if last.end() >= run.start() => {
                *last = PageRange::new(last.start(), last.end().max(run.end()));
            }
            _ => new.push(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_dirty::DirtyError;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock};
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;

    use crate::ram::RamFile;

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    /// 3 small pages, then two huge ones.
    fn layout(host_page: u64) -> RamLayout {
        let block = |id: &str, bytes, host_page| RamBlock {
            id: id.to_owned(),
            bytes,
            host_page,
            guest: Vec::new(),
        };
        let small = block("small", 3 * PAGE_BYTES, PAGE_BYTES);
        let large = block("large", 1024 * PAGE_BYTES, host_page);
        RamLayout::new(vec![small, large]).unwrap()
    }

    /// Reports each of its runs once.
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

        fn count(&self, _: PageRange) -> Result<u64, DirtyError> {
            unreachable!("not asked for here")
        }

        fn stop(&self) -> Result<(), DirtyError> {
            Ok(())
        }
    }

    #[test]
    fn dirty_pages_are_owed_in_whole_host_pages_of_the_destination() {
        let owed = Owed::none(1027);
        let layout = layout(512 * PAGE_BYTES);
        let log = Log(Mutex::new(vec![
            range(1, 2),
            range(100, 101),
            range(300, 310),
        ]));
        let new = owed.add_dirty(&log, &layout).unwrap();
        // Joined where rounding makes them touch; the last huge page is clean.
        assert_eq!(new, [range(1, 2), range(3, 515)]);
        assert_eq!(owed.count(), 513);
        // What is owed already is not news, even if only a part of it is told.
        assert_eq!(owed.add_dirty(&log, &layout).unwrap(), []);
        *log.0.lock().unwrap() = vec![range(0, 3), range(514, 516)];
        let new = owed.add_dirty(&log, &layout).unwrap();
        assert_eq!(new.iter().map(|run| run.end()).max(), Some(Page::new(1027)));
        assert_eq!(owed.count(), 1027);
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
        let ram = RamFiles::new(layout.clone(), opened.collect()).unwrap();
        let owed = Owed::none(1027);
        for page in [2, 3, 4, 100] {
            write(page);
        }
        let new = owed.add_data(&ram, &layout, layout.all()).unwrap();
        // Two blocks, but pages that follow each other.
        assert_eq!(new, [range(2, 5), range(100, 101)]);
        assert_eq!(owed.add_data_in_gaps(&ram, &layout).unwrap(), []);
        for page in [0, 3, 5, 99, 101, 1026] {
            write(page);
        }
        let new = owed.add_data_in_gaps(&ram, &layout).unwrap();
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
        assert_eq!(owed.count(), 9);
    }

    #[test]
    fn a_page_is_claimed_once_and_a_hint_is_taken_once() {
        let owed = Owed::none(100);
        owed.add(range(10, 30), &mut Vec::new());
        assert_eq!(owed.claim(range(0, 100), 8), Some(range(10, 18)));
        assert_eq!(owed.claim(range(0, 20), 8), Some(range(18, 20)));
        assert_eq!(owed.claim(range(0, 20), 8), None);
        assert_eq!(owed.count(), 10);
        assert_eq!(owed.take_hint(), None);
        owed.asked_upto(Page::new(3));
        owed.asked_upto(Page::new(7));
        assert_eq!(owed.take_hint(), Some(Page::new(7)), "the latest");
        assert_eq!(owed.take_hint(), None);
    }
}
