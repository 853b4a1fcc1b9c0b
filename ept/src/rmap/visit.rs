//! Reading the reverse map: visiting the leaves that map a frame or a range.

use super::cells::{Cell, RETIRED};
use super::{CHAIN, Head, LOCKED, Location, Rmap};
use crate::address::{ENTRIES, Gfn, GfnRange, HostFrame, Level, usize_from};
use crate::atomic::{AtomicU64, Ordering, cpu_relax, loom_yield};
use crate::host_memory::HostMemory;

impl Rmap {
    /// Returns the word of the frame.
    pub(crate) fn head<M: HostMemory>(&self, memory: &M, level: Level, gfn: Gfn) -> Head {
        let word = self.word(memory, level, gfn);
        word.map_or(Head::NONE, |word| Head(word.load(Ordering::Acquire)))
    }

    /// Whether the location is one of the frame's. The answer stays valid while the caller keeps
    /// the entry frozen.
    pub(crate) fn contains<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        location: Location,
    ) -> bool {
        let mut found = false;
        self.for_each(memory, level, gfn, &mut |other| found |= other == location);
        found
    }

    /// Calls `visit` for each location of the frame (of the group of frames, at larger levels). A
    /// location can be visited twice if another thread changes the chain meanwhile.
    ///
    /// The caller holds an RCU read guard, so no table that is found here is freed meanwhile. The
    /// entry may be frozen or change; an entry of a nested view may map another frame.
    pub(crate) fn for_each<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        visit: &mut dyn FnMut(Location),
    ) {
        if let Some(word) = self.word(memory, level, gfn) {
            Self::visit_word(memory, word, visit);
        }
    }

    fn visit_word<M: HostMemory>(memory: &M, word: &AtomicU64, visit: &mut dyn FnMut(Location)) {
        'again: loop {
            let mut at = word.load(Ordering::Acquire);
            while at & CHAIN != 0 {
                loom_yield();
                let cell = Cell(at & !(CHAIN | LOCKED));
                let first = cell.first(memory).load(Ordering::Acquire);
                if first & RETIRED != 0 {
                    cpu_relax();
                    continue 'again;
                }
                if Location(first).is_nested() {
                    loom_yield();
                }
                visit(Location(first));
                at = cell.rest(memory).load(Ordering::Acquire);
            }
            if at != 0 {
                if Location(at).is_nested() {
                    loom_yield();
                }
                visit(Location(at));
            }
            return;
        }
    }

    /// Calls `visit` for each location at `level` of each frame in `range`, in ascending order.
    /// Reads one word for each possible leaf, and none where nothing was ever mapped at this level.
    pub(crate) fn for_each_in<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        range: GfnRange,
        visit: &mut dyn FnMut(Gfn, Location),
    ) {
        if range.is_empty() {
            return;
        }
        let words =
            range.start().index() / level.pages()..range.end().index().div_ceil(level.pages());
        let mut at = words.start;
        while at < words.end {
            let stop = ((at / ENTRIES as u64 + 1) * ENTRIES as u64).min(words.end);
            let Some(frame) = self.directory(level).get(usize_from(at) / ENTRIES) else {
                return;
            };
            let frame = frame.load(Ordering::Acquire);
            if frame != 0 {
                let table = memory.table(HostFrame::containing(frame));
                for number in at..stop {
                    let word = &table[usize_from(number) % ENTRIES];
                    // Acquire: a thread that finds no location here also sees what was done before
                    // the location was removed.
                    if word.load(Ordering::Acquire) != 0 {
                        let gfn = Gfn::new(number * level.pages());
                        Self::visit_word(memory, word, &mut |location| visit(gfn, location));
                    }
                }
            }
            at = stop;
        }
    }
}
