//! Guest memory as files.
//!
//! Pages are read with `pread`, not through a mapping: reading a hole through a mapping would
//! allocate it, a full file system would kill the engine with `SIGBUS`, and a second mapping costs
//! one page fault for each page (measured on tmpfs, 1 GiB: `pread` 0.47 s; filling through a
//! mapping 0.9–1.7 s, with `pwrite` 0.43 s).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use hikkoshi_pages::{PAGE_BYTES, PageRange, RamLayout};
use rustix::fs::SeekFrom;

/// One RAM block's file.
#[derive(Debug)]
pub struct RamFile {
    file: File,
    offset: u64,
}

impl RamFile {
    /// The block begins at byte `offset` of `file`. The file must be open for reading at the
    /// source, and for reading and writing at the destination.
    pub fn new(file: File, offset: u64) -> Self {
        Self { file, offset }
    }

    /// The file.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The file, for mapping.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The offset of the block in the file, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// All of a guest's memory: the layout and one file for each block.
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
    files: Vec<RamFile>,
}

impl GuestRam {
    /// Combines a layout with its blocks' files, in layout order; `None` when their numbers differ.
    pub fn new(layout: RamLayout, files: Vec<RamFile>) -> Option<Self> {
        (layout.blocks().count() == files.len()).then_some(Self { layout, files })
    }

    /// Which page is where.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// The blocks' files, in layout order.
    pub fn files(&self) -> &[RamFile] {
        &self.files
    }

    /// Reads the pages of `range` into `buffer`, which must have exactly that size. Holes read as
    /// zeros and stay holes.
    ///
    /// # Errors
    /// As `pread`; [`io::ErrorKind::UnexpectedEof`] when the file was truncated;
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
            let (piece, tail) = usize::try_from(extent.pages.bytes())
                .ok()
                .and_then(|bytes| rest.split_at_mut_checked(bytes))
                .ok_or(io::ErrorKind::InvalidInput)?;
            let file = &self.files[extent.block];
            file.file
                .read_exact_at(piece, file.offset + extent.offset)?;
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

    /// Whether the files hold data for any page of `range`; see
    /// [`next_data`](Self::next_data).
    ///
    /// # Errors
    /// As `lseek`.
    pub fn has_data(&self, range: PageRange) -> io::Result<bool> {
        for extent in self.layout.locate_range(range) {
            let file = &self.files[extent.block];
            let begin = file.offset + extent.offset;
            match rustix::fs::seek(&file.file, SeekFrom::Data(begin)) {
                Ok(at) if at < begin + extent.pages.bytes() => return Ok(true),
                // ENXIO: nothing but a hole up to the end of the file.
                Ok(_) | Err(rustix::io::Errno::NXIO) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// The first run of pages in `range` that the files hold data for, or
    /// `None` when all of it is holes. A hole reads as zeros.
    ///
    /// File systems that do not report holes (hugetlbfs) report everything as data.
    ///
    /// # Errors
    /// As `lseek`.
    pub fn next_data(&self, range: PageRange) -> io::Result<Option<PageRange>> {
        Ok(self.data_run(range)?.map(|run| run.intersect(range)))
    }

    /// As [`next_data`](Self::next_data), but up to the end of the run, even if that is after
    /// `range`.
    ///
    /// The kernel walks over every page of the run to find its end (10 ms for 600 MiB): do not call
    /// it again for each part of a run.
    ///
    /// # Errors
    /// As [`next_data`](Self::next_data).
    pub fn data_run(&self, range: PageRange) -> io::Result<Option<PageRange>> {
        for extent in self.layout.locate_range(range) {
            let file = &self.files[extent.block];
            let begin = file.offset + extent.offset;
            let end = begin + extent.pages.bytes();
            let data = match rustix::fs::seek(&file.file, SeekFrom::Data(begin)) {
                Ok(at) if at < end => at,
                // ENXIO: nothing but a hole up to the end of the file.
                Ok(_) | Err(rustix::io::Errno::NXIO) => continue,
                Err(error) => return Err(error.into()),
            };
            // A page that was data a moment ago may be a hole now. It is reported as data and reads
            // as zeros, so that the run is not empty.
            let hole = rustix::fs::seek(&file.file, SeekFrom::Hole(data))?.max(data + 1);
            let page = |bytes| extent.pages.start().saturating_add(bytes);
            let run = PageRange::new(
                page((data - begin) / PAGE_BYTES),
                page((hole - begin).div_ceil(PAGE_BYTES)),
            );
            // The file may be longer than the block.
            let block = self.layout.blocks().nth(extent.block);
            return Ok(block.map(|(_, pages)| run.intersect(pages)));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::{Page, RamBlock};

    /// Two blocks of 16 pages in a file each, with data at these pages.
    fn files(data: &[u64]) -> GuestRam {
        let block = |id: &str| RamBlock {
            id: id.to_owned(),
            bytes: 16 * PAGE_BYTES,
            host_page: PAGE_BYTES,
            guest: Vec::new(),
        };
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
        GuestRam::new(layout, files.collect()).unwrap()
    }

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
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
        }
    }
}
