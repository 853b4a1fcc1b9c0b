//! A second process whose memory stands for a guest's. It writes, reads and pins pages on command.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use hikkoshi_dirty::PagemapLog;
use hikkoshi_dirty::contract_tests;
use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, RemoteUserfault};

use crate::common::{Shared, Target, eventually, map_shared, memory_file};
use crate::pinning_device::PinningDevice;

use super::SMALL;

/// Indices of words in the shared page. The guest executes one command at a time.
const COMMAND: usize = 0;
const DONE: usize = 1;
const KIND: usize = 2;
const PAGE: usize = 3;
const VALUE: usize = 4;
/// What the writers do: nothing (0), or one of these.
const WRITING: usize = 5;
const WRITERS: usize = 6;
const ADDRESSES: usize = 16;

pub(super) const WRITE: u64 = 1;
const TOUCH: u64 = 2;
const PIN: u64 = 3;
const LAND: u64 = 4;
const DROP: u64 = 5;

/// Write to random pages.
const PAGES: u64 = 1;
/// Write to some pages of a random piece of memory, or clear it and drop it.
const PIECES: u64 = 2;
/// Size of a piece.
const PIECE: u64 = 1024;

/// A second process with RAM blocks.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) layout: RamLayout,
    /// None if the memory is private.
    pub(super) files: Vec<File>,
    /// Whether the files are on a disk.
    on_disk: bool,
    pub(super) target: TargetBox,
}

pub(super) struct TargetBox(pub(super) Target);

impl std::fmt::Debug for TargetBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.0.pid)
    }
}

impl Process {
    /// Starts a process with blocks; each is given by its size and its host page size, in bytes.
    pub(super) fn new(blocks: &[(u64, u64)]) -> Self {
        let file = |(bytes, host_page): &(u64, u64)| memory_file(*bytes, *host_page != SMALL);
        Self::with(blocks, blocks.iter().map(file).collect(), false)
    }

    /// Starts a process with blocks of private anonymous memory.
    pub(super) fn private(blocks: &[(u64, u64)]) -> Self {
        Self::with(blocks, Vec::new(), false)
    }

    /// The process maps these files shared; no files: private memory.
    pub(super) fn with(blocks: &[(u64, u64)], files: Vec<File>, on_disk: bool) -> Self {
        let layout = RamLayout::new(
            blocks
                .iter()
                .enumerate()
                .map(|(number, (bytes, host_page))| {
                    RamBlock::new(format!("ram{number}"), *bytes, *host_page)
                })
                .collect(),
        )
        .unwrap();
        let descriptor = |block| files.get(block).map_or(-1, AsRawFd::as_raw_fd);
        let raw: Vec<(i32, usize)> = blocks
            .iter()
            .enumerate()
            .map(|(block, (bytes, _))| (descriptor(block), usize::try_from(*bytes).unwrap()))
            .collect();
        let inside = layout.clone();
        let target = Target::spawn(move |shared| {
            let mappings = map_blocks(shared, &raw, &inside, on_disk);
            let files = raw.iter().map(|(descriptor, _)| *descriptor).collect();
            guest(shared, mappings, files, &inside)
        });
        target.shared.wait(DONE, 1);
        Self {
            layout,
            files,
            on_disk,
            target: TargetBox(target),
        }
    }

    pub(super) fn hosts(&self) -> Vec<HostAddr> {
        (0..self.layout.blocks().len())
            .map(|block| HostAddr(self.target.0.shared.get(ADDRESSES + block)))
            .collect()
    }

    pub(super) fn command(&self, kind: u64, page: Page, value: u64) {
        let shared = self.target.0.shared;
        shared.set(KIND, kind);
        shared.set(PAGE, page.index());
        shared.set(VALUE, value);
        let number = shared.add(COMMAND, 1) + 1;
        for round in 1u64.. {
            if shared.get(DONE) > number {
                break;
            }
            if round % 100_000 == 0 {
                assert_ne!(self.target.0.state(), 'Z', "the second process has ended");
            }
            std::thread::yield_now();
        }
    }

    /// Starts writers that also clear and drop memory. Ended by `stop_writing`.
    pub(super) fn start_dropping(&self) {
        self.target.0.shared.set(WRITING, PIECES);
        self.target.0.shared.wait(WRITERS, 2);
    }

    pub(super) fn take_userfault(&self) -> RemoteUserfault {
        RemoteUserfault::create(self.target.0.pid, Features::FOR_DIRTY_LOG).unwrap()
    }

    pub(super) fn start(&self, taken: &RemoteUserfault) -> PagemapLog {
        PagemapLog::start(taken.userfault().clone(), &self.layout, &self.hosts()).unwrap()
    }
}

impl contract_tests::Guest for Process {
    fn layout(&self) -> &RamLayout {
        &self.layout
    }
    fn write(&self, page: Page, value: u64) {
        self.command(WRITE, page, value);
    }
    fn touch(&self, page: Page) {
        self.command(TOUCH, page, 0);
    }
    fn start_writing(&self) {
        self.target.0.shared.set(WRITING, PAGES);
        self.target.0.shared.wait(WRITERS, 2);
    }
    fn stop_writing(&self) {
        let shared = self.target.0.shared;
        shared.set(WRITING, 0);
        eventually("the writers to stop", || {
            assert_ne!(self.target.0.state(), 'Z', "the second process has ended");
            shared.get(WRITERS) == 0
        });
    }
    fn can_pin(&self) -> bool {
        !self.on_disk
    }
    fn pin(&self, page: Page) {
        self.command(PIN, page, 0);
    }
    fn land(&self, value: u64) {
        self.command(LAND, Page::new(0), value);
    }
    fn drop_pages(&self, range: PageRange) {
        self.command(DROP, range.start(), range.len());
    }
    fn read(&self, page: Page) -> u64 {
        let (block, offset) = self.layout.locate(page).unwrap();
        let mut bytes = [0; 8];
        match self.files.get(block) {
            Some(file) => file.read_exact_at(&mut bytes, offset).unwrap(),
            None => File::open(format!("/proc/{}/mem", self.target.0.pid))
                .unwrap()
                .read_exact_at(&mut bytes, self.hosts()[block].0 + offset)
                .unwrap(),
        }
        u64::from_ne_bytes(bytes)
    }
}

/// Maps private anonymous memory.
fn map_private(bytes: usize, host_page: u64) -> *mut u8 {
    let huge = match host_page {
        SMALL => 0,
        _ => libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

/// Maps the blocks of the second process, and returns their addresses. QEMU advises the kernel to
/// use huge pages, which it then also does for a file on a disk.
fn map_blocks(
    shared: &Shared,
    blocks: &[(i32, usize)],
    layout: &RamLayout,
    huge_pages: bool,
) -> Vec<usize> {
    let advise = |start: *mut u8, bytes, advice| {
        let result = unsafe { libc::madvise(start.cast(), bytes, advice) };
        assert_eq!(result, 0);
    };
    let map = |(number, (fd, bytes)): (usize, &(i32, usize))| {
        let host_page = layout.block(number).unwrap().0.host_page;
        let start = match fd {
            -1 => map_private(*bytes, host_page),
            fd => map_shared(*bytes, *fd),
        };
        if huge_pages {
            advise(start, *bytes, libc::MADV_HUGEPAGE);
        }
        if host_page == SMALL && *bytes > 8 * PAGE_SIZE {
            // An madvise of a part splits the mapping into several.
            let part = unsafe { start.add(4 * PAGE_SIZE) };
            advise(part, PAGE_SIZE, libc::MADV_DONTDUMP);
        }
        shared.set(ADDRESSES + number, start.expose_provenance() as u64);
        start.addr()
    };
    blocks.iter().enumerate().map(map).collect()
}

/// The piece with this page.
fn piece_at(layout: &RamLayout, page: u64) -> PageRange {
    let piece = PageRange::from_len(Page::new(page - page % PIECE), PIECE);
    let (block, _) = layout.locate(Page::new(page)).unwrap();
    piece.intersect(layout.block(block).unwrap().1)
}

/// The program of the second process.
fn guest(
    shared: &'static Shared,
    mappings: Vec<usize>,
    files: Vec<i32>,
    layout: &RamLayout,
) -> i32 {
    let word = {
        let layout = layout.clone();
        move |page: u64| -> *mut u64 {
            let (block, offset) = layout.locate(Page::new(page)).unwrap();
            let address = mappings[block] + usize::try_from(offset).unwrap();
            std::ptr::with_exposed_provenance_mut(address)
        }
    };
    for (writer, seed) in [(0, 0x1234_5678_9abc_def1u64), (1, 0x0fed_cba9_8765_4321)] {
        let word = word.clone();
        let (layout, files) = (layout.clone(), files.clone());
        let pages = layout.pages();
        std::thread::spawn(move || {
            let mut random = seed;
            let mut next = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            };
            loop {
                if shared.get(WRITING) == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                shared.add(WRITERS, 1);
                while shared.get(WRITING) != 0 {
                    let mut range = layout.all();
                    if shared.get(WRITING) == PIECES {
                        // One of this writer's: only dirty memory is dropped, and the log may not
                        // report a clean page that is.
                        range = piece_at(&layout, next() % pages);
                        if range.start().index() / PIECE % 2 != writer {
                            continue;
                        }
                        if next() % 2 == 0 {
                            for page in range {
                                unsafe { word(page.index()).write_volatile(0) };
                            }
                            let (block, offset) = layout.locate(range.start()).unwrap();
                            let start = word(range.start().index()).cast();
                            drop_pages(start, files[block], offset, range.len());
                            continue;
                        }
                    }
                    for _ in 0..100 {
                        let value = next();
                        let page = range.start().index() + value % range.len();
                        unsafe { word(page).write_volatile(value) };
                    }
                }
                shared.add(WRITERS, u64::MAX);
            }
        });
    }
    let mut device = PinningDevice::new();
    for done in 1u64.. {
        shared.set(DONE, done);
        while shared.get(COMMAND) < done {
            std::thread::yield_now();
        }
        let at = word(shared.get(PAGE));
        match shared.get(KIND) {
            WRITE => unsafe { at.write_volatile(shared.get(VALUE)) },
            TOUCH => drop(unsafe { at.read_volatile() }),
            PIN => device.pin(at.cast()),
            LAND => device.land(shared.get(VALUE)),
            DROP => {
                let (block, offset) = layout.locate(Page::new(shared.get(PAGE))).unwrap();
                drop_pages(at.cast(), files[block], offset, shared.get(VALUE));
            }
            _ => return 1,
        }
    }
    0
}

/// Drops pages as QEMU's balloon does (`ram_block_discard_range`).
fn drop_pages(start: *mut u8, file: i32, offset: u64, pages: u64) {
    let bytes = usize::try_from(pages).unwrap() * PAGE_SIZE;
    if file >= 0 {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, length) = (offset.cast_signed(), bytes.cast_signed() as i64);
        let result = unsafe { libc::fallocate(file, mode, offset, length) };
        assert_eq!(result, 0);
    }
    let result = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
    assert_eq!(result, 0);
}
