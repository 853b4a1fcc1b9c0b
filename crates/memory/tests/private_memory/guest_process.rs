//! A process whose memory stands for a guest's: every kind of memory that a RAM block can have.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_memory::{Backing, GuestRam, PrivateMemory, ProcessMemory, RamFile};
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamBlock, RamLayout};

use crate::common::{Target, memory_file};

/// 16 MiB.
pub(crate) const PAGES: u64 = 4096;
const HUGE: u64 = 2 << 20;

/// Indices of words in the shared page. The process executes one command at a time.
const COMMAND: usize = 0;
const DONE: usize = 1;
const KIND: usize = 2;
const FIRST: usize = 3;
const COUNT: usize = 4;
const VALUE: usize = 5;
const ADDRESS: usize = 6;

const WRITE: u64 = 1;
const READ: u64 = 2;
const ADVISE: u64 = 3;

/// What the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Private anonymous, in pages of 4 KiB.
    Anonymous,
    /// Private anonymous, in huge pages where possible.
    Transparent,
    /// Private anonymous, locked: present from the start.
    Locked,
    /// A private mapping of an empty tmpfs file.
    EmptyFile,
    /// A private mapping of a tmpfs file with content in every third page.
    FullFile,
    /// Private hugetlb memory of 2 MiB pages.
    Hugetlb,
    /// A shared memfd.
    Shared,
    /// A shared memfd, as if the kernel put huge pages into it.
    SharedHuge,
}

impl Kind {
    /// All kinds of which holes read as zeros.
    pub(crate) const WITH_HOLES: [Self; 7] = [
        Self::Anonymous,
        Self::Transparent,
        Self::Locked,
        Self::EmptyFile,
        Self::Hugetlb,
        Self::Shared,
        Self::SharedHuge,
    ];

    pub(crate) fn host_page(self) -> u64 {
        if self == Self::Hugetlb {
            HUGE
        } else {
            PAGE_BYTES
        }
    }

    fn file(self) -> Option<File> {
        let file = match self {
            Self::Anonymous | Self::Transparent | Self::Locked | Self::Hugetlb => return None,
            Self::EmptyFile | Self::FullFile | Self::Shared | Self::SharedHuge => {
                memory_file(PAGES * PAGE_BYTES, false)
            }
        };
        if self == Self::FullFile {
            for page in (0..PAGES).step_by(3) {
                file.write_all_at(&in_file(page), page * PAGE_BYTES)
                    .unwrap();
            }
        }
        Some(file)
    }
}

/// What page `page` of [`Kind::FullFile`]'s file begins with.
pub(crate) fn in_file(page: u64) -> [u8; 8] {
    (page | 1 << 40).to_le_bytes()
}

/// A process with one RAM block.
pub(crate) struct GuestProcess {
    pub(crate) target: Target,
    pub(crate) process: Arc<Process>,
    pub(crate) kind: Kind,
    file: Option<File>,
}

impl GuestProcess {
    pub(crate) fn new(kind: Kind) -> Self {
        let file = kind.file();
        let descriptor = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let target = Target::spawn(move |shared| {
            let memory = map(kind, descriptor);
            shared.set(ADDRESS, memory as u64);
            shared.set(DONE, 1);
            let page = |page| unsafe { memory.add(usize::try_from(page).unwrap() * PAGE_SIZE / 8) };
            for command in 1.. {
                shared.wait(COMMAND, command);
                let (first, count) = (shared.get(FIRST), shared.get(COUNT));
                let value = shared.get(VALUE);
                match shared.get(KIND) {
                    WRITE => (first..first + count)
                        .for_each(|number| unsafe { page(number).write_volatile(number ^ value) }),
                    READ => shared.set(VALUE, unsafe { page(first).read_volatile() }),
                    ADVISE => {
                        let bytes = usize::try_from(count).unwrap() * PAGE_SIZE;
                        let advice = i32::try_from(value).unwrap();
                        let advised = unsafe { libc::madvise(page(first).cast(), bytes, advice) };
                        assert_eq!(advised, 0);
                    }
                    _ => return 0,
                }
                shared.set(DONE, command + 1);
            }
            0
        });
        target.shared.wait(DONE, 1);
        let process = Arc::new(Process::open(target.pid).unwrap());
        Self {
            target,
            process,
            kind,
            file,
        }
    }

    fn command(&self, kind: u64, pages: PageRange, value: u64) {
        let shared = self.target.shared;
        shared.set(KIND, kind);
        shared.set(FIRST, pages.start().index());
        shared.set(COUNT, pages.len());
        shared.set(VALUE, value);
        let number = shared.add(COMMAND, 1) + 1;
        shared.wait(DONE, number + 1);
    }

    /// The process writes each page: its number, XOR `value`.
    pub(crate) fn write(&self, pages: PageRange, value: u64) {
        self.command(WRITE, pages, value);
    }

    /// What the process reads at the beginning of a page.
    pub(crate) fn read(&self, page: u64) -> u64 {
        self.command(READ, PageRange::one(Page::new(page)), 0);
        self.target.shared.get(VALUE)
    }

    /// The process advises the kernel about these pages.
    pub(crate) fn advise(&self, pages: PageRange, advice: i32) {
        self.command(ADVISE, pages, u64::from(advice.unsigned_abs()));
    }

    pub(crate) fn finish(&self) {
        let shared = self.target.shared;
        shared.set(KIND, 0);
        shared.add(COMMAND, 1);
        assert_eq!(self.target.join(), 0, "the process was not disturbed");
    }

    pub(crate) fn address(&self) -> u64 {
        self.target.shared.get(ADDRESS)
    }

    pub(crate) fn ram(&self) -> Arc<GuestRam> {
        let layout = RamLayout::new(vec![RamBlock::new(
            "ram",
            PAGES * PAGE_BYTES,
            self.kind.host_page(),
        )])
        .unwrap();
        let file = self
            .file
            .as_ref()
            .map(|file| RamFile::new(file.try_clone().unwrap(), 0));
        let place = || {
            let process = Arc::clone(&self.process);
            ProcessMemory::open(process, self.address(), PAGES * PAGE_BYTES, true).unwrap()
        };
        let private = || {
            let process = Arc::clone(&self.process);
            PrivateMemory::open(process, self.address(), PAGES * PAGE_BYTES, true).unwrap()
        };
        let backing: Backing = match (self.kind, file) {
            (Kind::Shared, Some(file)) => file.mapped_at(place(), false).into(),
            (Kind::SharedHuge, Some(file)) => file.mapped_at(place(), true).into(),
            (_, Some(file)) => private().over_file(file).into(),
            (_, None) => private().into(),
        };
        Arc::new(GuestRam::new(layout, vec![backing]).unwrap())
    }

    /// Bytes that the process maps as transparent huge pages. All of them are the block's.
    pub(crate) fn huge_bytes(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.target.pid);
        let text = std::fs::read_to_string(path).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.unwrap().parse::<u64>().unwrap() << 10
    }

    /// Memory of the process, in bytes: resident, swapped, and hugetlb.
    pub(crate) fn memory_used(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.target.pid)).unwrap();
        ["RssAnon:", "RssShmem:", "VmSwap:", "HugetlbPages:"]
            .iter()
            .map(|field| {
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix(field))
                    .unwrap();
                let kib = line.trim().strip_suffix(" kB").unwrap();
                kib.parse::<u64>().unwrap() << 10
            })
            .sum()
    }
}

fn map(kind: Kind, file: i32) -> *mut u64 {
    let bytes = usize::try_from(PAGES * PAGE_BYTES).unwrap();
    let flags = match kind {
        Kind::Anonymous | Kind::Transparent | Kind::Locked => {
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        }
        Kind::Hugetlb => {
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB
        }
        Kind::EmptyFile | Kind::FullFile => libc::MAP_PRIVATE,
        Kind::Shared | Kind::SharedHuge => libc::MAP_SHARED,
    };
    // A guard page on each side, as QEMU maps its blocks.
    let huge = usize::try_from(HUGE).unwrap();
    unsafe {
        let reserved = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let place = libc::mmap(
            std::ptr::null_mut(),
            bytes + 3 * huge,
            libc::PROT_NONE,
            reserved,
            -1,
            0,
        );
        assert_ne!(place, libc::MAP_FAILED);
        let place = place.byte_add(PAGE_SIZE);
        let place = place.byte_add(place.align_offset(huge));
        let memory = libc::mmap(
            place,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_FIXED,
            file,
            0,
        );
        let error = std::io::Error::last_os_error();
        assert_eq!(memory, place, "mmap: {error}");
        match kind {
            Kind::Transparent => assert_eq!(libc::madvise(memory, bytes, libc::MADV_HUGEPAGE), 0),
            Kind::Hugetlb => {}
            _ => assert_eq!(libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE), 0),
        }
        if kind == Kind::Locked {
            assert_eq!(libc::mlock(memory, bytes), 0);
        }
        memory.cast()
    }
}
