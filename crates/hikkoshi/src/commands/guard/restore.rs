//! Restores a guest whose migration was interrupted before the handover.

use hikkoshi_qemu::{UndoError, UndoOutcome};

use crate::commands::monitor;
use crate::journal::{JournalFile, SourceEntry};

/// Resumes the guest if it was paused, and restores what was changed in QEMU. The journal
/// is removed if nothing else is to be done.
///
/// # Errors
/// See [`UndoError`]; the journal stays.
pub(crate) fn restore(file: &JournalFile, entry: &SourceEntry) -> Result<UndoOutcome, UndoError> {
    let monitor = monitor::at_address(&entry.qemu.identity.monitor);
    let outcome = hikkoshi_qemu::undo(&entry.qemu.identity, &entry.qemu.undo, &*monitor)?;
    if is_complete(entry, &outcome) {
        file.remove();
    }
    Ok(outcome)
}

/// Whether nothing is left to do: the guest was not stopped by the migration, or runs again, or
/// has ended.
pub(crate) fn is_complete(entry: &SourceEntry, outcome: &UndoOutcome) -> bool {
    entry.qemu.undo.stopped != Some(true)
        || match outcome {
            UndoOutcome::QemuExited => true,
            UndoOutcome::Restored { state } => state == "running",
        }
}
