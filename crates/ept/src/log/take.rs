//! Taking the log of a range, looking at it, counting it.

use thiserror::Error;

use super::{Form, by_protection};
use crate::address::{Gfn, GfnRange, Level};
use crate::atomic::AtomicU64;
use crate::bits::{WORD, ones, words_of};
use crate::flush::Flush;
use crate::guest::{Guest, View};
use crate::memory::Memory;
use crate::processors::Processors;
use crate::rmap::Location;
use crate::walk::{replace, settled};

/// Why a log was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TakeError {
    /// It is off.
    #[error("taking a dirty log: logging is off; start it first")]
    Off,
}

/// Joins bits of ascending words to maximal runs.
struct Runs<'a> {
    run: GfnRange,
    pages: u64,
    note: &'a mut dyn FnMut(GfnRange),
}

impl<'a> Runs<'a> {
    fn new(note: &'a mut dyn FnMut(GfnRange)) -> Self {
        Self {
            run: GfnRange::EMPTY,
            pages: 0,
            note,
        }
    }

    fn add(&mut self, word: usize, mut bits: u64) {
        let first = word as u64 * WORD;
        while bits != 0 {
            let low = u64::from(bits.trailing_zeros());
            let count = u64::from((bits >> low).trailing_ones());
            self.add_run(GfnRange::from_len(Gfn::new(first + low), count));
            bits &= u64::MAX
                .checked_shl(u32::try_from(low + count).unwrap_or(64))
                .unwrap_or(0);
        }
    }

    fn add_run(&mut self, run: GfnRange) {
        self.pages += run.len();
        if self.run.end() == run.start() && !self.run.is_empty() {
            self.run = self.run.hull(run);
        } else {
            self.flush();
            self.run = run;
        }
    }

    fn flush(&mut self) {
        if !self.run.is_empty() {
            (self.note)(self.run);
        }
    }

    fn end(mut self) -> u64 {
        self.flush();
        self.pages
    }
}

impl<M: Memory> Guest<M> {
    /// Takes the log of `range`: calls `note` with each maximal run of pages written since they were
    /// last taken, ascending, and starts anew for those. Returns the number of pages.
    ///
    /// A page's content may be read once this has **returned**, not in `note`: only then do all
    /// processors know that the next write is to be logged. `note` only takes notes; it must not use
    /// the guest.
    ///
    /// Every write that was made before the call is in this log or, if a virtual processor's exit or
    /// another thread's operation on the page is under way, in the next. Take the last log with the
    /// virtual processors stopped, and nothing is missing. A page may be reported a second time without
    /// a second write if it is unmapped or logged by several processors while it is taken; a page that
    /// was not written, as the processor counts it, is never reported.
    ///
    /// The rest of the guest is not touched. The cost: a word for 4096 pages of the range, a word for 64
    /// pages around each dirty one, a word and an entry a dirty page. With [`Form::DirtyFlags`]: a word
    /// and an entry for every page of the range.
    ///
    /// # Errors
    ///
    /// [`TakeError::Off`].
    pub fn take(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
        note: &mut dyn FnMut(GfnRange),
    ) -> Result<u64, TakeError> {
        let form = self.log.form().ok_or(TakeError::Off)?;
        if form == Form::Pml {
            processors.drain(&|vcpu, index| self.drain_pml(vcpu, index));
        }
        let range = range.intersect(self.all());
        let mut flush = Flush::none();
        let mut runs = Runs::new(note);
        let views = self.plain_views();
        let inside = self.walkers.enter();
        let mut report = |word: usize, bits: u64, flush: &mut Flush| {
            let span = GfnRange::from_len(Gfn::new(word as u64 * WORD), WORD);
            flush.add(views, span.intersect(range));
            runs.add(word, bits);
        };
        if form == Form::DirtyFlags {
            for (word, mask) in words_of(range) {
                let mask = mask & self.log.tracked.word(word);
                if mask == 0 {
                    continue;
                }
                // The flags first: an unmapper sets the bit before it takes the flag away.
                let mut bits = self.scan_flags(views, word, mask, true);
                let marked = self.log.dirty.take_word(word, mask);
                self.rearm_word(form, word, marked);
                bits |= marked;
                if bits != 0 {
                    report(word, bits, &mut flush);
                }
            }
        } else {
            self.log.dirty.take(range, |word, bits| {
                let bits = bits & self.log.tracked.word(word);
                if bits != 0 {
                    self.rearm_word(form, word, bits);
                    report(word, bits, &mut flush);
                }
            });
        }
        drop(inside);
        if !flush.is_empty() {
            // What is reported is flushed, whatever the entries said: another thread may have changed
            // one, and not flushed yet.
            flush.add_whole(self.nested_views());
            processors.invalidate(&flush);
        }
        Ok(runs.end())
    }

    /// Calls `note` with each maximal run of pages of `range` that are in the log now, ascending, and
    /// changes nothing. Returns the number of pages.
    ///
    /// # Errors
    ///
    /// [`TakeError::Off`].
    pub fn peek(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
        note: &mut dyn FnMut(GfnRange),
    ) -> Result<u64, TakeError> {
        let form = self.log.form().ok_or(TakeError::Off)?;
        if form == Form::Pml {
            processors.drain(&|vcpu, index| self.drain_pml(vcpu, index));
        }
        let range = range.intersect(self.all());
        let mut runs = Runs::new(note);
        let views = self.plain_views();
        let _inside = self.walkers.enter();
        if form == Form::DirtyFlags {
            for (word, mask) in words_of(range) {
                let mask = mask & self.log.tracked.word(word);
                if mask != 0 {
                    let bits = self.scan_flags(views, word, mask, false);
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
    pub fn count(
        &self,
        range: GfnRange,
        processors: &(impl Processors + ?Sized),
    ) -> Result<u64, TakeError> {
        self.peek(range, processors, &mut |_| ())
    }

    /// Has the next write to each of these pages noticed again.
    fn rearm_word(&self, form: Form, word: usize, bits: u64) {
        let mut rearm = |gfn: Gfn, location: Location| {
            if bits & bit_of(gfn) == 0 {
                return;
            }
            let protect = by_protection(form, Level::Page, self.in_nested(location));
            let slot = location.slot(&self.memory);
            loop {
                let old = settled(slot);
                if !old.is_logged() {
                    return;
                }
                let new = if protect {
                    old.with_write(false)
                } else {
                    old.with_dirty(false)
                };
                if new == old || replace(slot, old, new) {
                    return;
                }
            }
        };
        if bits.count_ones() > DENSE {
            let range = span_of(word, bits);
            self.rmap
                .each_in(&self.memory, Level::Page, range, &mut rearm);
            return;
        }
        for bit in ones(bits) {
            let gfn = Gfn::new(word as u64 * WORD + bit);
            self.rmap
                .each(&self.memory, Level::Page, gfn, &mut |location| {
                    rearm(gfn, location);
                });
        }
    }

    /// The pages of a word whose dirty flag is set in one of the plain views; clears the flags if told
    /// to.
    ///
    /// Where a view has a table of the lowest level, that is read. Elsewhere the reverse map is asked: a
    /// table may just have been taken out, and its flags not saved yet.
    fn scan_flags(&self, views: u64, word: usize, mask: u64, clear: bool) -> u64 {
        let mut dirty = 0;
        for number in ones(views) {
            #[allow(clippy::cast_possible_truncation)] // below 64
            let view = View::numbered(number as u8);
            let mut left = mask;
            while left != 0 {
                let at = span_of(word, left).start();
                let Some(position) = self.walk(view, at, Level::Page) else {
                    break;
                };
                let next = at.align_down(Level::Large).plus(Level::Large.pages());
                let part = GfnRange::new(at, next).intersect(span_of(word, left));
                let (level, location) = (position.level, position.location);
                if level == Level::Page {
                    let table = self.memory.table(location.table());
                    for (gfn, slot) in part.iter().zip(&table[location.index()..]) {
                        if left & bit_of(gfn) != 0 && test_flag(slot, clear) {
                            dirty |= bit_of(gfn);
                        }
                    }
                } else {
                    self.rmap
                        .each_in(&self.memory, Level::Page, part, &mut |gfn, location| {
                            if left & bit_of(gfn) != 0
                                && !self.in_nested(location)
                                && test_flag(location.slot(&self.memory), clear)
                            {
                                dirty |= bit_of(gfn);
                            }
                        });
                }
                left &= !part.iter().fold(0, |bits, gfn| bits | bit_of(gfn));
            }
        }
        dirty
    }
}

/// From how many pages of a word on its part of the reverse map is read as a whole.
const DENSE: u32 = 16;

/// The bit of a page in its word.
const fn bit_of(gfn: Gfn) -> u64 {
    1 << (gfn.index() % WORD)
}

/// The pages from the first to the last set bit of a word.
fn span_of(word: usize, bits: u64) -> GfnRange {
    let first = word as u64 * WORD;
    let low = u64::from(bits.trailing_zeros());
    let high = WORD - u64::from(bits.leading_zeros());
    GfnRange::new(Gfn::new(first + low), Gfn::new(first + high))
}

/// Whether a logged leaf has its dirty flag set; clears it if told to.
fn test_flag(slot: &AtomicU64, clear: bool) -> bool {
    loop {
        let old = settled(slot);
        if !old.is_logged() || !old.dirty() {
            return false;
        }
        if !clear || replace(slot, old, old.with_dirty(false)) {
            return true;
        }
    }
}
