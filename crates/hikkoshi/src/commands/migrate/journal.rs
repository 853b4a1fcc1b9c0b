//! Keeps a source's journal up to date.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hikkoshi_handover::{Journal, SourceRecord, SourceStage};
use hikkoshi_link::Remote;
use hikkoshi_link::tls::TlsClient;

use hikkoshi_qemu::{GuestRam, SourceReattachInfo, UndoRecord};

use crate::args::MigrateOptions;
use crate::journal::{JournalFile, SourceEntry, absolute_address};

/// Writes the journal when the engine or the QEMU adapter reports a change.
#[derive(Debug)]
pub(super) struct SourceJournal {
    file: JournalFile,
    remote: Remote,
    plaintext: bool,
    options: MigrateOptions,
    /// The guest's memory, which knows what the destination has.
    ram: Option<Arc<GuestRam>>,
    state: Mutex<SourceState>,
}

#[derive(Debug)]
struct SourceState {
    /// `None` before the engine's first record. Nothing is written until then.
    engine: Option<SourceRecord>,
    qemu: SourceReattachInfo,
    closed: bool,
}

impl SourceJournal {
    /// For a guest on its way to `remote`; `engine` is what the file holds already.
    pub(super) fn new(
        file: JournalFile,
        remote: Remote,
        plaintext: bool,
        options: MigrateOptions,
        qemu: SourceReattachInfo,
        engine: Option<SourceRecord>,
    ) -> Self {
        Self {
            file,
            remote,
            plaintext,
            options,
            ram: None,
            state: Mutex::new(SourceState {
                engine,
                qemu,
                closed: false,
            }),
        }
    }

    /// Notes with each record which private memory the destination has.
    pub(super) fn noting(self, ram: Arc<GuestRam>) -> Self {
        Self {
            ram: Some(ram),
            ..self
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Replaces the record of what is to be undone in QEMU.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn set_undo(&self, undo: &UndoRecord) -> io::Result<()> {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.qemu.undo, undo.clone());
        let written = self.write(&state);
        if written.is_err() {
            state.qemu.undo = before;
        }
        written
    }

    /// Removes the journal of a migration that has succeeded, when QEMU was ended.
    pub(super) fn remove(&self) {
        self.file.remove();
    }

    fn state(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &SourceState) -> io::Result<()> {
        let Some(engine) = state.engine.clone().filter(|_| !state.closed) else {
            return Ok(());
        };
        let tls = self.remote.tls.as_ref();
        let security = tls.map(TlsClient::credentials).transpose();
        self.file.write(&SourceEntry {
            address: absolute_address(&self.remote.address),
            plaintext: self.plaintext,
            options: self.options.clone(),
            security: security.map_err(io::Error::other)?,
            engine,
            qemu: state.qemu.clone(),
        })
    }
}

impl Journal<SourceRecord> for SourceJournal {
    fn record(&self, record: &SourceRecord) -> io::Result<()> {
        let mut state = self.state();
        if let Some(ram) = &self.ram {
            state.qemu.identity.note_sent(ram);
        }
        let before = state.engine.replace(record.clone());
        let written = self.write(&state);
        if written.is_err() {
            state.engine = before;
        }
        written
    }

    fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let done = state
            .engine
            .as_ref()
            .is_some_and(|engine| engine.stage == SourceStage::Done);
        // Until QEMU has ended, too: if this engine is killed before, resuming ends it.
        let ended = self.options.quit_source || state.qemu.identity.monitor.is_owned();
        if !(done && ended) {
            self.file.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::NamedGuest;
    use crate::journal::{DestinationEntry, decode, find, is_held};
    use hikkoshi_engine::Mode;
    use hikkoshi_handover::History;
    use hikkoshi_link::Address;
    use hikkoshi_qemu::QemuIdentity;
    use hikkoshi_qemu::qmp::MonitorAddress;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    /// A kept journal, for a QEMU with that number and socket.
    fn reattach_info(pid: u32, qmp: &str) -> SourceReattachInfo {
        let kept = include_bytes!("../../../tests/journals/source-certified.json");
        let kept = decode::<SourceEntry>(kept).unwrap().qemu;
        SourceReattachInfo {
            identity: QemuIdentity {
                pid,
                monitor: MonitorAddress::Socket(qmp.into()),
                ..kept.identity
            },
            ..kept
        }
    }

    fn record(stage: SourceStage) -> SourceRecord {
        SourceRecord {
            id: hikkoshi_wire::MigrationId::from_bytes([0; 16]),
            stage,
            mode: Mode::Hybrid,
            history: History {
                begun: SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_000_000_123),
                downtime: (stage == SourceStage::HandedOver).then_some(Duration::from_micros(7)),
                likely_downtime: None,
                missing_pages: Some(9),
            },
        }
    }

    fn options() -> MigrateOptions {
        MigrateOptions {
            quit_source: true,
            ..MigrateOptions::default()
        }
    }

    #[test]
    fn a_record_is_found_until_the_journal_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/hikkoshi");
        let there = Remote::from("unix:/there".parse::<Address>().unwrap());
        let journal = |pid, qmp| {
            let reattach_info = reattach_info(pid, qmp);
            let file =
                JournalFile::for_qemu::<SourceEntry>(&folder, &reattach_info.identity).unwrap();
            SourceJournal::new(file, there.clone(), true, options(), reattach_info, None)
        };
        let (one, other) = (journal(1, "/one"), journal(2, "/other"));
        assert!(find::<SourceEntry>(&folder, None).unwrap().is_empty());
        // What is to be undone is written with the engine's first record.
        one.set_undo(&reattach_info(1, "/one").undo).unwrap();
        assert!(!one.path().exists());
        for stage in [SourceStage::Owned, SourceStage::Committed] {
            one.record(&record(stage)).unwrap();
            let [(path, entry)] = &find::<SourceEntry>(&folder, None).unwrap()[..] else {
                panic!("one journal")
            };
            assert_eq!(entry.engine, record(stage));
            assert_eq!((entry.plaintext, &entry.options), (true, &options()));
            assert_eq!(entry.address, there.address);
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        other.record(&record(SourceStage::HandedOver)).unwrap();
        assert_eq!(find::<SourceEntry>(&folder, None).unwrap().len(), 2);
        let of = |qmp: &Path| {
            let guest = NamedGuest::Socket(qmp.to_owned());
            find::<SourceEntry>(&folder, Some(&guest)).unwrap().len()
        };
        assert_eq!(of(Path::new("/other")), 1);
        assert!(find::<DestinationEntry>(&folder, None).unwrap().is_empty());
        // No other process works with it meanwhile.
        assert!(is_held(one.path()).unwrap());
        let error = JournalFile::lock(one.path()).unwrap_err();
        assert!(error.to_string().contains("another hikkoshi"), "{error}");
        let path = one.path().to_owned();
        drop(one);
        assert!(!is_held(&path).unwrap());
        let file = JournalFile::lock(&path).unwrap();
        let entry: SourceEntry = file.read().unwrap().unwrap();
        assert_eq!(entry.engine.stage, SourceStage::Committed);
        other.close();
        other.record(&record(SourceStage::HandedOver)).unwrap();
        other.set_undo(&reattach_info(2, "/other").undo).unwrap();
        assert!(!other.path().exists(), "closed");
        drop((other, file));
        // A migration that is over leaves no file, nor does one that never began.
        drop(journal(3, "/third"));
        let left = std::fs::read_dir(&folder).unwrap();
        let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn the_old_content_stays_if_there_is_no_space() {
        let folder = tempfile::tempdir().unwrap();
        let reattach_info = reattach_info(1, "/one");
        let there = Remote::from("unix:/there".parse::<Address>().unwrap());
        let file =
            JournalFile::for_qemu::<SourceEntry>(folder.path(), &reattach_info.identity).unwrap();
        let journal = SourceJournal::new(file, there, false, options(), reattach_info, None);
        journal.record(&record(SourceStage::Owned)).unwrap();
        let new = journal.path().with_extension("new");
        // Writing there fails with `ENOSPC` (full(4)).
        std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        let error = journal.record(&record(SourceStage::Committed)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        assert!(!std::fs::exists(&new).unwrap());
        let (_, entry) = find::<SourceEntry>(folder.path(), None)
            .unwrap()
            .pop()
            .unwrap();
        assert_eq!(entry.engine.stage, SourceStage::Owned);
        // With space it is written, and closing removes every file.
        journal.record(&record(SourceStage::Committed)).unwrap();
        std::fs::write(&new, "incomplete").unwrap();
        journal.close();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source-1-1.json");
        let file = JournalFile::lock(&path).unwrap();
        assert!(file.read::<SourceEntry>().unwrap().is_none());
        for text in ["", "{}", "[1]"] {
            std::fs::write(&path, text).unwrap();
            let error = file.read::<SourceEntry>().unwrap_err().to_string();
            assert!(error.contains("source-1-1.json"), "{error}");
            assert!(find::<SourceEntry>(folder.path(), None).unwrap().is_empty());
        }
        // A folder that cannot be created.
        let identity = &reattach_info(1, "/q").identity;
        let error = JournalFile::for_qemu::<SourceEntry>(&path, identity).unwrap_err();
        assert!(error.to_string().contains("--journal"), "{error}");
    }
}
