//! A QEMU with an unfinished incoming migration does not receive another guest.

use std::io;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_handover::DestinationStage;
use hikkoshi_qemu::qmp::Monitor;

use crate::commands::resume_command::resume_command;
use crate::commands::unfinished_migration::{self, Searched, Undecided};
use crate::journal::DestinationEntry;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::{Holder, Reason};

/// Looks for unfinished migrations into the QEMU behind `monitor`, and refuses them.
pub(super) fn check_folder(folder: &Path, monitor: &dyn Monitor) -> Result<(), Exit> {
    let unreadable = unfinished_migration::unreadable("into this QEMU");
    let mut found =
        unfinished_migration::find::<DestinationEntry>(folder, Searched::Behind(monitor))
            .map_err(&unreadable)?;
    match found.next() {
        None => Ok(()),
        Some(Ok((path, entry))) => Err(refuse(&path, entry.engine.stage)),
        Some(Err(Undecided { path, error })) => {
            let (error, journal) = (Report::new(&error), path.display());
            Err(unreadable(io::Error::other(format!(
                "{error} (according to {journal}; remove it if it is not needed)"
            ))))
        }
    }
}

/// Refuses a QEMU whose journal cannot be read.
pub(super) fn unreadable(journal: &Path, error: &io::Error) -> Exit {
    let next = format!(
        "according to {} this QEMU may have a guest already, so nothing was changed. Remove that \
         file only if you know that it has none",
        journal.display()
    );
    Exit::caused(ExitStatus::Unfinished, Reason::Journal, error).with(next)
}

/// Refuses a QEMU that has a guest of an unfinished migration, or may get one.
pub(super) fn refuse(journal: &Path, stage: DestinationStage) -> Exit {
    let again = resume_command::<DestinationEntry>(journal);
    let (what, next) = match stage {
        DestinationStage::Complete => (
            "this QEMU already has a guest, with all of its pages, but its source may not know that",
            format!("to report it to the source: {again}. For another guest, start another QEMU"),
        ),
        _ => (
            "this QEMU already has an unfinished incoming migration",
            format!("resume it: {again}"),
        ),
    };
    let holder = match stage {
        DestinationStage::Running | DestinationStage::Complete => Holder::Destination,
        DestinationStage::Declined => Holder::Source,
        DestinationStage::Receiving | DestinationStage::Ready => Holder::Undecided,
    };
    unfinished_migration::refuse(what, next, again).held_by(holder)
}
