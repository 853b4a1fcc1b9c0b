//! The reverse map: from a guest frame to every leaf that maps it, `rmap[level][gfn]`.
//!
//! One word a frame and level. No mapping: zero. One mapping, as nearly always: the host-physical
//! address of the entry, a multiple of eight. Several (views, nested guests): an odd number that leads
//! to a chain of cells. The words lie in frames of the hypervisor's, taken when a range is first mapped.
//!
//! # Memory
//!
//! 8 bytes a guest frame in 4 KiB leaves, 8 bytes a superpage, and 8 bytes in 2 MiB for the directory:
//! 0.196 % of the memory of a guest that is mapped once. A cell has 16 bytes, and a chain of *n* mappings
//! *n* - 1 cells: each further mapping of a frame costs 16 bytes, 0.39 % of what is mapped a second time
//! by 4 KiB leaves, 0.0008 % by 2 MiB leaves. So up to 1 frame in 100 may be mapped twice within 0.2 %.
//!
//! # Rules
//!
//! Invariant, on which all visitors rely: while a location is in the word of a guest frame, its entry is
//! either busy or the leaf that maps that frame. Mappers mark the entry busy, add the location, and only
//! then write the leaf; unmappers mark it busy, remove the location, and only then free the entry. The
//! other way round: whoever holds an entry busy and finds its location here knows what the entry maps.
//!
//! Readers hold no lock. A location is added in front, by one exchange of the frame's word. Whoever
//! removes from a chain holds a bit of that word, so that no two change one chain; the cell taken out is
//! marked as retired, and a reader that comes upon one begins again at the word. Nothing is freed under
//! readers ([`Rcu`](crate::rcu::Rcu)).

mod cells;
mod location;
mod visit;

use alloc::boxed::Box;

use cells::{Cell, CellAllocator};
pub(crate) use cells::{ReservedCells, RetiredCells};
pub(crate) use location::Location;

use crate::address::{ENTRIES, Frame, Gfn, Level, usize_from};
use crate::atomic::{AtomicU64, Ordering, cpu_relax};
use crate::bitmap::zeroed_words;
use crate::host_memory::HostMemory;

/// No memory was left for the reverse map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Set in a word that leads to a chain.
const CHAIN: u64 = 1;
/// Set in such a word while somebody takes a cell out.
const LOCKED: u64 = 1 << 2;

/// A word of the reverse map as it was read: no location, one, or a chain of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head(u64);

impl Head {
    pub(crate) const NONE: Self = Self(0);

    /// The location, if there is just one.
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
    /// For each level: the frames that hold the words, 0 where there is none yet.
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

    /// The word of the frame or group of frames, if its frame of words is there.
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
        (frame != 0).then(|| &memory.table(Frame::containing(frame))[number % ENTRIES])
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
                    memory.release(frame); // somebody was faster; nobody has seen ours
                    Frame::containing(other)
                }
            };
        Ok(&memory.table(frame)[number % ENTRIES])
    }

    /// Sees to it that adding locations for the leaves of one table, whose first maps `gfn`, needs no more
    /// frames: unless others map the same guest frames meanwhile, the cells returned suffice.
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

    /// Takes back what was reserved and not needed.
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

    /// Adds a location, with one of the cells of `spare` if it needs one and there is one.
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

    /// Removes a location that was added. Needs no memory.
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

    /// Takes a location out of a chain that nobody else changes: the new word, and the cell that is in
    /// the chain no more.
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

    /// Takes the cells that chains have lost, for [`Rmap::free_cells`] after a wait for everybody inside.
    pub(crate) fn take_retired(&self) -> RetiredCells {
        self.cells.take_retired()
    }

    pub(crate) fn free_cells<M: HostMemory>(&self, memory: &M, cells: RetiredCells) {
        self.cells.free(memory, cells);
    }

    /// Frames in use for words.
    pub(crate) fn frames(&self) -> u64 {
        let used = |word: &&AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.levels
            .iter()
            .map(|level| level.iter().filter(used).count() as u64)
            .sum()
    }

    /// Frames in use for chains.
    pub(crate) fn chain_frames(&self) -> u64 {
        self.cells.frames()
    }

    /// Bytes in use beside those frames.
    pub(crate) fn directory_bytes(&self) -> u64 {
        self.levels
            .iter()
            .map(|level| size_of_val(&**level) as u64)
            .sum()
    }

    /// Gives all frames back. Nobody uses the map any more.
    pub(crate) fn release<M: HostMemory>(&mut self, memory: &M) {
        for word in self.levels.iter().flat_map(|level| level.iter()) {
            let frame = word.swap(0, Ordering::AcqRel);
            if frame != 0 {
                memory.release(Frame::containing(frame));
            }
        }
        self.cells.release(memory);
    }
}

#[cfg(test)]
mod tests;
