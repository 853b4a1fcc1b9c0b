//! The workload's memory: pages, and what each should contain.

use core::ptr::with_exposed_provenance_mut;
use core::slice;
use hikkoshi_checked_pages::page::{PAGE_SIZE, Words};

/// Where it begins, behind the kernel (link.ld).
const START: usize = 4 << 20;
/// The end of what the boot code maps.
const MAPPED: u64 = 4 << 30;

/// The pages under test, and one number for each.
#[derive(Debug)]
pub struct Memory {
    /// The pages.
    pub pages: &'static mut [Words],
    /// The expected generation of each.
    pub expected: &'static mut [u32],
}

/// Hands out the memory, once; `None` if the machine has less.
///
/// # Safety
/// Must be called once only.
pub unsafe fn take(count: usize, memory_end: u64) -> Option<Memory> {
    let numbers = START + count * PAGE_SIZE;
    let end = numbers + count * size_of::<u32>();
    if end as u64 > memory_end.min(MAPPED) {
        return None;
    }
    // SAFETY: the range is mapped memory that nothing else uses: it is behind the kernel, before
    // the end of the memory, and handed out once. Any bytes are words and numbers; both are
    // aligned.
    unsafe {
        Some(Memory {
            pages: slice::from_raw_parts_mut(with_exposed_provenance_mut(START), count),
            expected: slice::from_raw_parts_mut(with_exposed_provenance_mut(numbers), count),
        })
    }
}
