//! Userfaultfds that an earlier hikkoshi process left in QEMU.

use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_userfault::{Features, OpenUserfault, close_remote};

use super::AttachError;
use crate::process;

/// Whether a userfaultfd is a dirty log of hikkoshi. QEMU does not use asynchronous write
/// protection, so a userfaultfd with it comes from another run of hikkoshi.
pub(crate) fn is_dirty_log(stale: &OpenUserfault) -> bool {
    stale.features.contains(Features::WP_ASYNC)
}

/// Refuses a source with a userfaultfd that is not a dirty log of a killed run.
pub(super) fn check(process: &Arc<Process>) -> Result<(), AttachError> {
    let left = process::userfaults(process)?;
    match left.iter().find(|stale| !is_dirty_log(stale)) {
        None => Ok(()),
        Some(stale) => Err(refuse(
            process.pid(),
            stale,
            "an earlier post-copy migration into it has not ended, or was killed, and pages may be \
             missing; wait until it ends; if none is in progress, the guest may have lost pages: do \
             not move it, but examine it",
        )),
    }
}

/// What would be removed from a source, if anything, for people.
pub(crate) fn note(process: &Arc<Process>) -> Option<String> {
    let left = process::userfaults(process).ok()?;
    let dirty_logs = left.iter().filter(|stale| is_dirty_log(stale)).count();
    (dirty_logs > 0).then(|| {
        format!(
            "QEMU has {dirty_logs} dirty log(s) of a killed hikkoshi; the next migration or measurement closes them"
        )
    })
}

/// Closes dirty logs of killed runs. This is safe: no thread waits for a dirty log. Other
/// userfaultfds are an error.
pub(crate) fn remove(process: &Arc<Process>) -> Result<(), AttachError> {
    check(process)?;
    let pid = process.pid();
    for stale in process::userfaults(process)? {
        if !is_dirty_log(&stale) {
            continue;
        }
        tracing::warn!(
            pid,
            number = stale.number,
            "closing a dirty log that a killed run left in QEMU"
        );
        close_remote(process, stale.number)
            .map_err(|source| AttachError::Leftover { pid, source })?;
    }
    Ok(())
}

/// Refuses a destination with a userfaultfd: a part of a guest was written to its memory.
pub(super) fn refuse_all(process: &Arc<Process>) -> Result<(), AttachError> {
    match process::userfaults(process)?.first() {
        None => Ok(()),
        Some(stale) => Err(refuse(
            process.pid(),
            stale,
            "a part of a guest was written to its memory by a migration that was interrupted; \
             restart this QEMU",
        )),
    }
}

fn refuse(pid: u32, stale: &OpenUserfault, advice: &'static str) -> AttachError {
    AttachError::Userfault {
        pid,
        number: stale.number,
        features: stale.features.to_string(),
        advice,
    }
}
