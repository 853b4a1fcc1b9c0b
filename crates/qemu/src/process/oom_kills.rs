//! Whether the kernel has killed QEMU for lack of memory.

use error_reporter::Report;
use hikkoshi_linux::{OomKillCount, OomKills, Process};

/// Begins to count. A failure is logged: then the end of QEMU is reported without that reason.
pub(crate) fn count(process: &Process) -> Option<OomKills> {
    let counted = OomKills::count(process);
    if let Err(error) = &counted {
        let error = Report::new(error);
        tracing::debug!(%error, "counting the processes that the kernel has killed");
    }
    counted.ok()
}

/// The counters as they were read, for another engine.
pub(crate) fn counts(kills: Option<&OomKills>) -> Vec<OomKillCount> {
    kills.map(OomKills::counts).unwrap_or_default()
}

/// Why a QEMU that has ended since [`count`] probably did so.
pub(crate) fn since(kills: Option<&OomKills>) -> Option<String> {
    Some(kills?.since()?.to_string())
}

/// Why a QEMU that has ended since another engine counted probably did so.
pub(crate) fn since_counted(before: &[OomKillCount]) -> Option<String> {
    since(Some(&OomKills::counted(before)))
}
