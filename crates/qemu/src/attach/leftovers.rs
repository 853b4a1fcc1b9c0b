//! Leftovers.

use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_userfault::{Features, Leftover, close_remote};

use super::AttachError;
use super::process;

/// Whether a userfaultfd is a dirty log of ours. QEMU has no use for
/// asynchronous write protection, so one with it that we did not make was made
/// by another run of ours.
pub(crate) fn is_dirty_log(leftover: &Leftover) -> bool {
    leftover.features.contains(Features::WP_ASYNC)
}

/// A dirty log holds nobody up: nobody waits for its writes. So one that a
/// killed run left is closed, which ends it.
pub(super) fn remove(process: &Arc<Process>) -> Result<(), AttachError> {
    let pid = process.pid();
    for leftover in process::userfaults(process)? {
        if !is_dirty_log(&leftover) {
            return Err(refuse(
                pid,
                &leftover,
                "wait for its end; if none is under way, the guest may have lost pages: do not \
                 move it, but look at it",
            ));
        }
        tracing::warn!(
            pid,
            number = leftover.number,
            "closing a dirty log that a killed run left in QEMU"
        );
        close_remote(process, leftover.number)
            .map_err(|source| AttachError::Leftover { pid, source })?;
    }
    Ok(())
}

/// At a destination a userfaultfd means a guest, or half of one.
pub(super) fn refuse_all(process: &Arc<Process>) -> Result<(), AttachError> {
    match process::userfaults(process)?.first() {
        None => Ok(()),
        Some(leftover) => Err(refuse(
            process.pid(),
            leftover,
            "start the destination's QEMU afresh",
        )),
    }
}

fn refuse(pid: u32, leftover: &Leftover, advice: &'static str) -> AttachError {
    AttachError::Userfault {
        pid,
        number: leftover.number,
        features: leftover.features.to_string(),
        advice,
    }
}
