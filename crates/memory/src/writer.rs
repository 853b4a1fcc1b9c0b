//! Guest memory before the guest runs here: filled by pre-copy, dropped where it is stale.
//!
//! What is absent is filled in the address space of the guest's process: installed by userfaultfd
//! (`page_installer.rs`), or written through `/proc/PID/mem`. So the kernel charges shared memory,
//! too, to the memory cgroup of that process. What is present is written: a file with `pwrite`,
//! which needs no second mapping from which a dropped page would have to be unmapped, private
//! memory through `/proc/PID/mem`. hugetlbfs cannot be written to and is mapped; the mapping
//! reserves its pages. If a limit of huge pages by cgroup is exceeded, accessing it fails with
//! `SIGBUS`. Files whose pages are kept (`populated.rs`) are mapped, too.
//!
//! A file that no process maps ([`RamFile::new`](crate::RamFile::new) alone), or on a disk, is
//! written with `pwrite` as a whole.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use hikkoshi_pages::{Extent, PAGE_BYTES, PAGE_SIZE, PageBitmap, PageRange};
use hikkoshi_userfault::Userfault;
use std::os::unix::fs::MetadataExt;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::guest_ram::{GuestRam, bytes_of};
use crate::page_installer::{self, PageInstaller, PageInstallerError};
use crate::process_memory::ProcessMemory;

/// Guest memory, for writing.
#[derive(Debug)]
pub struct RamWriter {
    pub(crate) ram: Arc<GuestRam>,
    /// For each block that is not written to as a file, the mapping that it is written through.
    pub(crate) mapped: Vec<Option<MmapRegion>>,
    /// Pages that may hold something other than zeros. In blocks that are not mapped: the pages
    /// that take memory, if no other program has touched any.
    pub(crate) written: PageBitmap,
    /// What installs absent pages.
    installer: Option<PageInstaller>,
    /// Whether no page will be missing while the guest runs.
    pub(crate) without_postcopy: bool,
    /// Pages that were kept (`populated.rs`) and neither written nor cleared since.
    pub(crate) kept: PageBitmap,
}

impl RamWriter {
    /// Opens guest memory for writing; hugetlbfs is mapped.
    pub fn open(ram: Arc<GuestRam>) -> Result<Self, MemoryError> {
        let mapped = ram
            .layout()
            .blocks()
            .zip(ram.backings())
            .map(|((block, range), backing)| {
                let file = match backing {
                    Backing::File(file) if block.host_page > PAGE_BYTES => file,
                    Backing::File(_) | Backing::Private(_) | Backing::Lost => return Ok(None),
                };
                let map = || {
                    let offset = FileOffset::new(file.file().try_clone()?, file.offset());
                    let bytes = usize::try_from(block.bytes).map_err(io::Error::other)?;
                    MmapRegion::from_file(offset, bytes).map_err(io::Error::other)
                };
                map()
                    .map(Some)
                    .map_err(|cause| MemoryError::Write { range, cause })
            })
            .collect::<Result<_, _>>()?;
        let written = PageBitmap::empty(ram.layout().pages());
        let kept = PageBitmap::empty(ram.layout().pages());
        Ok(Self {
            ram,
            mapped,
            written,
            installer: None,
            without_postcopy: false,
            kept,
        })
    }

    /// Whether there is memory to which [`install_absent`](Self::install_absent) applies.
    pub fn can_install_absent(&self) -> bool {
        page_installer::is_useful(&self.ram)
    }

    /// Installs absent pages of private anonymous memory, and of files that the process maps, with
    /// `userfault` from now on, until [`end_installing`](Self::end_installing), instead of writing
    /// them. `userfault` belongs to the process of the memory, has nothing registered there, and is
    /// open in no other process: the memory is registered meanwhile, and a thread of this process
    /// answers its faults with zeros.
    ///
    /// # Errors
    /// When the memory cannot be registered, or the thread not be started. Pages are written then.
    pub fn install_absent(&mut self, userfault: Arc<Userfault>) -> Result<(), PageInstallerError> {
        self.installer = None;
        self.installer = Some(PageInstaller::start(&self.ram, userfault)?);
        Ok(())
    }

    /// Unregisters the memory that [`install_absent`](Self::install_absent) registered. Before the
    /// guest may run, or another userfaultfd is registered.
    pub fn end_installing(&self) {
        if let Some(installer) = &self.installer {
            installer.end();
        }
    }

    /// The guest memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// For each block, whether there may be pages that were not written here. One call for each
    /// file, however many pages it has: tmpfs counts its pages exactly. Private memory may always
    /// hold more.
    ///
    /// `false` is certain, as long as no other program has dropped pages.
    ///
    /// # Errors
    /// When a file's size cannot be queried.
    pub fn blocks_that_may_hold_more(&self) -> Result<Vec<bool>, MemoryError> {
        // Blocks may be parts of one file.
        let mut files = BTreeMap::new();
        let mut file_of = Vec::new();
        for (number, (_, range)) in self.ram.layout().blocks().enumerate() {
            let fail = |cause| MemoryError::Write { range, cause };
            let Backing::File(file) = &self.ram.backings()[number] else {
                file_of.push(None);
                continue;
            };
            let metadata = file.file().metadata().map_err(fail)?;
            // A huge page counts for more than what was written to it.
            let written = match self.mapped[number] {
                None => self.written.count_range(range),
                Some(_) => 0,
            };
            // Blocks of 512 bytes, whatever the file system (stat(2)).
            let held = metadata.blocks().div_ceil(PAGE_BYTES / 512);
            let file = (metadata.dev(), metadata.ino());
            files.entry(file).or_insert((held, 0)).1 += written;
            file_of.push(Some(file));
        }
        let more = |file| {
            files
                .get(&file)
                .is_none_or(|(held, written)| held > written)
        };
        Ok(file_of
            .into_iter()
            .map(|file| file.is_none_or(more))
            .collect())
    }

    /// Writes the content of `range`.
    pub fn write(&self, range: PageRange, content: &[u8]) -> Result<(), MemoryError> {
        let fail = |cause| MemoryError::Write { range, cause };
        let mut rest = content;
        for extent in self.ram.layout().locate_range(range) {
            let (head, tail) = usize::try_from(extent.pages.bytes())
                .ok()
                .and_then(|bytes| rest.split_at_checked(bytes))
                .ok_or_else(|| fail(io::ErrorKind::InvalidInput.into()))?;
            self.write_extent(&extent, head).map_err(fail)?;
            rest = tail;
        }
        Ok(())
    }

    /// Where the content of `range` can be written instead of by [`write`](Self::write), if all of
    /// it is mapped here, and [`clear_all`](Self::clear_all) has prepared the memory. The guest's
    /// process maps it as well.
    ///
    /// The pages count as written from now on, also if only a part is written.
    pub fn mapped(&self, range: PageRange) -> Option<VolatileSlice<'_>> {
        let mut extents = self.ram.layout().locate_range(range);
        let extent = extents.next().filter(|_| self.without_postcopy)?;
        let region = self.place(&extent).1?;
        let at = usize::try_from(extent.offset).ok()?;
        let bytes = usize::try_from(range.bytes()).ok()?;
        let place = region.get_slice(at, bytes).ok()?;
        if extents.next().is_some() {
            return None;
        }
        self.set_written(range);
        Some(place)
    }

    fn write_extent(&self, extent: &Extent, content: &[u8]) -> io::Result<()> {
        let (backing, region) = self.place(extent);
        if let Some(region) = region {
            self.set_written(extent.pages);
            let at = usize::try_from(extent.offset).map_err(io::Error::other)?;
            return region
                .as_volatile_slice()
                .write_slice(content, at)
                .map_err(io::Error::other);
        }
        let installer = self.installer.as_ref();
        let installer = installer.filter(|installer| installer.has(extent.block));
        match backing.mapping() {
            // Otherwise present and absent pages are written in the same way.
            Some(place) if installer.is_some() || backing.file().is_some() => {
                self.fill_extent(backing, place, installer, extent, content)
            }
            _ => {
                self.written.set_range(extent.pages);
                backing.write(extent.offset, content)
            }
        }
    }

    /// Fills the pages that were not written before at `place`, and writes the others.
    fn fill_extent(
        &self,
        backing: &Backing,
        place: &ProcessMemory,
        installer: Option<&PageInstaller>,
        extent: &Extent,
        content: &[u8],
    ) -> io::Result<()> {
        let (pages, mut rest, mut at) = (extent.pages, content, extent.offset);
        let mut from = pages.start();
        while from < pages.end() {
            let after = PageRange::new(from, pages.end());
            let present = self.written.runs(after).next();
            let present = present.unwrap_or(PageRange::new(pages.end(), pages.end()));
            for (run, is_absent) in [
                (PageRange::new(from, present.start()), true),
                (present, false),
            ] {
                let (part, tail) = usize::try_from(run.bytes())
                    .ok()
                    .and_then(|bytes| rest.split_at_checked(bytes))
                    .ok_or(io::ErrorKind::InvalidInput)?;
                self.written.set_range(run);
                match (is_absent, installer) {
                    _ if run.is_empty() => {}
                    (true, Some(installer)) => installer.install(backing, place, at, part)?,
                    (true, None) => place.write(at, part)?,
                    (false, _) => backing.write(at, part)?,
                }
                at += run.bytes();
                rest = tail;
            }
            from = present.end();
        }
        Ok(())
    }

    /// Makes `range` read as zeros. Takes no memory: pages that hold zeros already are left alone.
    pub fn zero(&self, range: PageRange) -> Result<(), MemoryError> {
        for extent in self.ram.layout().locate_range(range) {
            if let (Backing::File(file), None) = self.place(&extent) {
                file.punch(&bytes_of(&extent))
                    .map_err(|cause| MemoryError::Write { range, cause })?;
                self.written.clear_range(extent.pages);
                continue;
            }
            let written: Vec<_> = self.written.runs(extent.pages).collect();
            for run in written {
                self.write_zeros(run)?;
            }
        }
        Ok(())
    }

    /// Pages of a block that is mapped here are written.
    fn set_written(&self, range: PageRange) {
        self.written.set_range(range);
        self.kept.clear_range(range);
    }

    pub(crate) fn write_zeros(&self, range: PageRange) -> Result<(), MemoryError> {
        let zeros = [0; 64 * PAGE_SIZE];
        for part in range.chunks(64) {
            let bytes = usize::try_from(part.bytes()).unwrap_or(0);
            self.write(part, &zeros[..bytes])?;
            self.written.clear_range(part);
        }
        Ok(())
    }

    /// Pages that may hold something other than zeros.
    pub(crate) fn written(&self) -> &PageBitmap {
        &self.written
    }

    /// What holds an extent, and the mapping that it is written through.
    pub(crate) fn place(&self, extent: &Extent) -> (&Backing, Option<&MmapRegion>) {
        let backing = &self.ram.backings()[extent.block];
        (backing, self.mapped[extent.block].as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use error_reporter::Report;
    use std::os::unix::fs::FileExt;

    use hikkoshi_pages::{Page, RamBlock, RamLayout};

    use crate::ram_file::RamFile;

    /// Two blocks of 16 pages; the second begins after the first, in the same file.
    fn memory() -> RamWriter {
        let block = |id: &str| RamBlock::new(id, 16 * PAGE_BYTES, PAGE_BYTES);
        let layout = RamLayout::new(vec![block("a"), block("b")]).unwrap();
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(32 * PAGE_BYTES).unwrap();
        let files = vec![
            RamFile::new(file.try_clone().unwrap(), 0),
            RamFile::new(file, 16 * PAGE_BYTES),
        ];
        RamWriter::open(Arc::new(GuestRam::new(layout, files).unwrap())).unwrap()
    }

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    /// The pages that the files hold data for.
    fn present(memory: &RamWriter) -> Vec<u64> {
        let all = memory.ram.layout().all();
        all.iter()
            .filter(|&page| {
                memory
                    .ram
                    .next_data(PageRange::one(page))
                    .unwrap()
                    .is_some()
            })
            .map(Page::index)
            .collect()
    }

    #[test]
    fn a_dropped_page_is_gone() {
        let memory = memory();
        let content: Vec<u8> = (0..=u8::MAX).cycle().take(6 * PAGE_SIZE).collect();
        memory.write(range(13, 19), &content).unwrap();
        let mut read = vec![0; content.len()];
        memory.ram.read(range(13, 19), &mut read).unwrap();
        assert!(read == content, "written over the edge of a block");
        assert_eq!(present(&memory), [13, 14, 15, 16, 17, 18]);

        memory.drop_stale(&[range(14, 17)]).unwrap();
        assert_eq!(present(&memory), [13, 17, 18]);
        memory.zero(range(17, 18)).unwrap();
        assert_eq!(present(&memory), [13, 18], "zeros take no memory");
        memory.drop_all().unwrap();
        assert_eq!(present(&memory), [0_u64; 0]);
    }

    #[test]
    fn pages_that_were_not_written_here_are_noticed() {
        let memory = memory();
        let may_hold_more = || memory.blocks_that_may_hold_more().unwrap();
        assert_eq!(may_hold_more(), [false, false]);
        memory.write(range(13, 19), &[1; 6 * PAGE_SIZE]).unwrap();
        assert_eq!(may_hold_more(), [false, false]);
        memory.zero(range(13, 14)).unwrap();
        memory.drop_stale(&[range(17, 19)]).unwrap();
        assert_eq!(may_hold_more(), [false, false]);
        // Another program reads a hole through a mapping.
        let file = memory.ram.backings()[0]
            .file()
            .unwrap()
            .file()
            .try_clone()
            .unwrap();
        let map = MmapRegion::<()>::from_file(FileOffset::new(file, 0), 32 * PAGE_SIZE).unwrap();
        let _: u8 = map.as_volatile_slice().read_obj(18 * PAGE_SIZE).unwrap();
        assert_eq!(may_hold_more(), [true, true]);
        memory.drop_stale(&[range(18, 19)]).unwrap();
        assert_eq!(may_hold_more(), [false, false]);
    }

    #[test]
    fn content_of_another_size_is_an_error() {
        let memory = memory();
        let error = memory.write(range(0, 2), &[0; PAGE_SIZE]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("writing pages 0..2 of the guest's memory ("),
            "{error}"
        );
    }

    /// A file system that cannot drop pages is reported, instead of leaving stale pages.
    #[test]
    fn what_cannot_be_dropped_is_told() {
        let memory = memory();
        let sealed = rustix::fs::memfd_create(
            "sealed",
            rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING,
        )
        .unwrap();
        let sealed = std::fs::File::from(sealed);
        sealed.set_len(32 * PAGE_BYTES).unwrap();
        sealed.write_all_at(&[1], 5 * PAGE_BYTES).unwrap();
        rustix::fs::fcntl_add_seals(&sealed, rustix::fs::SealFlags::WRITE).unwrap();
        let files = vec![
            RamFile::new(sealed.try_clone().unwrap(), 0),
            RamFile::new(sealed, 16 * PAGE_BYTES),
        ];
        let ram = GuestRam::new(memory.ram.layout().clone(), files).unwrap();
        let error = RamWriter::open(Arc::new(ram))
            .unwrap()
            .drop_all()
            .unwrap_err();
        assert!(matches!(error, MemoryError::Drop { .. }));
        let text = Report::new(&error).to_string();
        assert!(
            text.contains("Operation not permitted") && text.contains("huge=never"),
            "{text}"
        );
    }
}
