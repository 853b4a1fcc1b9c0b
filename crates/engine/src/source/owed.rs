//! The pages that the destination still has to get in post-copy.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_pages::{Page, PageBitmap, PageRange, RamLayout};

use super::error::SourceFailure;
use super::precopy::CHUNK;
use crate::ram::RamFiles;

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
