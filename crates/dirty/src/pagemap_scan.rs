//! The `PAGEMAP_SCAN` ioctl (Linux 6.7; `linux/fs.h`, `Documentation/admin-guide/mm/pagemap.rst`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use hikkoshi_linux::{HostAddr, HostRange};

use crate::log::DirtyError;

/// The page was written since it was last protected. It must stay the only category asked for: with
/// others beside it the kernel reports what is not populated as clean, and does not protect it.
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// Protect what is reported, in the same step.
const WP_MATCHING: u64 = 1 << 0;
/// Fail if the range has memory that is not tracked.
const CHECK_WPASYNC: u64 = 1 << 1;

/// Runs that the kernel reports at once: 6 KiB of stack, and more than most pieces have.
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

/// Whether a scan makes clean what it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clear {
    /// It does.
    Yes,
    /// It changes nothing. KVM keeps its mappings then, too.
    No,
}

/// The written runs of `range`, in ascending order. Runs that touch may come in parts.
///
/// When it fails, some that were not reported may have been cleared.
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

/// The first written page of `range`.
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

/// One call (which only a deadly signal interrupts), from `from` to the end of `range` or until the regions or `max_pages` (if not zero) are
/// used up. Returns where it ended.
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
    // SAFETY: PAGEMAP_SCAN takes this structure and writes at most `vec_len` regions to `vec`, which
    // is that large; both are borrowed for the length of the call. Of the process's memory it changes
    // nothing but its protection.
    let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, pointer) };
    let failed = match usize::try_from(found) {
        Ok(found) => {
            for region in regions.iter().take(found) {
                let length = region.end.saturating_sub(region.start);
                written(HostRange::new(HostAddr(region.start), length));
            }
            // It always gets somewhere; if not, this must not become an endless loop.
            if argument.walk_end > from {
                return Ok(argument.walk_end);
            }
            io::Error::other("the scan made no progress, this is a bug of the kernel or of ours")
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
