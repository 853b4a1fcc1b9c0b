//! Changes only the engine's record in a journal: for `--give-up`, which makes no links and
//! therefore does not load credentials.

use std::io;
use std::sync::{Mutex, PoisonError};

use hikkoshi_handover::Journal;

use super::entry::JournalEntry;
use super::file::JournalFile;

/// A journal whose content, except for the engine's record, stays as it was read.
#[derive(Debug)]
pub(crate) struct OfflineJournal<E> {
    file: JournalFile,
    entry: Mutex<E>,
}

impl<E: JournalEntry> OfflineJournal<E> {
    pub(crate) fn new(file: JournalFile, entry: E) -> Self {
        let entry = Mutex::new(entry);
        Self { file, entry }
    }
}

impl<E: JournalEntry> Journal<E::EngineRecord> for OfflineJournal<E> {
    fn record(&self, record: &E::EngineRecord) -> io::Result<()> {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        *entry.engine_mut() = record.clone();
        self.file.write(&*entry)
    }

    fn close(&self) {
        self.file.remove();
    }
}
