//! Memory that the guest returns to the host on command, and uses again.
//!
//! A kernel with `init_on_free=1` clears pages when they are freed, not when they are used again. A
//! balloon with free page reporting returns them to the host meanwhile. So a page that is not zero
//! when it is used again has content that was lost: that of before it was freed.

use crate::page::PAGE_SIZE;
use crate::region::{Region, RegionPart};
use std::io;

/// Each word of the memory before it is freed.
const FILLING: u64 = u64::from_le_bytes(*b"returned");

/// The memory, which is filled from the start.
#[derive(Debug)]
pub(crate) struct Returned {
    pages: RegionPart,
}

impl Returned {
    /// Fills so many pages; none, if there are to be none.
    pub(crate) fn fill(pages: usize) -> io::Result<Option<Self>> {
        if pages == 0 {
            return Ok(None);
        }
        let Some(mut pages) = Region::untouched(pages)?.split(1).next() else {
            return Ok(None);
        };
        for index in 0..pages.len() {
            pages.page(index).fill(FILLING);
        }
        Ok(Some(Self { pages }))
    }

    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Frees the pages.
    pub(crate) fn free(&mut self) -> io::Result<()> {
        let (start, bytes) = (self.pages.address(0), self.pages.len() * PAGE_SIZE);
        // SAFETY: the range is a private mapping of this object, which has no references to it.
        // Its content becomes zeros, which are valid words.
        match unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Uses as many pages again, and returns the number of those that are not zero.
    pub(crate) fn use_again(&mut self) -> usize {
        let mut bad = 0;
        for index in 0..self.pages.len() {
            let words = self.pages.page(index);
            // A page that is only read is the kernel's page of zeros. Volatile, so that it is
            // written before it is read.
            // SAFETY: a word of this object's mapping.
            unsafe { (&raw mut words[0]).write_volatile(1) };
            bad += usize::from(words[1..].iter().any(|&word| word != 0));
        }
        bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_when_they_are_used_again() {
        assert!(Returned::fill(0).unwrap().is_none());
        let mut returned = Returned::fill(8).unwrap().unwrap();
        assert_eq!(returned.use_again(), 8, "they are filled");
        returned.free().unwrap();
        assert_eq!(returned.use_again(), 0);
        // One that has its content again.
        returned.pages.page(5)[511] = FILLING;
        assert_eq!((returned.use_again(), returned.len()), (1, 8));
    }
}
