//! Files that have all pages of their blocks before the guest arrives: QEMU was started with
//! `prealloc=on`.
//!
//! A migration without post-copy keeps these pages: to drop them would give up memory that was set
//! aside for the guest. What they hold is cleared when the source marks them as zeros, which it
//! does in the first round for its holes as well. They are written through a mapping that has all
//! of them, so that nothing faults, no lock is shared with the thread of another link, and pages
//! are received where they belong (docs/decisions/0037-keep-populated-memory.md).

use std::io;
use std::sync::Arc;

use hikkoshi_pages::{PageRange, RamBlock};
use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::{FileOffset, MmapRegion};

use crate::backing::Backing;
use crate::error::MemoryError;
use crate::ram_file::RamFile;
use crate::writer::RamWriter;

impl RamWriter {
    /// Keeps the pages of files that have all of theirs. Returns the blocks of which nothing is
    /// kept.
    pub(crate) fn keep_populated(&mut self) -> Result<Vec<PageRange>, MemoryError> {
        let ram = Arc::clone(&self.ram);
        let mut others = Vec::new();
        let blocks = ram.layout().blocks().zip(ram.backings());
        for (((block, range), backing), mapped) in blocks.zip(&mut self.mapped) {
            let fail = |cause| MemoryError::Write { range, cause };
            let Backing::File(file) = backing else {
                others.push(range);
                continue;
            };
            if !file.is_populated(block.bytes).map_err(fail)? {
                others.push(range);
                continue;
            }
            if mapped.is_none() {
                *mapped = Some(map_populated(block, file).map_err(fail)?);
            }
            // They may hold something, such as firmware.
            self.written.set_range(range);
            self.kept.set_range(range);
        }
        Ok(others)
    }

    /// Whether there are pages that were kept, and neither written nor cleared since: they may hold
    /// something that is not the guest's.
    pub fn keeps_any(&self) -> bool {
        self.kept_runs().next().is_some()
    }

    /// Clears pages that were kept, and neither written nor cleared since. After the last page was
    /// received: the source has left out those that hold zeros.
    ///
    /// # Errors
    /// [`MemoryError::Write`].
    pub fn clear_kept(&self) -> Result<(), MemoryError> {
        self.kept_runs().try_for_each(|run| self.write_zeros(run))
    }

    /// Searches only blocks that are mapped here: this is done while the guest is paused.
    fn kept_runs(&self) -> impl Iterator<Item = PageRange> {
        let blocks = self.ram.layout().blocks().zip(&self.mapped);
        let mapped = blocks.filter(|(_, mapped)| mapped.is_some());
        mapped.flat_map(|((_, range), _)| self.kept.runs(range))
    }
}

/// Maps the block with all of its pages, so that no access faults.
fn map_populated(block: &RamBlock, file: &RamFile) -> io::Result<MmapRegion> {
    let offset = FileOffset::new(file.file().try_clone()?, file.offset());
    let bytes = usize::try_from(block.bytes).map_err(io::Error::other)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    let protection = i32::try_from(protection.bits()).map_err(io::Error::other)?;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    MmapRegion::build(Some(offset), bytes, protection, flags).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;
    use crate::guest_ram::GuestRam;
    use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, RamLayout, is_zero};
    use vm_memory::Bytes;

    const PAGES: u64 = 16;

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    /// Two blocks in a file each: one has all of its pages, one lacks the last. Both hold something
    /// in pages 3 and 5.
    fn memory() -> (RamWriter, [File; 2]) {
        let block = |id: &str| RamBlock::new(id, PAGES * PAGE_BYTES, PAGE_BYTES);
        let layout = RamLayout::new(vec![block("full"), block("partial")]).unwrap();
        let file = |pages: u64| {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.set_len(PAGES * PAGE_BYTES).unwrap();
            for page in 0..pages {
                file.write_all_at(&[0; PAGE_SIZE], page * PAGE_BYTES)
                    .unwrap();
            }
            for page in [3, 5] {
                file.write_all_at(b"firmware", page * PAGE_BYTES + 77)
                    .unwrap();
            }
            file
        };
        let files = [file(PAGES), file(PAGES - 1)];
        let blocks = files
            .each_ref()
            .map(|file| RamFile::new(file.try_clone().unwrap(), 0));
        let ram = GuestRam::new(layout, Vec::from(blocks)).unwrap();
        (RamWriter::open(Arc::new(ram)).unwrap(), files)
    }

    fn held_pages(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512 / PAGE_BYTES
    }

    fn content(memory: &RamWriter, range: PageRange) -> Vec<u8> {
        let mut content = vec![1; usize::try_from(range.bytes()).unwrap()];
        memory.ram().read(range, &mut content).unwrap();
        content
    }

    #[test]
    fn a_populated_file_keeps_its_pages_and_loses_their_content() {
        let (mut memory, [full, partial]) = memory();
        assert!(!memory.keeps_any(), "not prepared");
        memory.clear_all().unwrap();
        assert!(memory.keeps_any());
        memory.clear_kept().unwrap();
        assert!(!memory.keeps_any());
        assert_eq!(held_pages(&full), PAGES);
        assert_eq!(
            held_pages(&partial),
            0,
            "a file that lacks a page is emptied"
        );
        assert!(is_zero(&content(&memory, range(0, 2 * PAGES))));
    }

    #[test]
    fn kept_pages_are_written_and_cleared_where_they_are() {
        let (mut memory, [full, _]) = memory();
        memory.clear_all().unwrap();
        let written: Vec<u8> = (1..=u8::MAX).cycle().take(6 * PAGE_SIZE).collect();
        memory.write(range(13, 19), &written).unwrap();
        assert!(
            content(&memory, range(13, 19)) == written,
            "over the edge of a block"
        );
        memory.zero(range(0, 10)).unwrap();
        assert!(
            is_zero(&content(&memory, range(0, 10))),
            "marked by the source"
        );
        memory.zero(range(12, 15)).unwrap();
        memory.clear_kept().unwrap();
        assert!(is_zero(&content(&memory, range(0, 15))));
        assert!(content(&memory, range(15, 19)) == written[2 * PAGE_SIZE..]);
        assert_eq!(
            held_pages(&full),
            PAGES,
            "zeros are written to pages that are kept"
        );
    }

    #[test]
    fn a_kept_block_is_a_place_to_write_to() {
        let (mut memory, _files) = memory();
        assert!(memory.mapped(range(0, 1)).is_none(), "not prepared");
        memory.clear_all().unwrap();
        memory.zero(range(0, 14)).unwrap();
        let place = memory.mapped(range(14, 16)).unwrap();
        assert!(!memory.keeps_any());
        assert_eq!(place.len(), 2 * PAGE_SIZE);
        place.write_slice(&[7; PAGE_SIZE], PAGE_SIZE).unwrap();
        assert!(content(&memory, range(15, 16)) == [7; PAGE_SIZE]);
        memory.zero(range(14, 16)).unwrap();
        assert!(
            is_zero(&content(&memory, range(14, 16))),
            "counted as written"
        );
        assert!(memory.mapped(range(15, 17)).is_none(), "two blocks");
        assert!(memory.mapped(range(16, 17)).is_none(), "not kept");
    }

    /// An access beyond a file's end would end the process.
    #[test]
    fn a_file_shorter_than_its_block_is_not_mapped() {
        let (mut memory, [full, _]) = memory();
        full.set_len((PAGES - 1) * PAGE_BYTES).unwrap();
        memory.clear_all().unwrap();
        assert!(memory.mapped(range(0, 1)).is_none());
        assert_eq!(held_pages(&full), 0);
    }

    /// Post-copy needs absent pages, whatever the destination had before.
    #[test]
    fn dropping_everything_keeps_nothing() {
        let (memory, [full, partial]) = memory();
        memory.drop_all().unwrap();
        assert_eq!([held_pages(&full), held_pages(&partial)], [0, 0]);
    }
}
