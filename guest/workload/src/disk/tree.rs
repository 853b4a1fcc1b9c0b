//! Files that are created, renamed, read and removed: load for the guest's file system.

use super::context::{DiskContext, SweepRequests, rest};
use crate::page::{self, PAGE_SIZE, PageKind, WORDS};
use crate::random::Random;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Maximum number of files.
const FILES: usize = 16;
/// Maximum number of pages in a file.
const PAGES: usize = 8;

/// Starts the thread that creates a file in `folder` every `every_ms` milliseconds.
pub(super) fn start(folder: &Path, every_ms: u64, context: DiskContext) -> io::Result<()> {
    fs::create_dir_all(folder).map_err(|error| {
        io::Error::other(format!("hk.tree: creating {}: {error}", folder.display()))
    })?;
    let tree = Tree {
        folder: folder.to_owned(),
        files: [None; FILES],
        step: 0,
    };
    std::thread::Builder::new()
        .name("disk-tree".to_owned())
        .spawn(move || run(tree, Duration::from_millis(every_ms), &context))
        .map(drop)
}

fn run(mut tree: Tree, every: Duration, context: &DiskContext) {
    let mut random = Random::new(context.seed.wrapping_add(77));
    let (mut sweeps, mut findings) = (SweepRequests::default(), Vec::new());
    while !context.is_stopped() {
        sweeps.answer(context, &mut findings, |findings| {
            (0..FILES).map(|number| tree.check(number, findings)).sum()
        });
        tree.step(&mut random, &mut findings);
        context.report_findings(&mut findings);
        context.counters.files.fetch_add(1, Relaxed);
        rest(context, every, &sweeps);
    }
}

/// The expected files.
#[derive(Debug)]
struct Tree {
    folder: PathBuf,
    /// Number of pages and generation of each file.
    files: [Option<(usize, u32)>; FILES],
    step: u32,
}

impl Tree {
    /// Replaces a file, sometimes removes one, and checks another one.
    fn step(&mut self, random: &mut Random, findings: &mut Vec<String>) {
        self.step += 1;
        let number = random.below(FILES);
        let pages = 1 + random.below(PAGES);
        match self.make(number, pages) {
            Ok(()) => self.files[number] = Some((pages, self.step)),
            Err(error) => {
                findings.push(format!(
                    "disk file={number} fault=write-failed error={error}"
                ));
            }
        }
        let other = random.below(FILES);
        if self.step.is_multiple_of(8)
            && self.files[other].take().is_some()
            && let Err(error) = fs::remove_file(self.path(other))
        {
            findings.push(format!(
                "disk file={other} fault=remove-failed error={error}"
            ));
        }
        self.check(random.below(FILES), findings);
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }

    fn make(&self, number: usize, pages: usize) -> io::Result<()> {
        let new = self.folder.join("new");
        let mut file = File::create(&new)?;
        let mut words = [0; WORDS];
        for index in 0..pages {
            page::write(
                &mut words,
                number * PAGES + index,
                self.step,
                PageKind::Filled,
            );
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            file.write_all(&bytes)?;
        }
        file.sync_all()?;
        // Drops the page cache, so that the next check reads the disk.
        // SAFETY: an advice about an open file; no memory is involved.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        fs::rename(new, self.path(number))
    }

    /// Checks a file, and returns its number of pages.
    fn check(&mut self, number: usize, findings: &mut Vec<String>) -> usize {
        let Some((pages, generation)) = self.files[number] else {
            return 0;
        };
        if let Err(error) = self.compare(number, pages, generation) {
            findings.push(format!("disk file={number} fault={error}").replace('\n', " "));
            // Reported once.
            self.files[number] = None;
        }
        pages
    }

    fn compare(&self, number: usize, pages: usize, generation: u32) -> io::Result<()> {
        let mut bytes = Vec::new();
        File::open(self.path(number))?.read_to_end(&mut bytes)?;
        if bytes.len() != pages * PAGE_SIZE {
            let held = bytes.len();
            return Err(io::Error::other(format!(
                "length held={held} wanted_pages={pages}"
            )));
        }
        let mut words = [0; WORDS];
        for (index, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            for (word, bytes) in words.iter_mut().zip(page.chunks_exact(8)) {
                *word = bytes.try_into().map_or(0, u64::from_le_bytes);
            }
            page::check(&words, number * PAGES + index, generation, PageKind::Filled).map_err(
                |bad| {
                    io::Error::other(format!(
                        "{} index={index} word={} held={:#x} wanted={:#x} wanted_generation={generation}",
                        bad.fault, bad.word, bad.held, bad.wanted
                    ))
                },
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_found_once() {
        let folder = std::env::temp_dir().join(format!("hikkoshi-tree-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut tree = Tree {
            folder: folder.clone(),
            files: [None; FILES],
            step: 0,
        };
        let (mut random, mut findings) = (Random::new(1), Vec::new());
        for _ in 0..200 {
            tree.step(&mut random, &mut findings);
        }
        let all = |tree: &mut Tree, findings: &mut Vec<String>| -> usize {
            (0..FILES).map(|number| tree.check(number, findings)).sum()
        };
        assert!(all(&mut tree, &mut findings) > 0);
        assert!(findings.is_empty(), "{findings:?}");
        let number = tree.files.iter().position(Option::is_some).unwrap();
        let mut bytes = fs::read(tree.path(number)).unwrap();
        bytes[100] ^= 1;
        fs::write(tree.path(number), bytes).unwrap();
        all(&mut tree, &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("fault=corrupt"), "{findings:?}");
        all(&mut tree, &mut findings);
        assert_eq!(findings.len(), 1, "reported once");
        fs::remove_dir_all(folder).unwrap();
    }
}
