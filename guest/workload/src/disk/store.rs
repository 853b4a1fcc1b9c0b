//! The disk: a file or block device of numbered pages, and the generation of each chunk.

use super::arena::{Slot, SlotContent};
use crate::page::PAGE_SIZE;
use crate::random::Random;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The disk, created for each boot: every page has generation 0.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
    chunk_pages: usize,
    /// The generation of each chunk, locked while it is read or written.
    generations: Vec<Mutex<u32>>,
}

/// A chunk that no other thread uses now.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    store: &'a Store,
    number: usize,
    generation: MutexGuard<'a, u32>,
}

impl Store {
    /// Opens the disk for direct I/O.
    pub(super) fn open(path: &Path, chunk_pages: usize, writable: bool) -> io::Result<Self> {
        let opened = OpenOptions::new()
            .read(true)
            .write(writable)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .and_then(|mut file| Ok((file.seek(SeekFrom::End(0))?, file)));
        let (bytes, file) = opened.map_err(|error| {
            io::Error::other(format!(
                "hk.disk: opening {} for direct I/O: {error}",
                path.display()
            ))
        })?;
        let chunks = usize::try_from(bytes).unwrap_or(usize::MAX) / PAGE_SIZE / chunk_pages;
        if chunks <= 64 {
            return Err(io::Error::other(format!(
                "hk.disk: {} has {chunks} chunks; more than 64 are needed, one for each thread",
                path.display()
            )));
        }
        Ok(Self {
            file,
            chunk_pages,
            generations: (0..chunks).map(|_| Mutex::new(0)).collect(),
        })
    }

    /// A random chunk that is not in use.
    pub(super) fn free_chunk(&self, random: &mut Random) -> Chunk<'_> {
        loop {
            let number = random.below(self.generations.len());
            if let Ok(generation) = self.generations[number].try_lock() {
                return Chunk {
                    store: self,
                    number,
                    generation,
                };
            }
        }
    }

    /// The chunks that were ever written; waits for each that is in use.
    pub(super) fn written(&self) -> impl Iterator<Item = Chunk<'_>> {
        self.generations
            .iter()
            .enumerate()
            .filter_map(|(number, generation)| {
                let generation = generation.lock().unwrap_or_else(PoisonError::into_inner);
                (*generation > 0).then_some(Chunk {
                    store: self,
                    number,
                    generation,
                })
            })
    }
}

impl Chunk<'_> {
    fn first(&self) -> usize {
        self.number * self.store.chunk_pages
    }

    fn offset(&self) -> u64 {
        (self.first() * PAGE_SIZE) as u64
    }

    /// Reads the chunk into a slot, and checks the data.
    pub(super) fn read(&self, slot: &mut Slot, findings: &mut Vec<String>) {
        let read = self
            .store
            .file
            .read_exact_at(slot.memory.bytes(), self.offset());
        slot.set_content(read.is_ok().then_some(SlotContent {
            first: self.first(),
            generation: *self.generation,
        }));
        match read {
            Ok(()) => slot.check("read", findings),
            Err(error) => findings.push(self.failed("read", &error)),
        }
    }

    /// Writes the chunk's next generation from a slot.
    pub(super) fn write(&mut self, slot: &mut Slot, findings: &mut Vec<String>) {
        let generation = self.generation.wrapping_add(1);
        slot.fill(SlotContent {
            first: self.first(),
            generation,
        });
        match self
            .store
            .file
            .write_all_at(slot.memory.bytes(), self.offset())
        {
            Ok(()) => *self.generation = generation,
            Err(error) => findings.push(self.failed("write", &error)),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> String {
        let first = self.first();
        format!("disk page={first} fault={what}-failed error={error}").replace('\n', " ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::arena::Arena;
    use crate::page::{self, PageKind, WORDS};

    /// A disk of 100 chunks in the folder of this build, whose file system supports direct I/O.
    fn disk(name: &str) -> std::path::PathBuf {
        let folder = std::env::current_exe().unwrap();
        let path = folder.with_file_name(format!("disk-{name}-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let mut words = [0; WORDS];
        for number in 0..200 {
            page::write(&mut words, number, 0, PageKind::Filled);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            file.write_all_at(&bytes, (number * PAGE_SIZE) as u64)
                .unwrap();
        }
        path
    }

    #[test]
    fn a_write_is_read_back_and_a_lost_write_is_found() {
        let path = disk("store");
        let store = Store::open(&path, 2, true).unwrap();
        let arena = Arena::new(1, 2).unwrap();
        let (mut random, mut findings) = (Random::new(1), Vec::new());
        let mut slot = arena.slot(0);
        let mut chunk = store.free_chunk(&mut random);
        chunk.read(&mut slot, &mut findings);
        let old = slot.memory.bytes().to_vec();
        chunk.write(&mut slot, &mut findings);
        chunk.read(&mut slot, &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        let offset = chunk.offset();
        drop(chunk);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .write_all_at(&old, offset)
            .unwrap();
        let written: Vec<_> = store.written().collect();
        assert_eq!(written.len(), 1);
        written[0].read(&mut slot, &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("fault=stale held_generation=0"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_disk_that_is_too_small_is_refused() {
        let path = disk("small");
        let error = Store::open(&path, 4, false).unwrap_err().to_string();
        assert!(error.contains("50 chunks"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
