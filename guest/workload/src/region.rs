//! The memory under test: one anonymous mapping, shared out page by page among the workers.

use crate::page::{PAGE_SIZE, Words};
use std::io;
use std::ptr::NonNull;

/// An anonymous mapping of whole pages; never unmapped, since the program ends with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    start: NonNull<Words>,
    pages: usize,
}

// SAFETY: the region is plain memory. Sharing is made sound by `share`, where each page is handed to
// one worker only, and by `fill_shared`, after which nobody writes.
unsafe impl Send for Region {}

impl Region {
    /// Memory that is touched and locked before this returns, so that the first access that is
    /// timed is not the guest kernel's first fault.
    pub(crate) fn resident(pages: usize) -> io::Result<Self> {
        let region = Self::map(pages)?;
        // SAFETY: the range is the mapping just made. Locking also touches every page.
        if unsafe { libc::mlock(region.start.as_ptr().cast(), pages * PAGE_SIZE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        for page in 0..pages {
            // Read faults give the kernel's one shared zero page; a write makes each its own.
            // SAFETY: `page` is within the mapping, which nobody else knows yet.
            unsafe { (*region.start.as_ptr().add(page))[0] = 0 };
        }
        Ok(region)
    }

    /// Memory that no one has touched yet, in small pages, so that each is first touched on its own.
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
        // A kernel without huge pages refuses the advice and needs none.
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

    /// Fills every page, given its number, for readers only: nobody may have a share of it.
    pub(crate) fn fill_shared(self, mut fill: impl FnMut(usize, &mut Words)) -> SharedRegion {
        for mut all in self.split(1) {
            for number in 0..all.len() {
                fill(number, all.page(number));
            }
        }
        SharedRegion { region: self }
    }

    /// Splits the pages into `n` parts, one after the other.
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

    /// Shares the pages out: share `i` of `n` has the pages `i`, `i + n`, `i + 2n`, ….
    pub(crate) fn share(self, n: usize) -> impl Iterator<Item = RegionPart> {
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
    /// How many pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number, in the region, of this share's page `index`.
    pub(crate) fn number(&self, index: usize) -> usize {
        self.first + index * self.step
    }

    /// The address of this share's page `index`.
    pub(crate) fn address(&self, index: usize) -> *mut Words {
        assert!(index < self.len, "page {index} of a share of {}", self.len);
        // SAFETY: `index` is within the share, thus its number is within the mapping.
        unsafe { self.region.start.as_ptr().add(self.number(index)) }
    }

    /// This share's page `index`.
    pub(crate) fn page(&mut self, index: usize) -> &mut Words {
        // SAFETY: the address is of a whole mapped page, aligned and initialised (zero at first),
        // which no other share has; `&mut self` keeps this share's own uses apart.
        unsafe { &mut *self.address(index) }
    }

    /// All of a contiguous share ([`Region::split`]), for reading a file into it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        assert!(self.step == 1 && self.len > 0, "a contiguous share");
        // SAFETY: the pages of such a share follow one another in the mapping, no other share has
        // them, every byte is initialised, and `&mut self` keeps this share's own uses apart.
        unsafe { std::slice::from_raw_parts_mut(self.address(0).cast(), self.len * PAGE_SIZE) }
    }
}

/// A region that nobody writes any more.
#[derive(Clone, Debug)]
pub(crate) struct SharedRegion {
    region: Region,
}

impl SharedRegion {
    /// How many pages.
    pub(crate) fn len(&self) -> usize {
        self.region.pages
    }

    /// Page `number`.
    pub(crate) fn page(&self, number: usize) -> &Words {
        assert!(number < self.len(), "page {number} of {}", self.len());
        // SAFETY: the number is within the mapping, whose pages are aligned and initialised, and
        // `fill_shared` has left nobody who writes.
        unsafe { &*self.region.start.as_ptr().add(number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn shares_have_every_page_once() {
        for (pages, n) in [(10, 3), (9, 3), (2, 4), (1, 1)] {
            let region = Region::resident(pages).unwrap();
            let shares: Vec<_> = region.share(n).collect();
            let parts: Vec<_> = region.split(n).collect();
            for shares in [shares, parts] {
                let numbers: Vec<usize> = shares
                    .iter()
                    .flat_map(|share| (0..share.len()).map(|index| share.number(index)))
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
    fn the_bytes_of_a_share_are_its_pages() {
        let mut parts: Vec<_> = Region::resident(4).unwrap().split(2).collect();
        parts[1].page(1)[0] = 7;
        let bytes = parts[1].bytes();
        assert_eq!((bytes.len(), bytes[PAGE_SIZE]), (2 * PAGE_SIZE, 7));
        bytes[0] = 9;
        assert_eq!(parts[1].page(0)[0], 9);
        assert!(parts[0].bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_write_to_one_share_is_not_seen_in_another() {
        let mut shares: Vec<_> = Region::untouched(4).unwrap().share(2).collect();
        shares[0].page(1)[0] = 7;
        assert_eq!(shares[0].number(1), 2);
        assert_eq!(shares[1].page(0)[0], 0);
        assert_eq!(shares[0].page(1)[0], 7);
    }
}
