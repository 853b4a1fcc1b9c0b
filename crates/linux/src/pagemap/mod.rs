//! `/proc/PID/pagemap`: which pages of a process are present, swapped or written
//! (`Documentation/admin-guide/mm/pagemap.rst`).

mod entry;
mod presence;

use std::fs::File;
use std::io;
use std::ops::BitOr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use crate::address::{HostAddr, HostRange};
use crate::process::Process;

/// Properties of a page, as the `PAGEMAP_SCAN` ioctl reports them (`linux/fs.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCategories(u64);

impl PageCategories {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Written since it was last write-protected.
    pub const WRITTEN: Self = Self(1 << 1);
    /// In memory, and mapped.
    pub const PRESENT: Self = Self(1 << 3);
    /// Swapped out, or being moved, or a marker in place of a page.
    pub const SWAPPED: Self = Self(1 << 4);

    /// The categories of both sets, as `|`, which constants cannot use.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every category of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for PageCategories {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

/// What a scan reports and does.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageQuery {
    /// Only pages that have all of these.
    pub all_of: PageCategories,
    /// Only pages that have any of these, if it is not empty.
    pub any_of: PageCategories,
    /// Only pages that have none of these.
    pub none_of: PageCategories,
    /// The categories that are reported.
    pub report: PageCategories,
    /// Write-protect the reported pages in the same operation.
    pub protect: bool,
    /// Fail with `EPERM` if the range contains memory that a userfaultfd does not write-protect
    /// asynchronously.
    pub only_tracked: bool,
    /// End after so many pages; 0: no limit.
    pub max_pages: u64,
    /// End before the region that would be one more; 0, or more than 256: that many.
    pub max_regions: usize,
}

/// Maximum number of regions that one scan reports: 6 KiB of stack, and more than most ranges have.
pub(crate) const MAX_REGIONS: usize = 256;

/// The pagemap of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    /// The kernel has no `PAGEMAP_SCAN` (Linux 6.7).
    entries_only: AtomicBool,
}

impl Pagemap {
    /// Opens the pagemap of `process`, or of this process.
    ///
    /// # Errors
    ///
    /// As `open(2)`: it requires the process's user or `CAP_SYS_PTRACE`.
    pub fn open(process: Option<&Process>) -> io::Result<Self> {
        let file = match process {
            Some(process) => process.open_proc("pagemap"),
            None => File::open("/proc/self/pagemap"),
        }?;
        Ok(Self {
            file,
            entries_only: AtomicBool::new(false),
        })
    }

    /// Makes one `PAGEMAP_SCAN` call (Linux 6.7), which only a fatal signal interrupts. Calls
    /// `found` with adjacent pages that have the same categories, in ascending order. Returns where
    /// the scan ended: the end of `range`, or where a limit of `query` was reached.
    ///
    /// On an error with [`PageQuery::protect`], pages that were not reported may have been
    /// protected.
    ///
    /// # Errors
    ///
    /// As the ioctl: `ENOTTY` when the kernel does not have it.
    pub fn scan(
        &self,
        range: HostRange,
        query: &PageQuery,
        found: &mut dyn FnMut(HostRange, PageCategories),
    ) -> io::Result<HostAddr> {
        let mut regions = [Region::default(); MAX_REGIONS];
        let most = match query.max_regions {
            0 => MAX_REGIONS,
            most => most.min(MAX_REGIONS),
        };
        let protect = if query.protect { WP_MATCHING } else { 0 };
        let tracked = if query.only_tracked { CHECK_WPASYNC } else { 0 };
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags: protect | tracked,
            start: range.addr.0,
            end: range.addr.0.saturating_add(range.len),
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: most as u64,
            max_pages: query.max_pages,
            category_inverted: query.none_of.0,
            category_mask: query.all_of.0 | query.none_of.0,
            category_anyof_mask: query.any_of.0,
            return_mask: query.report.0,
            ..ScanArgument::default()
        };
        let pointer: *mut ScanArgument = &mut argument;
        // SAFETY: PAGEMAP_SCAN reads and writes this structure and writes at most `vec_len` regions
        // to `vec`, which has at least that size; both are borrowed during the call. It changes
        // nothing in the process except the protection of its memory.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, pointer) };
        let Ok(count) = usize::try_from(count) else {
            return Err(io::Error::last_os_error());
        };
        for region in regions.iter().take(count) {
            let length = region.end.saturating_sub(region.start);
            found(
                HostRange::new(HostAddr(region.start), length),
                PageCategories(region.categories),
            );
        }
        // A scan always makes progress. Do not let the caller loop forever if it does not.
        if argument.walk_end > range.addr.0 || range.len == 0 {
            return Ok(HostAddr(argument.walk_end));
        }
        Err(io::Error::other(
            "the scan made no progress: a bug in the kernel or in hikkoshi",
        ))
    }

    /// Whether the process still has its memory. An exiting process gives it up some time before it
    /// counts as ended (10 ms and more for 256 MiB), and page tables that are gone look as if the
    /// memory had never been touched. Linux 6.18 refuses to scan them (`ESRCH`); that is not
    /// documented. So ask after a scan that found something absent: if the memory is there now, the
    /// scan was right.
    ///
    /// # Errors
    ///
    /// As `read(2)`.
    pub fn has_memory(&self) -> io::Result<bool> {
        // The kernel returns an entry, of whatever page, as long as a task uses the address space
        // (`pagemap_read` in `fs/proc/task_mmu.c`).
        let mut entry = [0; entry::ENTRY_BYTES];
        loop {
            match self.file.read_at(&mut entry, 0) {
                Ok(read) => return Ok(read > 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the entries of the pages from `from` on.
    fn entries(&self, from: HostAddr, entries: &mut [u8]) -> io::Result<()> {
        let at = from.0 / entry::PAGE_BYTES * entry::ENTRY_BYTES as u64;
        self.file.read_exact_at(entries, at)
    }
}

/// Protect the reported pages in the same operation.
const WP_MATCHING: u64 = 1 << 0;
/// Fail if the range contains memory that is not tracked.
const CHECK_WPASYNC: u64 = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::Ioctl = (3 << 30)
    | ((size_of::<ScanArgument>() as libc::Ioctl) << 16)
    | ((b'f' as libc::Ioctl) << 8)
    | 16;

const _: () = assert!(size_of::<ScanArgument>() == 96);
