//! The reverse map: from a guest frame to every leaf that maps it, `rmap[level][gfn]`.
//!
//! There is one word for each guest frame and level. Zero means no mapping. With one mapping, the
//! usual case, the word is the host-physical address of the entry, a multiple of eight. With
//! several mappings (views, nested guests) it is an odd number that refers to a chain of cells. The
//! words are in frames of the hypervisor, which are allocated when a range is first mapped.
//!
//! # Memory
//!
//! The map uses 8 bytes for each guest frame in 4 KiB leaves, 8 bytes for each superpage, and 8
//! bytes for each 2 MiB for the directory: 0.196 % of the memory of a guest that is mapped once. A
//! cell has 16 bytes, and a chain of *n* mappings has *n* - 1 cells. So each further mapping of a
//! frame costs 16 bytes: 0.39 % of the memory that is mapped a second time with 4 KiB leaves,
//! 0.0008 % with 2 MiB leaves. Up to 1 frame in 100 can be mapped twice within a total of 0.2 %.
//!
//! # Rules
//!
//! Invariant: while a location is in the word of a guest frame, its entry is either frozen or the
//! leaf that maps that frame. To map, a thread freezes the entry, adds the location, and then
//! writes the leaf. To unmap, it freezes the entry, removes the location, and then clears the
//! entry. Conversely, a thread that has frozen an entry and finds its location here knows what the
//! entry maps.
//!
//! Readers take no lock. A location is added at the front, with one exchange of the frame's word.
//! To remove a location from a chain, a thread sets a lock bit in that word, so that no two threads
//! change the same chain. The removed cell is marked as retired; a reader that reaches a retired
//! cell restarts at the word. Cells are not freed while readers can access them
//! ([`Rcu`](crate::rcu::Rcu)).

mod cells;
mod location;
mod visit;

use alloc::boxed::Box;

use cells::{Cell, CellAllocator};
pub(crate) use cells::{ReservedCells, RetiredCells};
pub(crate) use location::Location;

use crate::address::{ENTRIES, Gfn, HostFrame, Level, usize_from};
use crate::atomic::{AtomicU64, Ordering, cpu_relax};
use crate::bitmap::zeroed_words;
use crate::host_memory::HostMemory;

/// There is not enough memory for the reverse map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Set in a word that refers to a chain.
const CHAIN: u64 = 1;
/// Set in such a word while a thread removes a cell.
const LOCKED: u64 = 1 << 2;

/// The value of a word of the reverse map: no location, one location, or a chain of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head(u64);

impl Head {
    pub(crate) const NONE: Self = Self(0);

    /// Returns the location if there is exactly one.
    pub(crate) const fn single(self) -> Option<Location> {
        if self.0 & CHAIN == 0 && self.0 != 0 {
            Some(Location(self.0))
        } else {
            None
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rmap {
    /// For each level, the frames that hold the words; 0 if not allocated yet.
    levels: [Box<[AtomicU64]>; 3],
    cells: CellAllocator,
}

impl Rmap {
    pub(crate) fn new(pages: u64) -> Option<Self> {
        let directory =
            |level: Level| zeroed_words(pages.div_ceil(level.pages()).div_ceil(ENTRIES as u64));
        Some(Self {
            levels: [
                directory(Level::Size4K)?,
                directory(Level::Size2M)?,
                directory(Level::Size1G)?,
            ],
            cells: CellAllocator::new(),
        })
    }

    fn directory(&self, level: Level) -> &[AtomicU64] {
        &self.levels[level as usize - 1]
    }

    /// Returns the word of the frame (of the group of frames, at larger levels) if its frame of
    /// words is allocated.
    fn word<'m, M: HostMemory>(
        &self,
        memory: &'m M,
        level: Level,
        gfn: Gfn,
    ) -> Option<&'m AtomicU64> {
        let number = usize_from(gfn.index() / level.pages());
        let frame = self
            .directory(level)
            .get(number / ENTRIES)?
            .load(Ordering::Acquire);
        (frame != 0).then(|| &memory.table(HostFrame::containing(frame))[number % ENTRIES])
    }

    fn word_or_new<'m, M: HostMemory>(
        &self,
        memory: &'m M,
        level: Level,
        gfn: Gfn,
    ) -> Result<&'m AtomicU64, NoMemory> {
        if let Some(word) = self.word(memory, level, gfn) {
            return Ok(word);
        }
        let number = usize_from(gfn.index() / level.pages());
        let place = self
            .directory(level)
            .get(number / ENTRIES)
            .ok_or(NoMemory)?;
        let frame = memory.allocate().ok_or(NoMemory)?;
        let frame =
            match place.compare_exchange(0, frame.address(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => frame,
                Err(other) => {
                    memory.release(frame); // another thread was faster; no thread has seen ours
                    HostFrame::containing(other)
                }
            };
        Ok(&memory.table(frame)[number % ENTRIES])
    }

    /// Reserves memory to add locations for the leaves of one table, the first of which maps `gfn`.
    /// The returned cells suffice unless other threads map the same guest frames meanwhile.
    pub(crate) fn reserve<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
    ) -> Result<ReservedCells, NoMemory> {
        let mut spare = ReservedCells::default();
        for index in 0..ENTRIES {
            let word = self.word_or_new(memory, level, gfn.plus(index as u64 * level.pages()))?;
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            match self.cells.get(memory) {
                Ok(cell) => spare.push(memory, cell),
                Err(NoMemory) => {
                    self.cells.give_back(memory, spare);
                    return Err(NoMemory);
                }
            }
        }
        Ok(spare)
    }

    /// Frees cells that were reserved and not used.
    pub(crate) fn give_back<M: HostMemory>(&self, memory: &M, spare: ReservedCells) {
        self.cells.give_back(memory, spare);
    }

    /// Adds a location.
    pub(crate) fn add<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        location: Location,
    ) -> Result<(), NoMemory> {
        let mut spare = ReservedCells::default();
        let added = self.add_with(memory, level, gfn, location, &mut spare);
        self.give_back(memory, spare);
        added
    }

    /// Adds a location. If it needs a cell, takes one from `spare` if there is one.
    pub(crate) fn add_with<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        location: Location,
        spare: &mut ReservedCells,
    ) -> Result<(), NoMemory> {
        let word = self.word_or_new(memory, level, gfn)?;
        loop {
            let old = word.load(Ordering::Acquire);
            if old & LOCKED != 0 && old & CHAIN != 0 {
                cpu_relax();
            } else if old == 0 {
                let added =
                    word.compare_exchange(0, location.0, Ordering::AcqRel, Ordering::Relaxed);
                if added.is_ok() {
                    return Ok(());
                }
            } else {
                let cell = match spare.pop(memory) {
                    Some(cell) => cell,
                    None => self.cells.get(memory)?,
                };
                cell.first(memory).store(location.0, Ordering::Release);
                cell.rest(memory).store(old, Ordering::Release);
                let new = cell.0 | CHAIN;
                let added = word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
                if added.is_ok() {
                    return Ok(());
                }
                spare.push(memory, cell);
            }
        }
    }

    /// Removes a location. Needs no memory.
    pub(crate) fn remove<M: HostMemory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        location: Location,
    ) {
        let Some(word) = self.word(memory, level, gfn) else {
            return;
        };
        loop {
            let old = word.load(Ordering::Acquire);
            if old & CHAIN == 0 {
                if old != location.0 {
                    return;
                }
                let removed = word.compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed);
                if removed.is_ok() {
                    return;
                }
            } else if old & LOCKED == 0 {
                let locked =
                    word.compare_exchange(old, old | LOCKED, Ordering::AcqRel, Ordering::Relaxed);
                if locked.is_ok() {
                    let (new, gone) = Self::unlink(memory, old, location);
                    word.store(new, Ordering::Release);
                    if let Some(cell) = gone {
                        self.cells.retire(memory, cell);
                    }
                    return;
                }
            } else {
                cpu_relax();
            }
        }
    }

    /// Removes a location from a chain that no other thread changes. Returns the new word and the
    /// removed cell.
    fn unlink<M: HostMemory>(memory: &M, head: u64, location: Location) -> (u64, Option<Cell>) {
        let mut link: Option<&AtomicU64> = None;
        let mut at = head;
        while at & CHAIN != 0 {
            let cell = Cell(at & !CHAIN);
            let first = cell.first(memory).load(Ordering::Acquire);
            let rest = cell.rest(memory).load(Ordering::Acquire);
            let left = if first == location.0 {
                rest
            } else if rest == location.0 {
                first // the last location needs no cell of its own
            } else {
                link = Some(cell.rest(memory));
                at = rest;
                continue;
            };
            return match link {
                None => (left, Some(cell)),
                Some(link) => {
                    link.store(left, Ordering::Release);
                    (head, Some(cell))
                }
            };
        }
        (head, None)
    }

    /// Removes the retired cells from their list, for [`Rmap::free_cells`] after an RCU
    /// synchronization.
    pub(crate) fn take_retired(&self) -> RetiredCells {
        self.cells.take_retired()
    }

    pub(crate) fn free_cells<M: HostMemory>(&self, memory: &M, cells: RetiredCells) {
        self.cells.free(memory, cells);
    }

    /// Returns the number of frames in use for words.
    pub(crate) fn frames(&self) -> u64 {
        let used = |word: &&AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.levels
            .iter()
            .map(|level| level.iter().filter(used).count() as u64)
            .sum()
    }

    /// Returns the number of frames in use for chains.
    pub(crate) fn chain_frames(&self) -> u64 {
        self.cells.frames()
    }

    /// Returns the size of the directory in bytes.
    pub(crate) fn directory_bytes(&self) -> u64 {
        self.levels
            .iter()
            .map(|level| size_of_val(&**level) as u64)
            .sum()
    }

    /// Releases all frames. No thread uses the map any more.
    pub(crate) fn release<M: HostMemory>(&mut self, memory: &M) {
        for word in self.levels.iter().flat_map(|level| level.iter()) {
            let frame = word.swap(0, Ordering::AcqRel);
            if frame != 0 {
                memory.release(HostFrame::containing(frame));
            }
        }
        self.cells.release(memory);
    }
}

#[cfg(test)]
mod tests;
