//! A QEMU with an unfinished migration does not take part in another one. What both sides share.

use std::io;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_qemu::FindProcessError;

use crate::commands::find_journal::{may_exist, may_listen};
use crate::journal::{self, Entry};
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;

/// Calls `check` with each journal in `folder` of an unfinished migration whose QEMU may be the one
/// behind `qmp`, until one fails.
///
/// `cannot_tell` makes the error for a journal whose QEMU may exist or not.
pub(super) fn check_folder<E: Entry>(
    folder: &Path,
    qmp: &Path,
    unreadable: impl Fn(io::Error) -> Exit,
    cannot_tell: impl Fn(&FindProcessError, &Path) -> Exit,
    check: impl Fn(&Path, &E) -> Result<(), Exit>,
) -> Result<(), Exit> {
    if journal::is_hidden(folder) {
        // A user without the right to read it cannot attach to QEMU either, which is reported then.
        return Ok(());
    }
    for (path, entry) in journal::find::<E>(folder, Some(qmp)).map_err(unreadable)? {
        let exists = may_exist(entry.identity()).map_err(|error| cannot_tell(&error, &path))?;
        if exists && may_listen(qmp, entry.identity()) {
            check(&path, &entry)?;
        }
    }
    Ok(())
}

/// The folder with the journals cannot be searched. `subject`: what was to be migrated.
pub(super) fn unreadable(subject: &str) -> impl Fn(io::Error) -> Exit {
    move |error| {
        let what = format!(
            "looking for an earlier migration {subject}: {}",
            Report::new(&error)
        );
        Exit::new(Status::AtSource, Reason::Journal, what).with("nothing was changed")
    }
}

/// Refuses a migration because of an unfinished one, which the command `again` resumes.
pub(super) fn refuse(what: &str, next: String, again: String) -> Exit {
    Exit::new(Status::Unfinished, Reason::Unfinished, what)
        .with(next)
        .resumed_by(again)
}
