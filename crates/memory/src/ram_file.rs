//! A RAM block in a file.
//!
//! Pages are read with `pread`, not through a mapping: reading a hole through a mapping would
//! allocate it, a full file system would kill the engine with `SIGBUS`, and a second mapping costs
//! one page fault for each page (measured on tmpfs, 1 GiB: `pread` 0.47 s; filling through a
//! mapping 0.9–1.7 s, with `pwrite` 0.43 s). The exception is a file that has all of its pages
//! (`populated.rs`): it can be mapped with them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, fstatfs, seek};
use rustix::io::Errno;

use crate::process_memory::ProcessMemory;

/// One RAM block's file. Offsets are bytes from the beginning of the block.
#[derive(Debug)]
pub struct RamFile {
    file: File,
    offset: u64,
    on_disk: bool,
    mapping: Option<FileMapping>,
}

/// Where the guest's process maps the file.
#[derive(Debug)]
struct FileMapping {
    place: ProcessMemory,
    huge: bool,
}

/// How often the state of a page's blocks changes while it is written back to a disk.
const STATE_CHANGES: u32 = 2;

/// See statfs(2).
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

impl RamFile {
    /// The block begins at byte `offset` of `file`. The file must be open for reading at the
    /// source, and for reading and writing at the destination.
    pub fn new(file: File, offset: u64) -> Self {
        // Unknown is treated as a disk, which only makes searches for data slower.
        let on_disk = fstatfs(&file).map_or(true, |system| {
            ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&system.f_type)
        });
        Self {
            file,
            offset,
            on_disk,
            mapping: None,
        }
    }

    /// At the destination: the guest's process maps the file at `place`. Absent pages are filled
    /// there, and not by writing to the file: the kernel charges a page to the memory cgroup of the
    /// process in whose address space it was first accessed, and that is the guest's then. `huge`:
    /// the kernel puts huge pages into the file.
    #[must_use]
    pub fn mapped_at(self, place: ProcessMemory, huge: bool) -> Self {
        let mapping = (!self.on_disk).then_some(FileMapping { place, huge });
        Self { mapping, ..self }
    }

    /// Where absent pages are filled, if that is not the file.
    pub(crate) fn mapping(&self) -> Option<&ProcessMemory> {
        Some(&self.mapping.as_ref()?.place)
    }

    /// Where absent pages can be installed one by one.
    pub(crate) fn installable(&self) -> Option<&ProcessMemory> {
        let small = self.mapping.as_ref().filter(|mapping| !mapping.huge);
        Some(&small?.place)
    }

    /// Whether the file's pages can be written back and evicted: it is neither on tmpfs nor on
    /// hugetlbfs.
    pub fn is_on_disk(&self) -> bool {
        self.on_disk
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

    /// Fails with [`io::ErrorKind::UnexpectedEof`] when the file was truncated.
    pub(crate) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, self.offset + at)
    }

    pub(crate) fn write(&self, at: u64, content: &[u8]) -> io::Result<()> {
        self.file.write_all_at(content, self.offset + at)
    }

    /// The first byte of data in `within`. A hole reads as zeros. File systems that do not report
    /// holes (hugetlbfs) report everything as data.
    ///
    /// On a disk, a page with data could look like a hole while it is written back, by the kernel's
    /// sources (it was not observed): its blocks are reserved, then allocated, then written, and
    /// `lseek` queries each state separately, and then the page cache, from which the page may
    /// have been evicted since. After two changes of state every search finds it.
    pub(crate) fn first_data(&self, within: &Range<u64>) -> io::Result<Option<u64>> {
        let mut first = self.search_data(within)?;
        if self.on_disk {
            for _ in 0..STATE_CHANGES {
                if first == Some(within.start) {
                    break;
                }
                let again = self.search_data(within)?;
                first = [first, again].into_iter().flatten().min();
            }
        }
        Ok(first)
    }

    fn search_data(&self, within: &Range<u64>) -> io::Result<Option<u64>> {
        match seek(&self.file, SeekFrom::Data(self.offset + within.start)) {
            Ok(at) => {
                let at = at.saturating_sub(self.offset);
                Ok((at < within.end).then_some(at))
            }
            // ENXIO: nothing but a hole up to the end of the file.
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The first run of data that begins in `within`. It may end after `within`, and after the
    /// block.
    ///
    /// The kernel walks over every page of the run to find its end (10 ms for 600 MiB).
    pub(crate) fn data_run(&self, within: &Range<u64>) -> io::Result<Option<Range<u64>>> {
        let Some(data) = self.first_data(within)? else {
            return Ok(None);
        };
        // A page that was data a moment ago may be a hole now. It is reported as data and reads as
        // zeros, so that the run is not empty.
        let hole = seek(&self.file, SeekFrom::Hole(self.offset + data))?;
        let hole = hole.saturating_sub(self.offset).max(data + 1);
        Ok(Some(data..hole))
    }

    /// Whether the file has no data at all, also where the file system does not report holes.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(fstat(&self.file)?.st_blocks == 0)
    }

    /// Whether the file has memory for each page of a block of `bytes` bytes, so that no access
    /// allocates any. Not known of a file on a disk, whose blocks are not in memory.
    pub(crate) fn is_populated(&self, bytes: u64) -> io::Result<bool> {
        if self.on_disk {
            return Ok(false);
        }
        let status = fstat(&self.file)?;
        let size = u64::try_from(status.st_size).unwrap_or(0);
        if size < self.offset.saturating_add(bytes) {
            return Ok(false);
        }
        if fstatfs(&self.file)?.f_type == HUGETLBFS_MAGIC {
            // It reports no holes, but how many blocks of 512 bytes it holds (stat(2)).
            let held = u64::try_from(status.st_blocks).unwrap_or(0);
            return Ok(held.saturating_mul(512) >= size);
        }
        let data = self.data_run(&(0..bytes))?;
        Ok(data.is_some_and(|run| run.start == 0 && run.end >= bytes))
    }

    /// Frees `range`, which then reads as zeros.
    pub(crate) fn punch(&self, range: &Range<u64>) -> io::Result<()> {
        Ok(fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            self.offset + range.start,
            range.end.saturating_sub(range.start),
        )?)
    }
}
