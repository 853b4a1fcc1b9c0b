//! Whether this kernel reports holes as written: tested with real memory.

use std::error::Error;
use std::sync::OnceLock;

use error_reporter::Report;
use hikkoshi_linux::{HostRange, Pagemap};
use hikkoshi_userfault::{Features, RegisterMode, Userfault};

use super::scan::{Clear, scan};
use super::test_memory::{TEST_BYTES, TestMemory};

/// Whether this kernel reports holes as written, also where there is no page table. A hole is left
/// where pages were dropped, and it may be a hole that the guest relies on.
///
/// Tested once, with memory that was never used: whether the kernel frees a page table at that
/// moment does not matter. Shared memory stands for private memory as well. If it cannot be tested,
/// the kernel counts as one that does not.
pub(super) fn reports_holes() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        test_holes().unwrap_or_else(|error| {
            let error = Report::new(&*error);
            tracing::warn!(%error, "cannot test whether the kernel reports holes as written");
            false
        })
    })
}

fn test_holes() -> Result<bool, Box<dyn Error>> {
    let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG)?;
    let memory = TestMemory::new()?;
    let range = HostRange::new(memory.address(), TEST_BYTES);
    userfault.register(range, RegisterMode::WRITE_PROTECT)?;
    let mut reported = 0;
    scan(
        &Pagemap::open(None)?,
        range,
        Clear::No,
        |written: HostRange| reported += written.len,
    )?;
    Ok(reported == TEST_BYTES)
}
