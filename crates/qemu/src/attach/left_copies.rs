//! What a killed engine has left in QEMU of copies of disks: block jobs at the source, the NBD
//! server at the destination.
//!
//! Usually the engine's guard, or `hikkoshi migrate --resume`, has removed the jobs, and a new QEMU
//! takes the place of the one with the server. If neither has happened, whoever attaches next does
//! it. No engine needs them: its connections ended with it, and one that runs has exclusive access.

use error_reporter::Report;
use hikkoshi_account::Side;
use hikkoshi_wire::MAX_COPIED_DISKS;

use super::AttachError;
use super::inspect::{Inspection, inspect};
use super::preflight::{Allowed, Refusal};
use crate::disks::end_copies;
use crate::disks::exports;
use crate::process::exclusive_access;

/// Removes what was left, if no other process has the guest, and then inspects QEMU again. A
/// failure is logged: then the obstacle stays.
pub(super) fn remove(
    mut found: Inspection,
    side: Side,
    allowed: &Allowed,
) -> Result<Inspection, AttachError> {
    let Some(process) = &found.process else {
        return Ok(found);
    };
    let is_copy = |obstacle: &AttachError| {
        let AttachError::Refused(refusal) = obstacle else {
            return false;
        };
        matches!(refusal, Refusal::Copy { .. })
    };
    let is_left = match side {
        Side::Source => found.obstacles.iter().any(is_copy),
        Side::Destination => exports::has_exports(&mut found.client).map_err(Refusal::Qmp)?,
    };
    if !is_left {
        return Ok(found);
    }
    let Ok(lock) = exclusive_access::acquire(process) else {
        // Attaching reports that.
        return Ok(found);
    };
    let removed: Result<(), String> = match side {
        Side::Source => end_copies::end(&mut found.client, MAX_COPIED_DISKS).map_err(text),
        Side::Destination => exports::stop(&mut found.client).map_err(text),
    };
    drop(lock);
    let what = match side {
        Side::Source => "copies of the guest's disks that a killed engine has left",
        Side::Destination => "the server of disks that a killed engine has left in QEMU",
    };
    if let Err(error) = removed {
        tracing::warn!(error, "ending {what}");
        return Ok(found);
    }
    tracing::warn!("ended {what}");
    inspect(found.client, side, allowed)
}

fn text(error: impl std::error::Error) -> String {
    Report::new(error).to_string()
}
