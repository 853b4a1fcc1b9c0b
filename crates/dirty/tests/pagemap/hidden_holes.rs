//! Kernels that do not report holes without a page table. The defect is put between the log and
//! this kernel.

use std::io;
use std::sync::Arc;

use hikkoshi_dirty::contract_tests;
use hikkoshi_dirty::{PagemapLog, Scan};
use hikkoshi_linux::{HostAddr, HostRange, PageCategories, PageQuery, Pagemap};
use hikkoshi_userfault::RemoteUserfault;

use crate::process::Process;
use crate::{BLOCKS, MIB, SMALL};

/// What a page table maps.
const TABLE: u64 = 2 * MIB;

/// A kernel that frees a page table as soon as it is empty, and then neither reports nor protects
/// what it mapped: Linux 6.14 to 7.0 with `CONFIG_PT_RECLAIM`.
#[derive(Debug)]
pub(super) struct HidesHoles(pub(super) Arc<Pagemap>);

impl HidesHoles {
    /// Whether nothing is left in the page table for `address`.
    fn is_freed(&self, address: u64) -> io::Result<bool> {
        let table = HostRange::new(HostAddr(address - address % TABLE), TABLE);
        let query = PageQuery {
            none_of: PageCategories::PRESENT | PageCategories::SWAPPED,
            ..PageQuery::default()
        };
        let mut empty = 0;
        self.0
            .scan(table, &query, &mut |hole, _| empty += hole.len)?;
        Ok(empty == TABLE)
    }
}

impl Scan for HidesHoles {
    fn scan(
        &self,
        range: HostRange,
        query: &PageQuery,
        found: &mut dyn FnMut(HostRange, PageCategories),
    ) -> io::Result<HostAddr> {
        if query.all_of != PageCategories::WRITTEN {
            return self.0.scan(range, query, found);
        }
        let end = range.addr.0 + range.len;
        let mut at = range.addr.0;
        let mut pages = 0;
        while at < end {
            let table_end = (at - at % TABLE + TABLE).min(end);
            if self.is_freed(at)? {
                at = table_end;
                continue;
            }
            // 0 is no limit, and the scan ends when the limit is reached.
            let rest = PageQuery {
                max_pages: query.max_pages.saturating_sub(pages),
                ..*query
            };
            let part = HostRange::new(HostAddr(at), table_end - at);
            at = self
                .0
                .scan(part, &rest, &mut |run, categories| {
                    pages += run.len / SMALL;
                    found(run, categories);
                })?
                .0;
            if at < table_end || (query.max_pages != 0 && pages >= query.max_pages) {
                break;
            }
        }
        Ok(HostAddr(at))
    }
}

/// Starts the log of a process on a kernel that hides holes, or on this one.
pub(super) fn start(
    process: &Process,
    taken: &RemoteUserfault,
    known: bool,
    hides: bool,
) -> PagemapLog {
    let kernel = |pagemap: Arc<Pagemap>| -> Arc<dyn Scan> {
        if hides {
            Arc::new(HidesHoles(pagemap))
        } else {
            pagemap
        }
    };
    let userfault = Arc::clone(taken.userfault());
    let log = PagemapLog::start_with(userfault, &process.layout, &process.hosts(), !known, kernel)
        .unwrap();
    log.protect(process.layout.all()).unwrap();
    log
}

#[test]
fn the_log_finds_holes_that_the_kernel_hides() {
    for process in [Process::new(&BLOCKS), Process::private(&BLOCKS)] {
        let taken = process.take_userfault();
        let log = start(&process, &taken, true, true);
        contract_tests::check(&process, &log);
        taken.close_remote().unwrap();
    }
}

#[test]
fn the_log_finds_holes_that_the_kernel_reports() {
    for process in [Process::new(&BLOCKS), Process::private(&BLOCKS)] {
        let taken = process.take_userfault();
        let log = start(&process, &taken, true, false);
        contract_tests::check(&process, &log);
        taken.close_remote().unwrap();
    }
}

/// The contract tests notice a kernel that hides holes from a log that does not look for them.
#[test]
fn a_hidden_hole_is_noticed() {
    for process in [Process::new(&BLOCKS), Process::private(&BLOCKS)] {
        let taken = process.take_userfault();
        let log = start(&process, &taken, false, true);
        let check = std::panic::AssertUnwindSafe(|| contract_tests::check(&process, &log));
        let panic = std::panic::catch_unwind(check).unwrap_err();
        let message = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains("dropped pages are dirty"), "{message}");
        taken.close_remote().unwrap();
    }
}
