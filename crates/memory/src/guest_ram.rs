//! Guest memory: the layout, and what holds each block.

use std::io;
use std::ops::Range;

use hikkoshi_pages::{Extent, PAGE_BYTES, PageRange, RamLayout};

use crate::backing::Backing;

/// All of a guest's memory: the layout and one [`Backing`] for each block.
///
/// # Example
///
/// ```
/// use std::fs::File;
/// use std::os::unix::fs::FileExt;
///
/// use hikkoshi_memory::{RamFile, GuestRam};
/// use hikkoshi_pages::{Page, PageRange, RamBlock, RamLayout};
/// use rustix::fs::{MemfdFlags, memfd_create};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let block = RamBlock { id: "ram".into(), bytes: 16 << 12, host_page: 4096, guest: vec![] };
/// let layout = RamLayout::new(vec![block])?;
/// let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC)?);
/// file.set_len(layout.bytes())?;
/// file.write_all_at(b"content", 5 << 12)?;
///
/// let ram = GuestRam::new(layout, vec![RamFile::new(file, 0)]).ok_or("one file a block")?;
/// // All but page 5 are holes.
/// let data = ram.next_data(ram.layout().all())?;
/// assert_eq!(data, Some(PageRange::one(Page::new(5))));
/// let mut page = [0; 4096];
/// ram.read(PageRange::one(Page::new(5)), &mut page)?;
/// assert!(page.starts_with(b"content"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GuestRam {
    layout: RamLayout,
    backings: Vec<Backing>,
}

impl GuestRam {
    /// Combines a layout with what holds its blocks, in layout order; `None` when their numbers
    /// differ.
    pub fn new<B: Into<Backing>>(layout: RamLayout, backings: Vec<B>) -> Option<Self> {
        let backings: Vec<_> = backings.into_iter().map(Into::into).collect();
        (layout.blocks().count() == backings.len()).then_some(Self { layout, backings })
    }

    /// Which page is where.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// What holds the blocks, in layout order.
    pub fn backings(&self) -> &[Backing] {
        &self.backings
    }

    /// The names of the blocks that were private to a process that has ended.
    pub fn lost_blocks(&self) -> Vec<String> {
        let blocks = self.layout.blocks().zip(&self.backings);
        blocks
            .filter(|(_, backing)| backing.is_lost())
            .map(|((block, _), _)| block.id.clone())
            .collect()
    }

    /// Reads the pages of `range` into `buffer`, which must have exactly that size. Holes read as
    /// zeros and stay holes. Allocates nothing.
    ///
    /// # Errors
    /// As `pread`; [`io::ErrorKind::UnexpectedEof`] when the file was truncated;
    /// [`MemoryLost`](crate::MemoryLost) when the process has ended;
    /// [`io::ErrorKind::InvalidInput`] when the size of `buffer` is not that of `range`.
    pub fn read(&self, range: PageRange, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.len() as u64 != range.bytes() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "buffer and page range differ in size",
            ));
        }
        let mut rest = buffer;
        for extent in self.layout.locate_range(range) {
            let (head, tail) = usize::try_from(extent.pages.bytes())
                .ok()
                .and_then(|bytes| rest.split_at_mut_checked(bytes))
                .ok_or(io::ErrorKind::InvalidInput)?;
            self.backings[extent.block].read(extent.offset, head)?;
            rest = tail;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "page range reaches beyond the guest's memory",
            ))
        }
    }

    /// Whether any page of `range` is not a hole; see [`next_data`](Self::next_data).
    ///
    /// # Errors
    /// The errors of [`next_data`](Self::next_data).
    pub fn has_data(&self, range: PageRange) -> io::Result<bool> {
        for extent in self.layout.locate_range(range) {
            if self.backings[extent.block].has_data(&bytes_of(&extent))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first run of pages in `range` that are not holes, or `None` when all of it is holes. A
    /// hole reads as zeros. In private memory, pages that are present or swapped out are not holes,
    /// and pages that a privately mapped file has data for.
    ///
    /// File systems that do not report holes (hugetlbfs) report everything as data.
    ///
    /// # Errors
    /// As `lseek`; as reading a pagemap; [`MemoryLost`](crate::MemoryLost) when the process has
    /// ended.
    pub fn next_data(&self, range: PageRange) -> io::Result<Option<PageRange>> {
        Ok(self.data_run(range)?.map(|run| run.intersect(range)))
    }

    /// The first run of pages in `range` that are not holes; in a file up to its end, even if that
    /// is after `range`.
    ///
    /// The kernel walks over every page of the run to find its end (10 ms for 600 MiB): do not call
    /// it again for each part of a run.
    ///
    /// # Errors
    /// The errors of [`next_data`](Self::next_data).
    pub fn data_run(&self, range: PageRange) -> io::Result<Option<PageRange>> {
        for extent in self.layout.locate_range(range) {
            let bytes = bytes_of(&extent);
            let Some(run) = self.backings[extent.block].data_run(&bytes)? else {
                continue;
            };
            let page = |bytes| extent.pages.start().saturating_add(bytes);
            let run = PageRange::new(
                page((run.start - bytes.start) / PAGE_BYTES),
                page((run.end - bytes.start).div_ceil(PAGE_BYTES)),
            );
            // The file may be longer than the block.
            let block = self.layout.block(extent.block);
            return Ok(block.map(|(_, pages)| run.intersect(pages)));
        }
        Ok(None)
    }

    /// Calls `each` with all runs of pages in `range` that are not holes (see
    /// [`next_data`](Self::next_data)), in ascending order. Adjacent runs may be reported
    /// separately. In private memory that is one walk, however many runs there are.
    ///
    /// # Errors
    /// The errors of [`next_data`](Self::next_data).
    pub fn data_runs(&self, range: PageRange, mut each: impl FnMut(PageRange)) -> io::Result<()> {
        for extent in self.layout.locate_range(range) {
            let bytes = bytes_of(&extent);
            let page = |at: u64| extent.pages.start().saturating_add(at);
            self.backings[extent.block].data_runs(&bytes, &mut |run| {
                let start = page(run.start.saturating_sub(bytes.start) / PAGE_BYTES);
                let end = page(run.end.saturating_sub(bytes.start).div_ceil(PAGE_BYTES));
                each(PageRange::new(start, end).intersect(extent.pages));
            })?;
        }
        Ok(())
    }
}

/// Where an extent is in its block.
pub(crate) fn bytes_of(extent: &Extent) -> Range<u64> {
    extent.offset..extent.offset + extent.pages.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::{Page, RamBlock};
    use std::os::unix::fs::FileExt;

    use crate::ram_file::RamFile;

    /// Two blocks of 16 pages in a file each, with data at these pages.
    fn files(data: &[u64]) -> GuestRam {
        let block = |id: &str| RamBlock::new(id, 16 * PAGE_BYTES, PAGE_BYTES);
        let layout = RamLayout::new(vec![block("a"), block("b")]).unwrap();
        let files = (0..2).map(|nth| {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            // Longer than the block, with data right after it.
            file.set_len(20 * PAGE_BYTES).unwrap();
            file.write_all_at(&[1], 16 * PAGE_BYTES).unwrap();
            for page in data.iter().filter(|&page| page / 16 == nth) {
                file.write_all_at(&[1], page % 16 * PAGE_BYTES).unwrap();
            }
            RamFile::new(file, 0)
        });
        GuestRam::new(layout, files.collect::<Vec<_>>()).unwrap()
    }

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    #[test]
    fn all_runs_of_data() {
        let ram = files(&[2, 3, 4, 14, 15, 16, 17, 30]);
        let runs = |range| {
            let mut runs = Vec::new();
            ram.data_runs(range, |run| runs.push(run)).unwrap();
            runs
        };
        let all = [range(2, 5), range(14, 16), range(16, 18), range(30, 31)];
        assert_eq!(runs(range(0, 32)), all);
        assert_eq!(runs(range(3, 15)), [range(3, 5), range(14, 15)]);
        assert_eq!(runs(range(5, 14)), []);
    }

    #[test]
    fn a_run_of_data_ends_at_a_hole_or_with_its_block() {
        let ram = files(&[2, 3, 4, 14, 15, 16, 17, 30]);
        for (within, whole, part) in [
            (range(0, 3), Some(range(2, 5)), Some(range(2, 3))),
            (range(3, 4), Some(range(3, 5)), Some(range(3, 4))),
            (range(5, 14), None, None),
            (range(5, 32), Some(range(14, 16)), Some(range(14, 16))),
            (range(16, 17), Some(range(16, 18)), Some(range(16, 17))),
            (range(18, 32), Some(range(30, 31)), Some(range(30, 31))),
            (range(31, 32), None, None),
        ] {
            assert_eq!(ram.data_run(within).unwrap(), whole, "{within:?}");
            assert_eq!(ram.next_data(within).unwrap(), part, "{within:?}");
            assert_eq!(ram.has_data(within).unwrap(), part.is_some());
            let mut runs = Vec::new();
            ram.data_runs(within, |run| runs.push(run)).unwrap();
            assert_eq!(runs.first().copied(), part, "{within:?}");
        }
    }
}
