//! The `PAGEMAP_SCAN` ioctl (Linux 6.7; `linux/fs.h`, `Documentation/admin-guide/mm/pagemap.rst`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use hikkoshi_linux::{HostAddr, HostRange};

use crate::log::DirtyError;

/// The page was written since it was last protected. Do not request any other category: with
/// others, the kernel reports pages that are not populated as clean and does not protect them.
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// Protect the reported pages in the same operation.
const WP_MATCHING: u64 = 1 << 0;
/// Fail if the range contains memory that is not tracked.
const CHECK_WPASYNC: u64 = 1 << 1;

/// Maximum number of runs in one call: 6 KiB of stack, and more than most ranges have.
const REGIONS: usize = 256;

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

/// Whether a scan makes the reported pages clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clear {
    /// Protect the reported pages.
    Yes,
    /// Change nothing. KVM then keeps its mappings.
    No,
}

/// Reports the written runs of `range`, in ascending order. Adjacent runs may be reported
/// separately.
///
/// On an error, pages that were not reported may have been cleared.
pub(crate) fn scan(
    pagemap: &File,
    range: HostRange,
    clear: Clear,
    mut written: impl FnMut(HostRange),
) -> Result<(), DirtyError> {
    let end = range.addr.0.saturating_add(range.len);
    let mut from = range.addr.0;
    while from < end {
        from = scan_once(pagemap, range, from, clear, 0, &mut written)?;
    }
    Ok(())
}

/// Returns the address of the first written page of `range`.
pub(crate) fn first_written(
    pagemap: &File,
    range: HostRange,
) -> Result<Option<HostAddr>, DirtyError> {
    let mut first = None;
    scan_once(pagemap, range, range.addr.0, Clear::No, 1, &mut |found| {
        first = first.or(Some(found.addr));
    })?;
    Ok(first)
}

/// Makes one call (which only a fatal signal interrupts), from `from` to the end of `range`, or
/// until the regions or `max_pages` (if not zero) are used up. Returns the address where it ended.
fn scan_once(
    pagemap: &File,
    range: HostRange,
    from: u64,
    clear: Clear,
    max_pages: u64,
    written: &mut dyn FnMut(HostRange),
) -> Result<u64, DirtyError> {
    let end = range.addr.0.saturating_add(range.len);
    let mut regions = [Region::default(); REGIONS];
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        flags: CHECK_WPASYNC | if clear == Clear::Yes { WP_MATCHING } else { 0 },
        start: from,
        end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: REGIONS as u64,
        max_pages,
        category_mask: PAGE_IS_WRITTEN,
        return_mask: PAGE_IS_WRITTEN,
        ..ScanArgument::default()
    };
    let pointer: *mut ScanArgument = &mut argument;
    // SAFETY: PAGEMAP_SCAN reads and writes this structure and writes at most `vec_len` regions to
    // `vec`, which has that size; both are borrowed during the call. It changes nothing in the
    // process except the protection of its memory.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, pointer) };
    let failed = match usize::try_from(found) {
        Ok(found) => {
            for region in regions.iter().take(found) {
                let length = region.end.saturating_sub(region.start);
                written(HostRange::new(HostAddr(region.start), length));
            }
            // A scan always makes progress. Do not loop forever if it does not.
            if argument.walk_end > from {
                return Ok(argument.walk_end);
            }
            io::Error::other("the scan made no progress: a bug in the kernel or in hikkoshi")
        }
        Err(_) => io::Error::last_os_error(),
    };
    match failed.raw_os_error() {
        Some(libc::EPERM) => Err(DirtyError::NotTracked { range }),
        _ => Err(DirtyError::Scan {
            range,
            source: failed,
        }),
    }
}
