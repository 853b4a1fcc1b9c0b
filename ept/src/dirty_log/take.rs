//! Reading the log of a range: take (read and clear), peek (read only), count.

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

/// Why the log was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TakeError {
    /// Logging is off.
    #[error("cannot read the dirty log: logging is off; start it first")]
    Off,
}

/// Number of words that are rearmed together.
const BATCH: usize = 16;
/// Number of pages whose reverse map words and entries are read before the first one is changed. In
/// a large guest each page costs two cache misses, and an atomic exchange would delay the reads for
/// the next page.
const PREFETCH: usize = 32;

/// A take in progress: words of dirty pages, which are rearmed in batches, reported as runs and
/// then flushed.
struct TakeState<'t, M: HostMemory> {
    guest: &'t Guest<M>,
    range: GfnRange,
    words: [(usize, u64); BATCH],
    count: usize,
    runs: Runs<'t>,
    flush: TlbFlush,
}

impl<M: HostMemory> TakeState<'_, M> {
    /// Adds pages whose bits were cleared in the log. Only pages that are still tracked are
    /// reported.
    fn add(&mut self, word: usize, bits: u64) {
        let bits = bits & self.guest.log.tracked.word(word);
        self.words[self.count] = (word, bits);
        self.count += 1;
        if self.count == BATCH {
            self.rearm();
        }
    }

    /// Rearms the pages of the batch, so that the next write is detected, and reports them.
    fn rearm(&mut self) {
        if self.count == 0 {
            return;
        }
        let words = self.words;
        let words = &words[..core::mem::take(&mut self.count)];
        let guard = self.guest.rcu.read();
        // The current method: a thread that changes it synchronizes with the readers before it
        // relies on the new one. After a stop there is nothing to detect, and the next start visits
        // all leaves.
        if let Some(method) = self.guest.log.method() {
            self.guest.rearm(method, words);
        }
        drop(guard);
        for &(word, bits) in words {
            self.note(word, bits);
        }
    }

    /// Reports pages that were rearmed.
    fn note(&mut self, word: usize, bits: u64) {
        if bits != 0 {
            let span = GfnRange::from_len(Gfn::new(word as u64 * WORD), WORD);
            self.flush
                .add_ascending(View::MAIN.bit(), span.intersect(self.range));
            self.runs.add(word, bits);
        }
    }

    /// Rearms the last batch; returns the flush and the number of pages.
    fn end(mut self) -> (TlbFlush, u64) {
        self.rearm();
        // Read the set of views last: a view that was added meanwhile may have leaves that were
        // rearmed.
        self.flush.extend_to_views(self.guest.plain_views());
        (self.flush, self.runs.end())
    }
}

impl<M: HostMemory> Guest<M> {
    /// Takes the log of `range`: calls `note` with each maximal run of pages that were written
    /// since they were last taken, in ascending order, and clears the log of those pages. Returns
    /// the number of pages.
    ///
    /// Read the contents of a page only after this has **returned**, not in `note`. Before that, a
    /// processor may still use a translation that does not log the next write.
    ///
    /// A write before the call is in this log. If a vCPU's exit or another thread's operation on
    /// the page is in progress, it may be in the next log instead. A last take while the vCPUs are
    /// stopped therefore returns everything. A page can be reported again without another write if,
    /// during the take, it is unmapped or several vCPUs log it. A page that was not written, as the
    /// processor defines it, is never reported.
    ///
    /// If other threads stop the log and start it again meanwhile, by any method, no write after
    /// that start is lost.
    ///
    /// The rest of the guest is neither accessed nor locked. The range itself is not locked either:
    /// its words are exchanged, its entries are compared and exchanged. The cost is one word for
    /// each 4096 pages of the range, one word for each 64 pages around a dirty page, and one word
    /// and one entry for each dirty page. With [`LogMethod::DirtyFlags`] it is one entry for each
    /// page of the range.
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
            // Flush everything that is reported, whatever the entries contained: another thread may
            // have changed an entry and not flushed yet.
            flush.add_whole_views(self.nested_views());
            processors.invalidate(&flush);
        }
        Ok(pages)
    }

    /// Takes the dirty flags and the dirty bits of a group.
    fn take_flags(&self, found: &mut TakeState<'_, M>, views: u64, part: GfnRange) {
        let method = LogMethod::DirtyFlags;
        let guard = self.rcu.read();
        if self.log.method() != Some(method) {
            // The log was stopped, and perhaps restarted with a method that does not use dirty
            // flags.
            drop(guard);
            let add = |word, bits| found.add(word, bits);
            self.log.dirty.take(part, add);
            found.rearm();
            return;
        }
        // Read the flags first: an unmap sets the dirty bit before it removes the flag.
        let Some((tracked, dirty)) = self.scan_flags(views, part, true) else {
            return;
        };
        let marked = tracked.words(&dirty).map(|(word, mask, bits)| {
            let marked = self.log.dirty.take_word(word, mask);
            if marked != 0 {
                self.rearm(method, &[(word, marked)]);
            }
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

    /// Calls `note` with each maximal run of pages of `range` that are in the log now, in ascending
    /// order. Changes nothing. Returns the number of pages.
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

    /// Returns the number of pages of `range` that are in the log now.
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

    /// Drains the page-modification logs of all vCPUs.
    fn drain_all(&self, method: LogMethod, processors: &(impl Processors + ?Sized)) {
        if method == LogMethod::Pml {
            processors.drain_pml(&|vcpu, index| self.drain_pml(vcpu, index));
        }
    }

    /// Rearms the pages of `words`, so that the next write to each is detected. The caller holds an
    /// RCU read guard.
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

    /// Rearms one leaf. `seen` is the entry as last read.
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
