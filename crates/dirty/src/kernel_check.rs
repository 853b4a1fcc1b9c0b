//! Whether this kernel can track writes: tested with real memory, not derived from its version.

use std::sync::Arc;

use hikkoshi_pages::{LayoutError, PAGE_BYTES, Page, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, Userfault};

use crate::log::{DirtyError, DirtyLog};
use crate::pagemap::{PagemapLog, StartError, TEST_BYTES, TestMemory};
use crate::unsupported_kernel::UnsupportedKernel;

/// Tests write tracking on some memory of this process: pages written before tracking, pages
/// written again, and pages first accessed while tracking.
///
/// # Errors
///
/// Says what is missing, and which kernel has it.
pub fn support() -> Result<(), UnsupportedKernel> {
    let userfault = Arc::new(Userfault::create_for_self(Features::FOR_DIRTY_LOG)?);
    let memory = TestMemory::new()?;
    let layout = RamLayout::new(vec![RamBlock::new("test memory", TEST_BYTES, PAGE_BYTES)])
        .map_err(|error: LayoutError| UnsupportedKernel::Tracking(error.into()))?;
    // Two pages are populated before, and one of them is written again; the last page has no page
    // table.
    let (kept, rewritten, fresh) = (1, 2, (TEST_BYTES - PAGE_BYTES) / PAGE_BYTES);
    memory.write(kept);
    memory.write(rewritten);
    let log = PagemapLog::start(userfault, &layout, &[memory.address()])
        .map_err(|error: StartError| UnsupportedKernel::Tracking(error.into()))?;
    memory.write(rewritten);
    memory.write(fresh);
    let take = || {
        let mut found = Vec::new();
        log.take(layout.all(), &mut |run: PageRange| {
            found.extend(run.iter().map(Page::index));
        })
        .map_err(|error: DirtyError| UnsupportedKernel::Tracking(error.into()))?;
        Ok::<_, UnsupportedKernel>(found)
    };
    for expected in [vec![rewritten, fresh], vec![]] {
        let found = take()?;
        if found != expected {
            return Err(UnsupportedKernel::Wrong { expected, found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_can_track_writes() {
        support().unwrap();
    }
}
