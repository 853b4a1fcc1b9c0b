//! The memory under test: one anonymous mapping, divided among the workers.

use crate::page::{PAGE_SIZE, Words};
use std::io;
use std::ptr::NonNull;

/// An anonymous mapping of whole pages; never unmapped, because the program ends with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    start: NonNull<Words>,
    pages: usize,
}

// SAFETY: the region is plain memory. `interleave` and `split` give each page to one worker only,
// and after `fill_shared` no thread writes, so there are no data races.
unsafe impl Send for Region {}

impl Region {
    /// Maps memory that is touched and locked, so that the first timed access is not the guest
    /// kernel's first fault.
    pub(crate) fn resident(pages: usize) -> io::Result<Self> {
        let region = Self::map(pages)?;
        // SAFETY: the range is the mapping just made. Locking also touches every page.
        if unsafe { libc::mlock(region.start.as_ptr().cast(), pages * PAGE_SIZE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        for page in 0..pages {
            // Read faults map the kernel's shared zero page; a write allocates a page.
            // SAFETY: `page` is within the mapping, which no other thread knows yet.
            unsafe { (*region.start.as_ptr().add(page))[0] = 0 };
        }
        Ok(region)
    }

    /// Maps memory that is not touched yet, in small pages, so that each is touched separately.
    pub(crate) fn untouched(pages: usize) -> io::Result<Self> {
        let region = Self::map(pages)?;
        // SAFETY: the range is the mapping just made; the advice changes no content.
        let advised = unsafe {
            libc::madvise(
                region.start.as_ptr().cast(),
                pages * PAGE_SIZE,
                libc::MADV_NOHUGEPAGE,
            )
        };
        // A kernel without huge pages rejects the advice and does not need it.
        if advised != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return Err(io::Error::last_os_error());
        }
        Ok(region)
    }

    fn map(pages: usize) -> io::Result<Self> {
        // SAFETY: a new private anonymous mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages * PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast())
            .map(|start| Self { start, pages })
            .ok_or_else(|| io::Error::other("mmap gave address 0"))
    }

    /// Fills every page, given its number, for reading only: there must be no parts of this region.
    pub(crate) fn fill_shared(self, mut fill: impl FnMut(usize, &mut Words)) -> SharedRegion {
        for mut all in self.split(1) {
            for number in 0..all.len() {
                fill(number, all.page(number));
            }
        }
        SharedRegion { region: self }
    }

    /// Splits the pages into `n` contiguous parts.
    pub(crate) fn split(self, n: usize) -> impl Iterator<Item = RegionPart> {
        (0..n).map(move |part| {
            let first = self.pages * part / n;
            RegionPart {
                region: self,
                first,
                step: 1,
                len: self.pages * (part + 1) / n - first,
            }
        })
    }

    /// Divides the pages into `n` parts: part `i` has the pages `i`, `i + n`, `i + 2n`, ….
    pub(crate) fn interleave(self, n: usize) -> impl Iterator<Item = RegionPart> {
        (0..n).map(move |first| RegionPart {
            region: self,
            first,
            step: n,
            len: self.pages.saturating_sub(first).div_ceil(n),
        })
    }
}

/// One worker's pages of a region.
#[derive(Debug)]
pub(crate) struct RegionPart {
    region: Region,
    first: usize,
    step: usize,
    len: usize,
}

impl RegionPart {
    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number in the region of this part's page `index`.
    pub(crate) fn number(&self, index: usize) -> usize {
        self.first + index * self.step
    }

    /// The address of this part's page `index`.
    pub(crate) fn address(&self, index: usize) -> *mut Words {
        assert!(index < self.len, "page {index} of a part of {}", self.len);
        // SAFETY: `index` is within the part, so its number is within the mapping.
        unsafe { self.region.start.as_ptr().add(self.number(index)) }
    }

    /// This part's page `index`.
    pub(crate) fn page(&mut self, index: usize) -> &mut Words {
        // SAFETY: the address is that of a whole mapped page, aligned and initialised (zero at
        // first), which is in no other part; `&mut self` excludes other uses of this part.
        unsafe { &mut *self.address(index) }
    }

    /// All pages of a contiguous part ([`Region::split`]), for reading a file into it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        assert!(self.step == 1 && self.len > 0, "not a contiguous part");
        // SAFETY: the pages of such a part are contiguous in the mapping and in no other part,
        // every byte is initialised, and `&mut self` excludes other uses of this part.
        unsafe { std::slice::from_raw_parts_mut(self.address(0).cast(), self.len * PAGE_SIZE) }
    }
}

/// A region that no thread writes any more.
#[derive(Clone, Debug)]
pub(crate) struct SharedRegion {
    region: Region,
}

impl SharedRegion {
    /// The number of pages.
    pub(crate) fn len(&self) -> usize {
        self.region.pages
    }

    /// Page `number`.
    pub(crate) fn page(&self, number: usize) -> &Words {
        assert!(number < self.len(), "page {number} of {}", self.len());
        // SAFETY: the number is within the mapping, whose pages are aligned and initialised, and
        // after `fill_shared` no thread writes.
        unsafe { &*self.region.start.as_ptr().add(number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn parts_have_every_page_once() {
        for (pages, n) in [(10, 3), (9, 3), (2, 4), (1, 1)] {
            let region = Region::resident(pages).unwrap();
            let shares: Vec<_> = region.interleave(n).collect();
            let parts: Vec<_> = region.split(n).collect();
            for shares in [shares, parts] {
                let numbers: Vec<usize> = shares
                    .iter()
                    .flat_map(|part| (0..part.len()).map(|index| part.number(index)))
                    .collect();
                assert_eq!(numbers.len(), pages);
                assert_eq!(
                    numbers.into_iter().collect::<BTreeSet<_>>(),
                    (0..pages).collect()
                );
            }
        }
    }

    #[test]
    fn the_bytes_of_a_part_are_its_pages() {
        let mut parts: Vec<_> = Region::resident(4).unwrap().split(2).collect();
        parts[1].page(1)[0] = 7;
        let bytes = parts[1].bytes();
        assert_eq!((bytes.len(), bytes[PAGE_SIZE]), (2 * PAGE_SIZE, 7));
        bytes[0] = 9;
        assert_eq!(parts[1].page(0)[0], 9);
        assert!(parts[0].bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn parts_do_not_overlap() {
        let mut shares: Vec<_> = Region::untouched(4).unwrap().interleave(2).collect();
        shares[0].page(1)[0] = 7;
        assert_eq!(shares[0].number(1), 2);
        assert_eq!(shares[1].page(0)[0], 0);
        assert_eq!(shares[0].page(1)[0], 7);
    }
}
