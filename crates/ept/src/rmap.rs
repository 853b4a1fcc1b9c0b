//! The reverse map: from a guest frame to every leaf that maps it, `rmap[level][gfn]`.
//!
//! One word a frame and level. No mapping: zero. One mapping, as nearly always: the host-physical
//! address of the entry, a multiple of eight. Several (views, nested guests): an odd number that leads
//! to a chain. The words lie in frames of the hypervisor's, taken when a range is first mapped: 8 bytes
//! of 4096 at the lowest level, 0.196 % of guest memory with everything else.
//!
//! Invariant, on which all visitors rely: while a location is in the word of a guest frame, its entry is
//! either busy or the leaf that maps that frame. Mappers mark the entry busy, add the location, and only
//! then write the leaf; unmappers mark it busy, remove the location, and only then free the entry.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::address::{ENTRIES, FRAME_SHIFT, Frame, Gfn, GfnRange, Level, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::bits::zeroes;
use crate::memory::{FrameReach, Memory};
use crate::spin::SpinLock;

/// Where an entry lies: the host-physical address of its eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location(u64);

impl Location {
    pub(crate) const fn new(table: Frame, index: usize) -> Self {
        Self(table.address() | (index as u64) << 3)
    }

    pub(crate) const fn table(self) -> Frame {
        Frame::containing(self.0)
    }

    pub(crate) const fn index(self) -> usize {
        usize_from((self.0 & ((1 << FRAME_SHIFT) - 1)) >> 3)
    }

    pub(crate) fn slot<M: FrameReach + ?Sized>(self, memory: &M) -> &AtomicU64 {
        &memory.table(self.table())[self.index()]
    }
}

/// No memory was left for the reverse map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Locks for the chains; a frame's is found by its number.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Set in a word that leads to a chain.
const CHAIN: u64 = 1;

/// The chains of one shard.
#[derive(Debug, Default)]
struct Chains {
    chains: Vec<Vec<Location>>,
    unused: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Rmap {
    /// For each level: the frames that hold the words, 0 where there is none yet.
    levels: [Box<[AtomicU64]>; 3],
    chains: Box<[SpinLock<Chains>]>,
}

impl Rmap {
    pub(crate) fn new(pages: u64) -> Option<Self> {
        let directory =
            |level: Level| zeroes(pages.div_ceil(level.pages()).div_ceil(ENTRIES as u64));
        Some(Self {
            levels: [
                directory(Level::Page)?,
                directory(Level::Large)?,
                directory(Level::Huge)?,
            ],
            chains: (0..SHARDS)
                .map(|_| SpinLock::new(Chains::default()))
                .collect(),
        })
    }

    fn directory(&self, level: Level) -> &[AtomicU64] {
        &self.levels[level as usize - 1]
    }

    /// The word of the frame or group of frames, if its frame of words is there.
    fn word<'m, M: Memory>(&self, memory: &'m M, level: Level, gfn: Gfn) -> Option<&'m AtomicU64> {
        let number = usize_from(gfn.index() / level.pages());
        let frame = self
            .directory(level)
            .get(number / ENTRIES)?
            .load(Ordering::Acquire);
        (frame != 0).then(|| &memory.table(Frame::containing(frame))[number % ENTRIES])
    }

    fn word_or_new<'m, M: Memory>(
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

    fn shard(&self, level: Level, gfn: Gfn) -> &SpinLock<Chains> {
        &self.chains[usize_from(gfn.index() / level.pages()) % SHARDS]
    }

    /// Sees to it that adding locations for the leaves of one table, whose first maps `gfn`, needs no more
    /// frames.
    pub(crate) fn reserve<M: Memory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
    ) -> Result<(), NoMemory> {
        self.word_or_new(memory, level, gfn).map(|_| ())
    }

    /// Adds a location.
    pub(crate) fn add<M: Memory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        location: Location,
    ) -> Result<(), NoMemory> {
        let word = self.word_or_new(memory, level, gfn)?;
        if word
            .compare_exchange(0, location.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return Ok(());
        }
        let mut chains = self.shard(level, gfn).lock();
        loop {
            let old = word.load(Ordering::Acquire);
            if old & CHAIN != 0 {
                // Only changed under the lock that we hold.
                let chain = &mut chains.chains[usize_from(old >> 1)];
                chain.try_reserve(1).map_err(|_| NoMemory)?;
                chain.push(location);
                return Ok(());
            }
            let (new, made) = if old == 0 {
                (location.0, None)
            } else {
                let index = chains.make([Location(old), location])?;
                ((index as u64) << 1 | CHAIN, Some(index))
            };
            if word
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return Ok(());
            }
            // Somebody added or removed the single location without the lock.
            if let Some(index) = made {
                chains.free(index);
            }
        }
    }

    /// Removes a location that was added.
    pub(crate) fn remove<M: Memory>(&self, memory: &M, level: Level, gfn: Gfn, location: Location) {
        let Some(word) = self.word(memory, level, gfn) else {
            return;
        };
        if word
            .compare_exchange(location.0, 0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            return;
        }
        let mut chains = self.shard(level, gfn).lock();
        let old = word.load(Ordering::Acquire);
        if old & CHAIN == 0 {
            // The chain has shrunk to our location since the first try.
            let _ = word.compare_exchange(location.0, 0, Ordering::AcqRel, Ordering::Acquire);
            return;
        }
        let index = usize_from(old >> 1);
        let chain = &mut chains.chains[index];
        chain.retain(|other| *other != location);
        if let [single] = chain[..] {
            // A chain's word is changed under the lock only.
            word.store(single.0, Ordering::Release);
            chains.free(index);
        }
    }

    /// Calls `visit` for each location of the frame (of the group of frames, at larger levels).
    ///
    /// The caller is inside the tables ([`Walkers`](crate::walkers::Walkers)): no table seen here is
    /// freed meanwhile. The entry may be busy, and change.
    pub(crate) fn each<M: Memory>(
        &self,
        memory: &M,
        level: Level,
        gfn: Gfn,
        visit: &mut dyn FnMut(Location),
    ) {
        let Some(word) = self.word(memory, level, gfn) else {
            return;
        };
        self.each_of(word.load(Ordering::Acquire), word, level, gfn, visit);
    }

    fn each_of(
        &self,
        value: u64,
        word: &AtomicU64,
        level: Level,
        gfn: Gfn,
        visit: &mut dyn FnMut(Location),
    ) {
        if value == 0 {
            return;
        }
        if value & CHAIN == 0 {
            visit(Location(value));
            return;
        }
        let copy = {
            let chains = self.shard(level, gfn).lock();
            match word.load(Ordering::Acquire) {
                0 => return,
                single if single & CHAIN == 0 => {
                    drop(chains);
                    visit(Location(single));
                    return;
                }
                chain => chains.chains[usize_from(chain >> 1)].clone(),
            }
        };
        for location in copy {
            visit(location);
        }
    }

    /// Calls `visit` for each location at `level` of each frame in `range`, ascending: one word read a
    /// leaf that could be there, and none where nothing was ever mapped at this level.
    pub(crate) fn each_in<M: Memory>(
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
                let table = memory.table(Frame::containing(frame));
                for number in at..stop {
                    let word = &table[usize_from(number) % ENTRIES];
                    let value = word.load(Ordering::Acquire);
                    if value != 0 {
                        let gfn = Gfn::new(number * level.pages());
                        self.each_of(value, word, level, gfn, &mut |location| {
                            visit(gfn, location)
                        });
                    }
                }
            }
            at = stop;
        }
    }

    /// Frames in use for words.
    pub(crate) fn frames(&self) -> u64 {
        let used = |word: &&AtomicU64| word.load(Ordering::Relaxed) != 0;
        self.levels
            .iter()
            .map(|level| level.iter().filter(used).count() as u64)
            .sum()
    }

    /// Bytes in use beside those frames.
    pub(crate) fn directory_bytes(&self) -> u64 {
        self.levels
            .iter()
            .map(|level| size_of_val(&**level) as u64)
            .sum()
    }

    /// Gives all frames back. Nobody uses the map any more.
    pub(crate) fn release<M: Memory>(&mut self, memory: &M) {
        for word in self.levels.iter().flat_map(|level| level.iter()) {
            let frame = word.swap(0, Ordering::AcqRel);
            if frame != 0 {
                memory.release(Frame::containing(frame));
            }
        }
    }
}

impl Chains {
    fn make(&mut self, locations: [Location; 2]) -> Result<usize, NoMemory> {
        let index = match self.unused.pop() {
            Some(index) => index,
            None => {
                self.chains.try_reserve(1).map_err(|_| NoMemory)?;
                // Room to note every chain as unused, so that freeing never needs memory.
                self.unused
                    .try_reserve(self.chains.len() + 1)
                    .map_err(|_| NoMemory)?;
                self.chains.push(Vec::new());
                self.chains.len() - 1
            }
        };
        let chain = &mut self.chains[index];
        chain.clear();
        if chain.try_reserve(locations.len()).is_err() {
            self.unused.push(index);
            return Err(NoMemory);
        }
        chain.extend(locations);
        Ok(index)
    }

    fn free(&mut self, index: usize) {
        self.chains[index] = Vec::new();
        self.unused.push(index);
    }
}
