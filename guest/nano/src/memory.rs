//! The workload's memory: pages, and what each should contain.

use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use core::slice;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use hikkoshi_checked_pages::page::{PAGE_SIZE, Words};

/// Where it begins, behind the kernel (link.ld).
const START: usize = 4 << 20;
/// No memory is used from here on: devices' registers follow.
const MAPPED: u64 = 3 << 30;

/// Where the memory begins that has been reserved: it is taken from the end.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// The end of the workload's pages and their numbers.
static REGION_END: AtomicUsize = AtomicUsize::new(START);

/// How the pages are divided between the workers.
#[derive(Clone, Copy, Debug)]
pub enum Division {
    /// In turn.
    Interleaved,
    /// In contiguous parts.
    Contiguous,
}

/// A worker's pages, and one number for each.
#[derive(Debug)]
pub struct Part {
    /// The number of the first.
    first: usize,
    /// From one page to the next.
    step: usize,
    /// The expected generation of each.
    expected: &'static mut [u32],
}

/// All pages of the region, which several workers read.
#[derive(Debug)]
pub struct Region {
    pages: usize,
}

/// Keeps memory for so many pages of the workload; whether the machine has it. What
/// [`reserve`] takes is between these and the end.
pub fn initialize(pages: usize, memory_end: u64) -> bool {
    let memory_end = usize::try_from(memory_end.min(MAPPED)).unwrap_or(0);
    let end = START + pages * (PAGE_SIZE + size_of::<u32>());
    RESERVED.store(memory_end / PAGE_SIZE * PAGE_SIZE, Relaxed);
    REGION_END.store(end, Relaxed);
    end <= memory_end
}

/// Reserves memory for good, with any content. It begins at a page, or, if it is less than one, at
/// a multiple of its size.
pub fn reserve(bytes: usize) -> Option<usize> {
    let alignment = bytes.next_power_of_two().clamp(64, PAGE_SIZE);
    let region_end = REGION_END.load(Relaxed);
    let lower = |begin: usize| {
        let address = begin.checked_sub(bytes)? / alignment * alignment;
        (address >= region_end).then_some(address)
    };
    let before = RESERVED.fetch_update(AcqRel, Relaxed, lower).ok()?;
    lower(before)
}

/// Reserves memory for good, filled with zeros.
pub fn reserve_zeroed(bytes: usize) -> Option<usize> {
    let address = reserve(bytes)?;
    // SAFETY: reserved, so nothing else uses it.
    unsafe { with_exposed_provenance_mut::<u8>(address).write_bytes(0, bytes) };
    Some(address)
}

impl Region {
    /// The region.
    ///
    /// # Safety
    /// There must be room for `pages`, and nobody writes to them any more when the first is read.
    pub unsafe fn new(pages: usize) -> Self {
        Self { pages }
    }

    /// How many pages.
    pub fn len(&self) -> usize {
        self.pages
    }

    /// The address of a page, which is also the physical one.
    pub fn address(&self, number: usize) -> usize {
        assert!(number < self.pages);
        START + number * PAGE_SIZE
    }

    /// A page.
    pub fn page(&self, number: usize) -> &Words {
        // SAFETY: a page of the region, which nobody writes to; any bytes are words.
        unsafe { &*with_exposed_provenance(self.address(number)) }
    }
}

impl Part {
    /// The part of worker `number` of `workers`.
    ///
    /// # Safety
    /// There must be room for `pages`, and each part must be taken once only, of one division.
    pub unsafe fn take(pages: usize, division: Division, number: usize, workers: usize) -> Self {
        let start = |number: usize| pages * number / workers;
        let (first, step, count, numbers) = match division {
            Division::Interleaved => {
                let count = |number: usize| (pages - number).div_ceil(workers);
                let before = (0..number).map(count).sum();
                (number, workers, count(number), before)
            }
            Division::Contiguous => {
                let first = start(number);
                (first, 1, start(number + 1) - first, first)
            }
        };
        let numbers = START + pages * PAGE_SIZE + numbers * size_of::<u32>();
        // SAFETY: the range is mapped memory that nothing else uses: it is behind the kernel and
        // the pages, before the end of the memory, and taken once. Any bytes are numbers.
        let expected =
            unsafe { slice::from_raw_parts_mut(with_exposed_provenance_mut(numbers), count) };
        expected.fill(0);
        Self {
            first,
            step,
            expected,
        }
    }

    /// How many pages.
    pub fn len(&self) -> usize {
        self.expected.len()
    }

    /// The number, in the region, of a page of this part.
    pub fn number(&self, index: usize) -> usize {
        self.first + index * self.step
    }

    /// Its address, which is also the physical one.
    pub fn address(&self, index: usize) -> usize {
        assert!(index < self.len());
        START + self.number(index) * PAGE_SIZE
    }

    /// The page.
    pub fn page(&mut self, index: usize) -> &mut Words {
        // SAFETY: a page of this part, which is borrowed; any bytes are words.
        unsafe { &mut *with_exposed_provenance_mut(self.address(index)) }
    }

    /// The expected generation.
    pub fn expected(&self, index: usize) -> u32 {
        self.expected[index]
    }

    /// Expects the next generation.
    pub fn expect_next(&mut self, index: usize) {
        self.expected[index] = self.expected[index].wrapping_add(1);
    }
}
