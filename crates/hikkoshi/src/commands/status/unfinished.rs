//! Migrations that are not finished and that no engine works on, by their journals.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use error_reporter::Report;
use hikkoshi_account::{Side, Stage};
use hikkoshi_engine::report::Live;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_link::Address;
use hikkoshi_wire::{MigrationId, Mode};

use crate::commands::find_journal::may_exist;
use crate::commands::monitor;
use crate::commands::resume_command::resume_command;
use crate::journal::{self, DestinationEntry, JournalEntry, SourceEntry};
use crate::output::status::Unfinished;

/// A migration that is to be resumed.
#[derive(Debug)]
pub(in crate::commands) struct UnfinishedMigration {
    pub(super) side: Side,
    /// The number that its recording has.
    pub(super) id: String,
    /// The guest's name, for a migration without a recording.
    pub(super) guest: String,
    pub(super) peer: String,
    pub(super) mode: Mode,
    pub(super) is: Unfinished,
}

/// What is not finished.
#[derive(Debug, Default)]
pub(in crate::commands) struct UnfinishedGuests {
    /// Migrations whose journals can be read.
    pub(in crate::commands) migrations: Vec<UnfinishedMigration>,
    /// What can be said of each other journal, by its path; or of their folder. A migration of any
    /// guest may be unfinished.
    pub(in crate::commands) unreadable: BTreeMap<PathBuf, String>,
}

/// Those with a journal in the run folder `folder`.
pub(in crate::commands) fn find(folder: &Path) -> UnfinishedGuests {
    let mut found = UnfinishedGuests::default();
    found.add(folder, |path, entry: SourceEntry| {
        let (stage, message) = (
            Stage::Source(entry.engine.stage),
            source(entry.engine.stage),
        );
        let (id, mode) = (&entry.engine.id, entry.engine.mode);
        unfinished(path, &entry, (id, mode), &entry.address, (stage, message))
    });
    found.add(folder, |path, entry: DestinationEntry| {
        let stage = Stage::Destination(entry.engine.stage);
        let message = destination(entry.engine.stage, entry.engine.postcopy);
        let (id, mode) = (&entry.engine.id, entry.engine.mode);
        let mut found = unfinished(path, &entry, (id, mode), &entry.address, (stage, message));
        // It listens there; where the source is, is not known.
        found.peer.clear();
        found
    });
    found
}

impl UnfinishedGuests {
    /// Adds those of one side.
    fn add<E: JournalEntry>(
        &mut self,
        folder: &Path,
        unfinished: impl Fn(PathBuf, E) -> UnfinishedMigration,
    ) {
        let journals = match journal::search::<E>(folder, None) {
            Ok(journals) => journals,
            Err(error) => return self.add_unreadable(folder.to_owned(), &error),
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
        let readable = journals
            .readable
            .into_iter()
            .filter(|(path, entry)| has_no_engine(path) && !is_over(entry))
            // It may have ended just now.
            .filter(|(path, _)| path.exists())
            .map(|(path, entry)| unfinished(path, entry));
        self.migrations.extend(readable);
        for (path, error) in journals.others {
            // An engine of another version may work on it.
            if has_no_engine(&path) {
                self.add_unreadable(path, &error);
            }
        }
    }

    fn add_unreadable(&mut self, path: PathBuf, error: &io::Error) {
        let what = format!(
            "{}: a migration may be unfinished, and its journal cannot be read: {}",
            path.display(),
            Report::new(error)
        );
        self.unreadable.insert(path, what);
    }
}

fn unfinished<E: JournalEntry>(
    path: PathBuf,
    entry: &E,
    (id, mode): (&MigrationId, Mode),
    peer: &Address,
    (stage, message): (Stage, &'static str),
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
            message: message.to_owned(),
        },
    }
}

/// What a stage of the source means while no engine runs.
fn source(stage: SourceStage) -> &'static str {
    match stage {
        SourceStage::Owned => {
            "it was interrupted before the handover; the guest is here, and may be paused"
        }
        SourceStage::Committed => {
            "the guest was handed over, and this side does not know whether it runs at the \
             destination: do not resume it here"
        }
        SourceStage::HandedOver => {
            "the guest runs at the destination and may lack pages, which are here: do not end the \
             QEMU here, nor resume the guest"
        }
        SourceStage::Done => "the guest has moved, and its QEMU here is left",
    }
}

/// What a stage of the destination means while no engine runs.
fn destination(stage: DestinationStage, postcopy: bool) -> &'static str {
    match stage {
        DestinationStage::Receiving => "it was interrupted before the handover",
        DestinationStage::Ready => {
            "the guest is loaded here, paused; its source decides where it runs"
        }
        DestinationStage::Running if postcopy => {
            "the guest runs here and lacks pages, which its source has: it waits for each that it \
             needs"
        }
        DestinationStage::Running | DestinationStage::Complete => {
            "the guest is here with all of its pages, and its source may not know that"
        }
        DestinationStage::Declined => {
            "the guest was not run here, and its source may not know that"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one of another version.
    #[test]
    fn a_journal_that_cannot_be_read_is_not_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let found = find(folder.path());
        assert!(found.migrations.is_empty() && found.unreadable.is_empty());
        for (name, content) in [
            ("source-1-a.json", "{\"version\":999}"),
            ("destination-2-b.json", "{"),
            ("other.json", "{"),
        ] {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let found = find(folder.path());
        assert!(found.migrations.is_empty());
        let names = found
            .unreadable
            .keys()
            .map(|path| path.file_name().unwrap());
        let names: Vec<_> = names.collect();
        assert_eq!(names, ["destination-2-b.json", "source-1-a.json"]);
        for what in found.unreadable.values() {
            assert!(
                what.contains(
                    ".json: a migration may be unfinished, and its journal cannot be read"
                ),
                "{what}"
            );
        }
    }

    /// Such a folder is reported once, not for each side.
    #[test]
    fn a_folder_that_cannot_be_read_is_not_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = find(file.path());
        assert_eq!(found.unreadable.len(), 1, "{found:?}");
    }
}
