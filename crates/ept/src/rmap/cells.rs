//! The cells that chains are made of: two words each, in frames of the hypervisor's.
//!
//! A cell goes round: free (in a list under a short lock), part of a chain, retired (taken out of its
//! chain, with readers possibly still on it), and free again once everybody who was inside the tables
//! when it was retired has left. Frames stay until the guest ends, for later chains.

use crate::address::{ENTRIES, FRAME_SHIFT, Frame, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::host_memory::{FrameAccess, HostMemory};
use crate::rmap::NoMemory;
use crate::spinlock::SpinLock;

/// Bytes of a cell.
pub(super) const CELL_BYTES: u64 = 16;
/// CellAllocator of a frame.
const CELLS: u64 = ENTRIES as u64 / 2;
/// In the first word of a retired cell; never in that of a cell in a chain.
pub(super) const RETIRED: u64 = 1;

/// A cell, by the host-physical address of its first byte. Zero is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(pub(super) u64);

impl Cell {
    fn word<M: FrameAccess + ?Sized>(self, memory: &M, number: usize) -> &AtomicU64 {
        let index = usize_from((self.0 & ((1 << FRAME_SHIFT) - 1)) >> 3);
        &memory.table(Frame::containing(self.0))[index + number]
    }

    /// The location; of a free or retired cell the link to the next such.
    pub(super) fn first<M: FrameAccess + ?Sized>(self, memory: &M) -> &AtomicU64 {
        self.word(memory, 0)
    }

    /// The rest of the chain: what a frame's word would hold without this cell.
    pub(super) fn rest<M: FrameAccess + ?Sized>(self, memory: &M) -> &AtomicU64 {
        self.word(memory, 1)
    }
}

/// CellAllocator that belong to the caller, linked through their first words.
#[derive(Debug, Default)]
pub(crate) struct ReservedCells {
    top: u64,
}

impl ReservedCells {
    pub(super) fn push<M: FrameAccess + ?Sized>(&mut self, memory: &M, cell: Cell) {
        cell.first(memory).store(self.top, Ordering::Relaxed);
        self.top = cell.0;
    }

    pub(super) fn pop<M: FrameAccess + ?Sized>(&mut self, memory: &M) -> Option<Cell> {
        if self.top == 0 {
            return None;
        }
        let cell = Cell(self.top);
        self.top = cell.first(memory).load(Ordering::Relaxed);
        Some(cell)
    }
}

/// Retired cells, taken to be freed after a wait.
#[derive(Debug)]
pub(crate) struct RetiredCells(u64);

impl RetiredCells {
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

/// The free cells, and the book of frames that cells lie in.
#[derive(Debug, Default)]
struct CellPool {
    free: ReservedCells,
    /// The last page of the book: word 0 leads to the page before, the others to frames of cells.
    frame_list: u64,
    /// Words of that page in use.
    used: usize,
    frames: u64,
}

impl CellPool {
    fn frame_list_is_full(&self) -> bool {
        self.frame_list == 0 || self.used == ENTRIES
    }
}

#[derive(Debug)]
pub(crate) struct CellAllocator {
    /// Held for a few instructions, never while the allocator runs.
    pool: SpinLock<CellPool>,
    retired: AtomicU64,
}

impl CellAllocator {
    pub(super) fn new() -> Self {
        Self {
            pool: SpinLock::new(CellPool::default()),
            retired: AtomicU64::new(0),
        }
    }

    /// A free cell.
    pub(super) fn get<M: HostMemory>(&self, memory: &M) -> Result<Cell, NoMemory> {
        loop {
            let frame_list_is_full = {
                let mut pool = self.pool.lock();
                if let Some(cell) = pool.free.pop(memory) {
                    return Ok(cell);
                }
                pool.frame_list_is_full()
            };
            let frame = memory.allocate().ok_or(NoMemory)?;
            let mut page = None;
            if frame_list_is_full {
                page = memory.allocate();
                if page.is_none() {
                    memory.release(frame);
                    return Err(NoMemory);
                }
            }
            let entered = self.enter(memory, frame, &mut page);
            // Others may have been here meanwhile: no page was needed, or one was.
            if let Some(page) = page {
                memory.release(page);
            }
            if !entered {
                memory.release(frame);
            }
        }
    }

    /// Enters a frame into the book, and frees its cells. False if that needs a page and there is none.
    fn enter<M: HostMemory>(&self, memory: &M, frame: Frame, page: &mut Option<Frame>) -> bool {
        let mut pool = self.pool.lock();
        if pool.frame_list_is_full() {
            let Some(page) = page.take() else {
                return false;
            };
            memory.table(page)[0].store(pool.frame_list, Ordering::Relaxed);
            pool.frame_list = page.address();
            pool.used = 1;
            pool.frames += 1;
        }
        let place = &memory.table(Frame::containing(pool.frame_list))[pool.used];
        place.store(frame.address(), Ordering::Relaxed);
        pool.used += 1;
        pool.frames += 1;
        for number in 0..CELLS {
            pool.free
                .push(memory, Cell(frame.address() + number * CELL_BYTES));
        }
        true
    }

    /// Takes back cells that nobody has seen.
    pub(super) fn give_back<M: HostMemory>(&self, memory: &M, mut spare: ReservedCells) {
        if spare.top == 0 {
            return;
        }
        let mut pool = self.pool.lock();
        while let Some(cell) = spare.pop(memory) {
            pool.free.push(memory, cell);
        }
    }

    /// Takes a cell that is in no chain any more, and that readers may still be on.
    pub(super) fn retire<M: HostMemory>(&self, memory: &M, cell: Cell) {
        let mut top = self.retired.load(Ordering::Relaxed);
        loop {
            cell.first(memory).store(top | RETIRED, Ordering::Release);
            match self
                .retired
                .compare_exchange(top, cell.0, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(other) => top = other,
            }
        }
    }

    /// Takes all retired cells, for [`CellAllocator::free`] after a wait for everybody inside.
    pub(super) fn take_retired(&self) -> RetiredCells {
        if self.retired.load(Ordering::Relaxed) == 0 {
            return RetiredCells(0);
        }
        RetiredCells(self.retired.swap(0, Ordering::AcqRel))
    }

    pub(super) fn free<M: HostMemory>(&self, memory: &M, cells: RetiredCells) {
        let mut spare = ReservedCells::default();
        let mut next = cells.0;
        while next != 0 {
            let cell = Cell(next);
            next = cell.first(memory).load(Ordering::Acquire) & !RETIRED;
            spare.push(memory, cell);
        }
        self.give_back(memory, spare);
    }

    /// Frames in use for cells and their book.
    pub(super) fn frames(&self) -> u64 {
        self.pool.lock().frames
    }

    /// Gives all frames back. Nobody uses the chains any more.
    pub(super) fn release<M: HostMemory>(&self, memory: &M) {
        let mut pool = self.pool.lock();
        while pool.frame_list != 0 {
            let page = Frame::containing(pool.frame_list);
            let words = memory.table(page);
            for word in &words[1..pool.used] {
                memory.release(Frame::containing(word.load(Ordering::Relaxed)));
            }
            pool.frame_list = words[0].load(Ordering::Relaxed);
            pool.used = ENTRIES;
            memory.release(page);
        }
        *pool = CellPool::default();
    }
}
