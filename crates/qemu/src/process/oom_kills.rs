//! Whether the kernel has killed QEMU for lack of memory.

use error_reporter::Report;
use hikkoshi_linux::{OomKills, Process};

/// Begins to count. A failure is logged: then the end of QEMU is reported without that reason.
pub(crate) fn count(process: &Process) -> Option<OomKills> {
    let counted = OomKills::count(process);
    if let Err(error) = &counted {
        let error = Report::new(error);
        tracing::debug!(%error, "counting the processes that the kernel has killed");
    }
    counted.ok()
}

/// Why a QEMU that has ended since [`count`] probably did so.
pub(crate) fn since(kills: Option<&OomKills>) -> Option<String> {
    Some(kills?.since()?.to_string())
}
