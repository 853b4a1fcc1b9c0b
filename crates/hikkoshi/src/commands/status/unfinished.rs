//! Migrations that are not finished and that no engine works on, by their journals.

use std::path::{Path, PathBuf};

use error_reporter::Report;
use hikkoshi_engine::report::Live;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::Address;
use hikkoshi_status::Side;
use hikkoshi_wire::{MigrationId, Mode};

use crate::commands::find_journal::may_exist;
use crate::commands::monitor;
use crate::commands::resume_command::resume_command;
use crate::journal::{self, DestinationEntry, Entry, SourceEntry};
use crate::output::migrations::Unfinished;
use crate::output::streams;

/// A migration that is to be resumed.
#[derive(Debug)]
pub(super) struct UnfinishedMigration {
    pub(super) side: Side,
    /// The number that its recording has.
    pub(super) id: String,
    /// The guest's name, for a migration without a recording.
    pub(super) guest: String,
    pub(super) peer: String,
    pub(super) mode: Mode,
    pub(super) is: Unfinished,
}

/// Those with a journal in the run folder `folder`.
pub(super) fn find(folder: &Path) -> Vec<UnfinishedMigration> {
    let mut found = in_folder(folder, |path, entry: SourceEntry| {
        let (stage, message) = source(entry.engine.stage);
        let (id, mode) = (&entry.engine.id, entry.engine.mode);
        unfinished(path, &entry, (id, mode), &entry.address, (stage, message))
    });
    found.extend(in_folder(folder, |path, entry: DestinationEntry| {
        let (stage, message) = destination(entry.engine.stage, entry.engine.postcopy);
        let (id, mode) = (&entry.engine.id, entry.engine.mode);
        let mut found = unfinished(path, &entry, (id, mode), &entry.address, (stage, message));
        // It listens there; where the source is, is not known.
        found.peer.clear();
        found
    }));
    found
}

/// Those of one side.
fn in_folder<E: Entry>(
    folder: &Path,
    unfinished: impl Fn(PathBuf, E) -> UnfinishedMigration,
) -> Vec<UnfinishedMigration> {
    let journals = match journal::find::<E>(folder, None) {
        Ok(journals) => journals,
        Err(error) => {
            let error = Report::new(&error);
            streams::notice(&format!("looking for unfinished migrations: {error}"));
            return Vec::new();
        }
    };
    let has_no_engine = |path: &Path| match journal::is_held(path) {
        Ok(is_held) => !is_held,
        Err(error) => {
            tracing::warn!(error = %Report::new(&error), "looking for the engine of a journal");
            true
        }
    };
    // If it cannot be found out whether its QEMU exists, it may.
    let is_over =
        |entry: &E| entry.ends_with_qemu() && !may_exist(entry.identity()).unwrap_or(true);
    journals
        .into_iter()
        .filter(|(path, entry)| has_no_engine(path) && !is_over(entry))
        // It may have ended just now.
        .filter(|(path, _)| path.exists())
        .map(|(path, entry)| unfinished(path, entry))
        .collect()
}

fn unfinished<E: Entry>(
    path: PathBuf,
    entry: &E,
    (id, mode): (&MigrationId, Mode),
    peer: &Address,
    (stage, message): (&'static str, &'static str),
) -> UnfinishedMigration {
    UnfinishedMigration {
        side: match E::SIDE {
            SourceEntry::SIDE => Side::Source,
            _ => Side::Destination,
        },
        id: Live::name_of(id),
        guest: monitor::guest_name(entry.identity()),
        peer: peer.to_string(),
        mode,
        is: Unfinished {
            resume: resume_command::<E>(&path),
            journal: path,
            stage,
            message,
        },
    }
}

/// What a stage of the source means while no engine runs.
fn source(stage: SourceStage) -> (&'static str, &'static str) {
    match stage {
        SourceStage::Owned => (
            "owned",
            "it was interrupted before the handover; the guest is here, and may be paused",
        ),
        SourceStage::Committed => (
            "committed",
            "the guest was handed over, and this side does not know whether it runs at the \
             destination: do not resume it here",
        ),
        SourceStage::HandedOver => (
            "handed_over",
            "the guest runs at the destination and may lack pages, which are here: do not end the \
             QEMU here, nor resume the guest",
        ),
        SourceStage::Done => ("done", "the guest has moved, and its QEMU here is left"),
    }
}

/// What a stage of the destination means while no engine runs.
fn destination(stage: DestinationStage, postcopy: bool) -> (&'static str, &'static str) {
    match stage {
        DestinationStage::Receiving => ("receiving", "it was interrupted before the handover"),
        DestinationStage::Ready => (
            "ready",
            "the guest is loaded here, paused; its source decides where it runs",
        ),
        DestinationStage::Running if postcopy => (
            "running",
            "the guest runs here and lacks pages, which its source has: it waits for each that it \
             needs",
        ),
        DestinationStage::Running => (
            "running",
            "the guest is here with all of its pages, and its source may not know that",
        ),
        DestinationStage::Complete => (
            "complete",
            "the guest is here with all of its pages, and its source may not know that",
        ),
        DestinationStage::Declined => (
            "declined",
            "the guest was not run here, and its source may not know that",
        ),
    }
}
