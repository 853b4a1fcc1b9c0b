//! Taking the log of a range, looking at it, counting it.

use thiserror::Error;

use super::dirty_flags::GROUP;
use super::runs::Runs;
use super::{LogMethod, uses_write_protection};
use crate::address::{Gfn, GfnRange, Level};
use crate::atomic::Ordering;
use crate::bitmap::{WORD, ones};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::processors::Processors;
use crate::rmap::{Head, Location};
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::try_replace;

/// Why a log was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TakeError {
    /// It is off.
    #[error("taking a dirty log: logging is off; start it first")]
    Off,
}

/// Words that are rearmed together.
const BATCH: usize = 16;
/// Pages whose places are read ahead of changing the first: each is two cache misses in a large guest,
/// and an exchange would keep the processor from starting the next page's.
const PREFETCH: usize = 32;

/// What a take has found: words of dirty pages, rearmed by batches, noted as runs, and to be flushed.
struct TakeState<'t, M: HostMemory> {
    guest: &'t Guest<M>,
    range: GfnRange,
    words: [(usize, u64); BATCH],
    count: usize,
    runs: Runs<'t>,
    flush: TlbFlush,
}

impl<M: HostMemory> TakeState<'_, M> {
    /// Pages whose bits have been taken out of the log; those that are tracked now are reported.
    fn add(&mut self, word: usize, bits: u64) {
        let bits = bits & self.guest.log.tracked.word(word);
        self.words[self.count] = (word, bits);
        self.count += 1;
        if self.count == BATCH {
            self.rearm();
        }
    }

    /// Has the next write to the pages of the batch noticed again, and notes them.
    fn rearm(&mut self) {
        if self.count == 0 {
            return;
        }
        let words = self.words;
        let words = &words[..core::mem::take(&mut self.count)];
        let guard = self.guest.rcu.read();
        // The form of now: whoever changes it waits for those inside before it relies on the new one.
        // After a stop there is nothing to notice, and the next start visits all leaves.
        if let Some(method) = self.guest.log.method() {
            self.guest.rearm(method, words);
        }
        drop(guard);
        for &(word, bits) in words {
            self.note(word, bits);
        }
    }

    /// Pages that have been rearmed.
    fn note(&mut self, word: usize, bits: u64) {
        if bits != 0 {
            let span = GfnRange::from_len(Gfn::new(word as u64 * WORD), WORD);
            self.flush
                .add_ascending(View::MAIN.bit(), span.intersect(self.range));
            self.runs.add(word, bits);
        }
    }

    /// What is to be flushed, and the number of pages.
    fn end(mut self) -> (TlbFlush, u64) {
        self.rearm();
        // Only now: a view that was added meanwhile may have had leaves to be rearmed.
        self.flush.extend_to_views(self.guest.plain_views());
        (self.flush, self.runs.end())
    }
}

impl<M: HostMemory> Guest<M> {
    /// Takes the log of `range`: calls `note` with each maximal run of pages written since they were
    /// last taken, ascending, and starts anew for those. Returns the number of pages.
    ///
    /// A page's content may be read once this has **returned**, not in `note`: only then do all
    /// processors know that the next write is to be logged.
    ///
    /// Every write that was made before the call is in this log or, if a virtual processor's exit or
    /// another thread's operation on the page is under way, in the next. Take the last log with the
    /// virtual processors stopped, and nothing is missing. A page may be reported a second time without
    /// a second write if it is unmapped or logged by several processors while it is taken; a page that
    /// was not written, as the processor counts it, is never reported.
    ///
    /// If the log is stopped and started again meanwhile, by other threads, in whatever form, nothing
    /// written after that start is lost.
    ///
    /// The rest of the guest is neither touched nor locked; nor is the range: its words are exchanged,
    /// its entries compared and exchanged. The cost: a word for 4096 pages of the range, a word for 64
    /// pages around each dirty one, a word and an entry a dirty page. With [`LogMethod::DirtyFlags`]: an
    /// entry for every page of the range.
    ///
    /// # Errors
    ///
    /// [`TakeError::Off`].
    pub fn take_log(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
        note: &mut dyn FnMut(GfnRange),
    ) -> Result<u64, TakeError> {
        let method = self.log.method().ok_or(TakeError::Off)?;
        self.drain_all(method, processors);
        let range = range.intersect(self.all());
        let mut found = TakeState {
            guest: self,
            range,
            words: [(0, 0); BATCH],
            count: 0,
            runs: Runs::new(note),
            flush: TlbFlush::none(),
        };
        if method == LogMethod::DirtyFlags {
            let views = self.plain_views();
            for part in range.chunks(GROUP) {
                self.take_flags(&mut found, views, part);
            }
        } else {
            self.log
                .dirty
                .take(range, |word, bits| found.add(word, bits));
        }
        let (mut flush, pages) = found.end();
        if !flush.is_empty() {
            // What is reported is flushed, whatever the entries said: another thread may have changed
            // one, and not flushed yet.
            flush.add_whole_views(self.nested_views());
            processors.invalidate(&flush);
        }
        Ok(pages)
    }

    /// Takes the flags and the log of a group.
    fn take_flags(&self, found: &mut TakeState<'_, M>, views: u64, part: GfnRange) {
        let method = LogMethod::DirtyFlags;
        let guard = self.rcu.read();
        if self.log.method() != Some(method) {
            // Stopped meanwhile, and perhaps started in a form that has no flags to read.
            drop(guard);
            let add = |word, bits| found.add(word, bits);
            self.log.dirty.take(part, add);
            found.rearm();
            return;
        }
        // The flags first: an unmapper sets the bit before it takes the flag away.
        let Some((tracked, dirty)) = self.scan_flags(views, part, true) else {
            return;
        };
        let marked = tracked.words(&dirty).map(|(word, mask, bits)| {
            let marked = self.log.dirty.take_word(word, mask);
            self.rearm(method, &[(word, marked)]);
            (word, bits | marked)
        });
        let mut words = [(0, 0); BATCH];
        let mut count = 0;
        for (place, word) in words.iter_mut().zip(marked) {
            *place = word;
            count += 1;
        }
        drop(guard);
        for &(word, bits) in &words[..count] {
            found.note(word, bits);
        }
    }

    /// Calls `note` with each maximal run of pages of `range` that are in the log now, ascending, and
    /// changes nothing. Returns the number of pages.
    ///
    /// # Errors
    ///
    /// [`TakeError::Off`].
    pub fn peek_log(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
        note: &mut dyn FnMut(GfnRange),
    ) -> Result<u64, TakeError> {
        let method = self.log.method().ok_or(TakeError::Off)?;
        self.drain_all(method, processors);
        let range = range.intersect(self.all());
        let mut runs = Runs::new(note);
        if method == LogMethod::DirtyFlags {
            let views = self.plain_views();
            for part in range.chunks(GROUP) {
                let guard = self.rcu.read();
                let found = self.scan_flags(views, part, false);
                drop(guard);
                let Some((tracked, dirty)) = found else {
                    continue;
                };
                for (word, mask, bits) in tracked.words(&dirty) {
                    runs.add(word, bits | self.log.dirty.word(word) & mask);
                }
            }
        } else {
            self.log.dirty.peek(range, |word, bits| {
                runs.add(word, bits & self.log.tracked.word(word));
            });
        }
        Ok(runs.end())
    }

    /// The number of pages of `range` that are in the log now.
    ///
    /// # Errors
    ///
    /// [`TakeError::Off`].
    pub fn count_dirty(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
    ) -> Result<u64, TakeError> {
        self.peek_log(range, processors, &mut |_| ())
    }

    /// Has the virtual processors hand over what they have logged.
    fn drain_all(&self, method: LogMethod, processors: &(impl Processors + ?Sized)) {
        if method == LogMethod::Pml {
            processors.drain(&|vcpu, index| self.drain_pml(vcpu, index));
        }
    }

    /// Has the next write to each of these pages noticed again. The caller is inside.
    fn rearm(&self, method: LogMethod, words: &[(usize, u64)]) {
        let mut pages = words
            .iter()
            .flat_map(|&(word, bits)| ones(bits).map(move |bit| word as u64 * WORD + bit))
            .map(Gfn::new);
        let mut heads = [(Gfn::new(0), Head::NONE, Entry::ABSENT); PREFETCH];
        loop {
            let mut count = 0;
            for (place, gfn) in heads.iter_mut().zip(pages.by_ref()) {
                *place = (
                    gfn,
                    self.rmap.head(&self.memory, Level::Size4K, gfn),
                    Entry::ABSENT,
                );
                count += 1;
            }
            let heads = &mut heads[..count];
            for (_, head, entry) in &mut *heads {
                if let Some(location) = head.single() {
                    *entry = Entry(location.slot(&self.memory).load(Ordering::Acquire));
                }
            }
            for (gfn, head, entry) in &*heads {
                match head.single() {
                    Some(location) => self.rearm_leaf(method, *gfn, location, *entry),
                    None => {
                        self.rmap
                            .for_each(&self.memory, Level::Size4K, *gfn, &mut |location| {
                                self.rearm_leaf(method, *gfn, location, Entry::ABSENT);
                            })
                    }
                }
            }
            if count < PREFETCH {
                return;
            }
        }
    }

    /// Rearms one leaf, last seen as `seen`.
    fn rearm_leaf(&self, method: LogMethod, gfn: Gfn, location: Location, seen: Entry) {
        let nested = location.is_nested();
        let rearmed = |leaf: Entry| {
            leaf.is_logged().then(|| {
                if uses_write_protection(method, Level::Size4K, nested) {
                    leaf.with_write(false)
                } else {
                    leaf.with_dirty(false)
                }
            })
        };
        if !nested
            && let Some(new) = rearmed(seen)
            && (new == seen || try_replace(location.slot(&self.memory), seen, new))
        {
            return;
        }
        self.change_leaf(Level::Size4K, gfn, location, rearmed);
    }
}
