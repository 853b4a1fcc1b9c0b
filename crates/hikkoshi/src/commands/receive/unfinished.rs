//! A QEMU with an unfinished incoming migration does not receive another guest.

use std::io;
use std::path::Path;

use hikkoshi_handover::DestinationStage;
use hikkoshi_qemu::FindProcessError;

use crate::commands::find_journal::{may_exist, may_listen};
use crate::commands::resume_command::resume_command;
use crate::journal::{self, DestinationEntry};
use crate::output::error_chain;
use crate::output::exit::{Exit, Status};
use crate::output::reason::{Holder, Reason};

/// Looks for unfinished migrations into the QEMU behind `qmp`, and refuses them.
pub fn check_folder(folder: &Path, qmp: &Path) -> Result<(), Exit> {
    if journal::is_hidden(folder) {
        // A user without the right to read it cannot attach to QEMU either, which is reported then.
        return Ok(());
    }
    let found = journal::find::<DestinationEntry>(folder, Some(qmp)).map_err(unreadable)?;
    for (path, entry) in found {
        let cannot_tell = |error: FindProcessError| {
            let (error, journal) = (error_chain::text(&error), path.display());
            unreadable(io::Error::other(format!(
                "{error} (according to {journal}; remove it if it is not needed)"
            )))
        };
        if may_exist(&entry.qemu.identity).map_err(cannot_tell)?
            && may_listen(qmp, &entry.qemu.identity)
        {
            return Err(refuse(&path, entry.engine.stage));
        }
    }
    Ok(())
}

fn unreadable(error: io::Error) -> Exit {
    let what = format!("looking for an earlier migration into this QEMU: {error}");
    Exit::new(Status::AtSource, Reason::Journal, what).with("nothing was changed")
}

/// Refuses a QEMU that has a guest of an unfinished migration, or may get one.
pub fn refuse(journal: &Path, stage: DestinationStage) -> Exit {
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
    Exit::new(Status::Paused, Reason::Unfinished, what)
        .with(next)
        .held_by(holder)
        .resumed_by(again)
}
