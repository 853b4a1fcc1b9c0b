//! A guest whose previous migration is not finished is not migrated, whatever QEMU reports as its
//! state.

use std::error::Error;
use std::path::Path;

use hikkoshi_engine::Observer;
use hikkoshi_handover::SourceStage;
use hikkoshi_qemu::qmp::Monitor;

use crate::commands::guard;
use crate::commands::resume_command::resume_command;
use crate::commands::unfinished_migration::{self, Searched};
use crate::journal::{JournalFile, SourceEntry};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};

/// Looks for unfinished migrations of the guest behind `monitor`. Undoes one that was interrupted
/// before the handover, and refuses others.
pub(super) fn check_folder(
    folder: &Path,
    monitor: &dyn Monitor,
    observer: &dyn Observer,
) -> Result<(), Exit> {
    let unreadable = unfinished_migration::unreadable("of this guest");
    for found in unfinished_migration::find::<SourceEntry>(folder, Searched::Behind(monitor))
        .map_err(&unreadable)?
    {
        let (path, _) = found.map_err(|unknown| cannot_tell(&unknown.error, &unknown.path))?;
        // Another process may be working on it, and end soon.
        let file = JournalFile::lock(&path).map_err(|error| {
            Exit::new(ExitStatus::Unfinished, Reason::Unfinished, error)
                .with("this command has changed nothing")
        })?;
        if let Some(entry) = file.read::<SourceEntry>().map_err(&unreadable)? {
            undo_interrupted(&file, &entry, observer)?;
        }
    }
    Ok(())
}

/// Undoes a migration whose engine and guard were both killed before the handover.
fn undo_interrupted(
    file: &JournalFile,
    entry: &SourceEntry,
    observer: &dyn Observer,
) -> Result<(), Exit> {
    if entry.engine.stage != SourceStage::Owned {
        return Err(refuse(entry, file.path()));
    }
    match guard::restore(file, entry) {
        Ok(outcome) if guard::is_complete(entry, &outcome) => {
            observer.notice(
                "an earlier migration of this guest was interrupted before the handover: its \
                 changes to QEMU were undone",
            );
            Ok(())
        }
        Ok(_) => Err(refuse(entry, file.path())),
        Err(error) => {
            let again = resume_command::<SourceEntry>(file.path());
            let next = format!(
                "an earlier migration of this guest was interrupted before the handover and cannot \
                 be undone: the guest may be paused. When the cause is removed: {again}"
            );
            Err(
                Exit::caused(ExitStatus::Unfinished, Reason::Unfinished, &error)
                    .with(next)
                    .held_by(Holder::Source)
                    .resumed_by(again),
            )
        }
    }
}

/// Refuses to migrate the guest of an unfinished migration.
pub(super) fn refuse(entry: &SourceEntry, path: &Path) -> Exit {
    let again = resume_command::<SourceEntry>(path);
    if entry.engine.stage == SourceStage::Owned {
        let what = "an earlier migration of this guest was interrupted before the handover, and \
                    the guest does not run";
        let next = format!("resume it, then repeat this command: {again}");
        return unfinished_migration::refuse(what, next, again).held_by(Holder::Source);
    }
    if entry.engine.stage == SourceStage::Done {
        let next =
            format!("nothing was changed. Never continue it here; this command ends it: {again}");
        return Exit::new(
            ExitStatus::Usage,
            Reason::Unfinished,
            unfinished_migration::MOVED,
        )
        .with(next)
        .held_by(Holder::Destination)
        .resumed_by(again);
    }
    let next = format!("resume that migration: {again}");
    unfinished_migration::refuse(unfinished_migration::HANDED_OVER, next, again)
}

/// hikkoshi cannot find out whether the journal at `path` is about this guest.
pub(super) fn cannot_tell(error: &dyn Error, path: &Path) -> Exit {
    let next = format!(
        "{}, so nothing was changed. Remove that file only if you know that the guest was not \
         handed over",
        unfinished_migration::may_be_handed_over(path)
    );
    Exit::caused(ExitStatus::Unfinished, Reason::Journal, error).with(next)
}
