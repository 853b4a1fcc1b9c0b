//! Scans for written pages (`PAGEMAP_SCAN`, see [`Pagemap::scan`]).

use hikkoshi_linux::{HostAddr, HostRange, PageCategories, PageQuery, Pagemap};

use crate::log::DirtyError;

/// Written pages of tracked memory. Do not request any other category: with others, the kernel
/// reports pages that are not populated as clean and does not protect them.
const WRITTEN: PageQuery = PageQuery {
    all_of: PageCategories::WRITTEN,
    any_of: PageCategories::NONE,
    report: PageCategories::WRITTEN,
    protect: false,
    only_tracked: true,
    max_pages: 0,
    max_regions: 0,
};

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
    pagemap: &Pagemap,
    range: HostRange,
    clear: Clear,
    mut written: impl FnMut(HostRange),
) -> Result<(), DirtyError> {
    let query = PageQuery {
        protect: clear == Clear::Yes,
        ..WRITTEN
    };
    let end = range.addr.0.saturating_add(range.len);
    let mut rest = range;
    while rest.len > 0 {
        let reached = scan_once(pagemap, range, rest, &query, &mut written)?;
        rest = HostRange::new(reached, end.saturating_sub(reached.0));
    }
    Ok(())
}

/// Returns the address of the first written page of `range`.
pub(crate) fn first_written(
    pagemap: &Pagemap,
    range: HostRange,
) -> Result<Option<HostAddr>, DirtyError> {
    let query = PageQuery {
        max_pages: 1,
        ..WRITTEN
    };
    let mut first = None;
    scan_once(pagemap, range, range, &query, &mut |found| {
        first = first.or(Some(found.addr));
    })?;
    Ok(first)
}

/// Makes one call for `rest`, the rest of `range`. Returns where it ended.
fn scan_once(
    pagemap: &Pagemap,
    range: HostRange,
    rest: HostRange,
    query: &PageQuery,
    written: &mut dyn FnMut(HostRange),
) -> Result<HostAddr, DirtyError> {
    pagemap
        .scan(rest, query, &mut |found, _| written(found))
        .map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => DirtyError::NotTracked { range },
            _ => DirtyError::Scan { range, source },
        })
}
