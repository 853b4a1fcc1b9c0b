//! The cells of the reverse map's chains: two words each, in frames of the hypervisor.
//!
//! A cell is free (in a list under a short lock), part of a chain, or retired: removed from its
//! chain, possibly still accessed by readers. After an RCU synchronization it is free again. Frames
//! are kept for later chains until the guest is dropped.

use crate::address::{ENTRIES, FRAME_SHIFT, HostFrame, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::host_memory::{FrameAccess, HostMemory};
use crate::rmap::NoMemory;
use crate::spinlock::SpinLock;

/// Size of a cell in bytes.
pub(super) const CELL_BYTES: u64 = 16;
/// Number of cells in a frame.
const CELLS: u64 = ENTRIES as u64 / 2;
/// Set in the first word of a retired cell; never set in a cell that is part of a chain.
pub(super) const RETIRED: u64 = 1;

/// A cell: the host-physical address of its first byte. Zero means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(pub(super) u64);

impl Cell {
    fn word<M: FrameAccess + ?Sized>(self, memory: &M, number: usize) -> &AtomicU64 {
        let index = usize_from((self.0 & ((1 << FRAME_SHIFT) - 1)) >> 3);
        &memory.table(HostFrame::containing(self.0))[index + number]
    }

    /// The location; in a free or retired cell, the link to the next one.
    pub(super) fn first<M: FrameAccess + ?Sized>(self, memory: &M) -> &AtomicU64 {
        self.word(memory, 0)
    }

    /// The rest of the chain: the value that the frame's word would have without this cell.
    pub(super) fn rest<M: FrameAccess + ?Sized>(self, memory: &M) -> &AtomicU64 {
        self.word(memory, 1)
    }
}

/// Cells that are reserved for the caller, linked through their first words.
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

/// Retired cells, to be freed after an RCU synchronization.
#[derive(Debug)]
pub(crate) struct RetiredCells(u64);

impl RetiredCells {
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == 0
    }
}

/// The free cells, and the list of the frames that contain cells.
#[derive(Debug, Default)]
struct CellPool {
    free: ReservedCells,
    /// The last page of the frame list: word 0 links to the previous page, the others are frames of
    /// cells.
    frame_list: u64,
    /// Number of words in use in that page.
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
    /// Held for a few instructions, never during a call of the allocator.
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

    /// Returns a free cell.
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
            let added = self.add_frame(memory, frame, &mut page);
            // Other threads may have changed the list meanwhile, so the page may be unnecessary or
            // missing.
            if let Some(page) = page {
                memory.release(page);
            }
            if !added {
                memory.release(frame);
            }
        }
    }

    /// Adds a frame to the frame list and frees its cells. Returns false if that needs a page and
    /// there is none.
    fn add_frame<M: HostMemory>(
        &self,
        memory: &M,
        frame: HostFrame,
        page: &mut Option<HostFrame>,
    ) -> bool {
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
        let place = &memory.table(HostFrame::containing(pool.frame_list))[pool.used];
        place.store(frame.address(), Ordering::Relaxed);
        pool.used += 1;
        pool.frames += 1;
        for number in 0..CELLS {
            pool.free
                .push(memory, Cell(frame.address() + number * CELL_BYTES));
        }
        true
    }

    /// Frees cells that no reader has seen.
    pub(super) fn give_back<M: HostMemory>(&self, memory: &M, mut spare: ReservedCells) {
        if spare.top == 0 {
            return;
        }
        let mut pool = self.pool.lock();
        while let Some(cell) = spare.pop(memory) {
            pool.free.push(memory, cell);
        }
    }

    /// Retires a cell that is not part of a chain any more but may still be accessed by readers.
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

    /// Removes all retired cells from the list, for [`CellAllocator::free`] after an RCU
    /// synchronization.
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

    /// Returns the number of frames in use for cells and for the frame list.
    pub(super) fn frames(&self) -> u64 {
        self.pool.lock().frames
    }

    /// Releases all frames. No thread uses the chains any more.
    pub(super) fn release<M: HostMemory>(&self, memory: &M) {
        let mut pool = self.pool.lock();
        while pool.frame_list != 0 {
            let page = HostFrame::containing(pool.frame_list);
            let words = memory.table(page);
            for word in &words[1..pool.used] {
                memory.release(HostFrame::containing(word.load(Ordering::Relaxed)));
            }
            pool.frame_list = words[0].load(Ordering::Relaxed);
            pool.used = ENTRIES;
            memory.release(page);
        }
        *pool = CellPool::default();
    }
}
