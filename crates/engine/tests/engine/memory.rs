//! A guest's memory for the tests: real files in real mappings.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hikkoshi_linux::Process;
use hikkoshi_memory::{GuestRam, PrivateMemory, RamFile};
use hikkoshi_pages::{PAGE_SIZE, Page, RamBlock, RamLayout};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, memfd_create};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SMALL: u64 = 4096;
pub(crate) const HUGE: u64 = 2 * MIB;

/// One page's content.
pub(crate) type Content = [u8; PAGE_SIZE];

/// A layout of blocks with these sizes and host page sizes, in bytes.
pub(crate) fn layout(blocks: &[(u64, u64)]) -> RamLayout {
    let blocks = blocks
        .iter()
        .enumerate()
        .map(|(number, &(bytes, host_page))| {
            RamBlock::new(format!("ram{number}"), bytes, host_page)
        });
    RamLayout::new(blocks.collect()).unwrap()
}

/// Files and a mapping of each, as in the guest's process; or private memory of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    layout: RamLayout,
    /// None if the memory is private.
    files: Vec<(File, u64)>,
    maps: Vec<MmapRegion>,
}

impl Memory {
    /// New memory, all holes. Every other block begins in the middle of its file.
    pub(crate) fn new(layout: &RamLayout) -> Self {
        let mut files = Vec::new();
        let mut maps = Vec::new();
        for (number, (block, _)) in layout.blocks().enumerate() {
            let flags = if block.host_page == SMALL {
                MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING
            } else {
                MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB
            };
            let file = File::from(memfd_create(&block.id, flags).unwrap());
            let offset = block.host_page * (number as u64 % 2);
            file.set_len(offset + block.bytes).unwrap();
            let at = FileOffset::new(file.try_clone().unwrap(), offset);
            maps.push(MmapRegion::from_file(at, usize::try_from(block.bytes).unwrap()).unwrap());
            files.push((file, offset));
        }
        Self {
            layout: layout.clone(),
            files,
            maps,
        }
    }

    /// New private memory, of which a third holds something: a machine has loaded firmware before
    /// a guest arrives.
    pub(crate) fn private(layout: &RamLayout) -> Self {
        let map = |bytes| MmapRegion::new(usize::try_from(bytes).unwrap()).unwrap();
        let memory = Self {
            layout: layout.clone(),
            files: Vec::new(),
            maps: layout.blocks().map(|(block, _)| map(block.bytes)).collect(),
        };
        for page in (0..layout.pages()).step_by(3) {
            memory.store(page, &[0x5a; PAGE_SIZE]);
        }
        memory
    }

    /// New memory in files that have all of their pages, a third of which holds something.
    pub(crate) fn populated(layout: &RamLayout) -> Self {
        let memory = Self::new(layout);
        for page in 0..layout.pages() {
            memory.store(page, &[if page % 3 == 0 { 0x5a } else { 0 }; PAGE_SIZE]);
        }
        memory
    }

    /// Bytes of memory that the files hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        let held = |(file, _): &(File, u64)| file.metadata().unwrap().blocks() * 512;
        self.files.iter().map(held).sum()
    }

    pub(crate) fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// The memory, in the form that the engine takes.
    pub(crate) fn ram(&self) -> Arc<GuestRam> {
        if self.files.is_empty() {
            let process = Arc::new(Process::open(std::process::id()).unwrap());
            let private: Vec<_> = self
                .layout
                .blocks()
                .zip(self.hosts())
                .map(|((block, _), host)| {
                    PrivateMemory::open(Arc::clone(&process), host, block.bytes, true).unwrap()
                })
                .collect();
            return Arc::new(GuestRam::new(self.layout.clone(), private).unwrap());
        }
        let files = self
            .files
            .iter()
            .map(|(file, offset)| RamFile::new(file.try_clone().unwrap(), *offset));
        Arc::new(GuestRam::new(self.layout.clone(), files.collect::<Vec<_>>()).unwrap())
    }

    /// The addresses at which the blocks are mapped.
    pub(crate) fn hosts(&self) -> Vec<u64> {
        self.maps.iter().map(|map| map.as_ptr() as u64).collect()
    }

    /// Reads a page as the guest does: the read may fault, and wait.
    pub(crate) fn load(&self, page: u64) -> Content {
        let mut content = [0; PAGE_SIZE];
        let (map, offset) = self.locate(page);
        map.as_volatile_slice()
            .read_slice(&mut content, offset)
            .unwrap();
        content
    }

    /// Writes a page as the guest does.
    pub(crate) fn store(&self, page: u64, content: &Content) {
        let (map, offset) = self.locate(page);
        map.as_volatile_slice()
            .write_slice(content, offset)
            .unwrap();
    }

    /// Pins a page for a device that will write to it: the dirty log marks it, and its content does
    /// not change.
    pub(crate) fn pin(&self, page: u64) {
        let first = &self.load(page)[..1];
        let (map, offset) = self.locate(page);
        map.as_volatile_slice().write_slice(first, offset).unwrap();
    }

    /// Writes a page as a device does that has it pinned: not through the page tables.
    pub(crate) fn write_through_file(&self, page: u64, content: &Content) {
        let (block, offset) = self.layout.locate(Page::new(page)).unwrap();
        let (file, start) = &self.files[block];
        file.write_all_at(content, start + offset).unwrap();
    }

    /// Reads all pages, as a monitor of the guest's process may: the reads may fault, and wait.
    pub(crate) fn read_all(&self) {
        for page in 0..self.layout.pages() {
            self.load(page);
        }
    }

    /// Reads all pages as another process may that maps the files: holes then hold zero pages, and
    /// nothing faults.
    pub(crate) fn read_all_elsewhere(&self) {
        for ((block, _), (file, offset)) in self.layout.blocks().zip(&self.files) {
            let at = FileOffset::new(file.try_clone().unwrap(), *offset);
            let bytes = usize::try_from(block.bytes).unwrap();
            let map: MmapRegion = MmapRegion::from_file(at, bytes).unwrap();
            for page in (0..bytes).step_by(PAGE_SIZE) {
                let _: u8 = map.as_volatile_slice().read_obj(page).unwrap();
            }
        }
    }

    /// From now on no page can be dropped, and none written to the files.
    pub(crate) fn seal(&self) {
        for (file, _) in &self.files {
            rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE).unwrap();
        }
    }

    fn locate(&self, page: u64) -> (&MmapRegion, usize) {
        let (block, offset) = self.layout.locate(Page::new(page)).unwrap();
        (&self.maps[block], usize::try_from(offset).unwrap())
    }
}

/// Prints a message even if the test passes: the test harness captures the output of the printing
/// macros, and shows it only for a failed test.
fn print_uncaptured(text: &str) {
    let test = std::thread::current();
    let line = format!("{}: {text}\n", test.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Only run by the test below.
#[test]
#[ignore = "it only prints the message about a skipped test"]
fn prints_skipped() {
    HugePages::print_skipped(3);
}

#[test]
fn a_skipped_test_prints_a_message() {
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "memory::prints_skipped"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stderr}");
    assert!(
        stderr.contains("memory::prints_skipped: SKIPPED: "),
        "{stderr}"
    );
}

/// Huge pages of 2 MiB in the system's pool, removed at the end.
#[derive(Debug)]
pub(crate) struct HugePages(u64, #[allow(dead_code)] (MutexGuard<'static, ()>, File));

/// Only one test at a time uses the pool.
static POOL_USE: Mutex<()> = Mutex::new(());

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

impl HugePages {
    /// Adds `pages` free huge pages to the pool; if that fails, the test prints so and is skipped.
    pub(crate) fn reserve(pages: u64) -> Option<Self> {
        let guard = POOL_USE.lock().unwrap_or_else(PoisonError::into_inner);
        // Test programs that run at the same time use the pool, too. The path is hikkoshi-lab's.
        let path = std::env::temp_dir().join("hikkoshi-huge-pages.lock");
        let file = File::create(path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let before = Self::total();
        let _ = std::fs::write(format!("{POOL}/nr_hugepages"), (before + pages).to_string());
        let reserved = Self(Self::total().saturating_sub(before), (guard, file));
        if reserved.0 == pages {
            return Some(reserved);
        }
        Self::print_skipped(pages);
        None
    }

    /// Allocates all free pages of the pool, until the file is dropped.
    pub(crate) fn use_up(&self) -> File {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = File::from(memfd_create("others", flags).unwrap());
        let none = FallocateFlags::empty();
        for page in 0.. {
            match rustix::fs::fallocate(&file, none, page * HUGE, HUGE) {
                Ok(()) => {}
                Err(error) => {
                    assert!(page > 0, "no page was free: {error}");
                    return file;
                }
            }
        }
        unreachable!("endless memory")
    }

    fn print_skipped(pages: u64) {
        print_uncaptured(&format!(
            "SKIPPED: {pages} huge pages of 2 MiB are not available (they need root and memory); \
             what needs them is NOT tested"
        ));
    }

    fn total() -> u64 {
        std::fs::read_to_string(format!("{POOL}/nr_hugepages"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let rest = Self::total().saturating_sub(self.0);
        let _ = std::fs::write(format!("{POOL}/nr_hugepages"), rest.to_string());
    }
}
