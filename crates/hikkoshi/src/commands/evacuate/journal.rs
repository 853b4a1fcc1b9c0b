//! What an evacuation has done so far, so that the same command continues it: a file in the folder
//! *evacuation* of the status folder, beside the result and the messages of each move.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use hikkoshi_status::{
    EVACUATION_VERSION, EvacuatedGuest, Evacuation, EvacuationPlan, StatusFolder,
};

use crate::journal::JournalFile;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// The files of one move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MoveFiles {
    /// What `migrate --json` writes.
    pub(super) result: PathBuf,
    /// Its messages.
    pub(super) log: PathBuf,
}

/// The journal of the evacuation of this host, which no other process works with.
#[derive(Debug)]
pub(super) struct EvacuationJournal {
    folder: PathBuf,
    /// Held as long as this exists.
    _lock: JournalFile,
    pub(super) evacuation: Evacuation,
}

impl EvacuationJournal {
    /// Opens the journal in this run folder, which is empty if there is none.
    ///
    /// # Errors
    /// The folder cannot be used, another evacuation runs, or the journal cannot be read.
    pub(super) fn open(run: &Path) -> Result<Self, Exit> {
        let status = StatusFolder::in_run_folder(run);
        let folder = status.evacuation();
        let failed = |reason, error: &dyn std::error::Error| {
            let error = error_reporter::Report::new(error);
            let what = format!(
                "the journal of the evacuation in {}: {error}",
                folder.display()
            );
            Exit::new(ExitStatus::Usage, reason, what).with("nothing was tried")
        };
        let make = || {
            JournalFile::make_folder(run)?;
            status.create().map_err(io::Error::other)?;
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
        };
        make().map_err(|error| failed(Reason::Journal, &error))?;
        let path = Evacuation::journal_in(&folder);
        let lock = JournalFile::try_lock(&path).map_err(|error| failed(Reason::Journal, &error))?;
        let Some(lock) = lock else {
            let what = "an evacuation of this host runs already".to_owned();
            return Err(
                Exit::new(ExitStatus::Usage, Reason::JournalBusy, what).with("nothing was tried")
            );
        };
        let left = Evacuation::read(&path).map_err(|error| failed(Reason::Journal, &error))?;
        let mut evacuation = left.unwrap_or_else(|| Evacuation {
            version: EVACUATION_VERSION,
            started_unix_ms: None,
            ended_unix_ms: None,
            plan: None,
            guests: std::collections::BTreeMap::new(),
        });
        evacuation.ended_unix_ms = None;
        Ok(Self {
            folder,
            _lock: lock,
            evacuation,
        })
    }

    /// The files of the move of this guest. Its name has no other characters than those of a file.
    pub(super) fn files(&self, guest: &str) -> MoveFiles {
        MoveFiles {
            result: self.folder.join(format!("{guest}.result.json")),
            log: self.folder.join(format!("{guest}.log")),
        }
    }

    /// What is known of this guest.
    pub(super) fn guest(&self, name: &str) -> Option<&EvacuatedGuest> {
        self.evacuation.guests.get(name)
    }

    /// Stores what is known of this guest.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn set(&mut self, name: &str, guest: EvacuatedGuest) -> io::Result<()> {
        self.evacuation.guests.insert(name.to_owned(), guest);
        self.write(&Evacuation::journal_in(&self.folder))
    }

    /// Moves begin, by this plan.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn begin(&mut self, plan: EvacuationPlan) -> io::Result<()> {
        self.evacuation.started_unix_ms = Some(now_unix_ms());
        self.evacuation.plan = Some(plan);
        self.write(&Evacuation::journal_in(&self.folder))
    }

    /// This run has ended. If nothing is left to be continued (`is_complete`), the next evacuation
    /// begins anew, and this one is kept until then.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn end(&mut self, is_complete: bool) -> io::Result<()> {
        self.evacuation.ended_unix_ms = Some(now_unix_ms());
        let journal = Evacuation::journal_in(&self.folder);
        if !is_complete {
            return self.write(&journal);
        }
        if self.evacuation.started_unix_ms.is_some() {
            self.write(&Evacuation::last_in(&self.folder))?;
        }
        for guest in self.evacuation.guests.keys() {
            let files = self.files(guest);
            let _ = fs::remove_file(files.result);
            let _ = fs::remove_file(files.log);
        }
        match fs::remove_file(&journal) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.evacuation).map_err(io::Error::other)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Milliseconds since 1970 (UTC).
pub(super) fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_status::{EvacuationStage, ReachedBy};

    #[test]
    fn what_was_done_is_read_again() {
        let run = tempfile::tempdir().unwrap();
        let status = StatusFolder::in_run_folder(run.path());
        let stage = EvacuationStage::Unfinished {
            message: "m".to_owned(),
            resume: None,
        };
        let guest = EvacuatedGuest {
            to: Some("b:7000".to_owned()),
            attempts: 2,
            downtime_ms: Some(3.5),
            ..EvacuatedGuest::new(ReachedBy::Qmp("/q".into()), stage)
        };
        let mut first = EvacuationJournal::open(run.path()).unwrap();
        assert!(first.evacuation.guests.is_empty());
        assert_eq!(status.read_evacuation().unwrap(), None);
        first.set("web", guest.clone()).unwrap();
        let busy = EvacuationJournal::open(run.path()).unwrap_err();
        assert_eq!(busy.reason(), Reason::JournalBusy);
        first.end(false).unwrap();
        drop(first);
        let shown = status.read_evacuation().unwrap().unwrap();
        assert!(shown.has_ended());
        let mut second = EvacuationJournal::open(run.path()).unwrap();
        assert_eq!(second.guest("web"), Some(&guest));
        assert!(!second.evacuation.has_ended());
        second.evacuation.started_unix_ms = Some(5);
        second.end(true).unwrap();
        drop(second);
        let third = EvacuationJournal::open(run.path()).unwrap();
        assert!(third.evacuation.guests.is_empty());
        drop(third);
        let left: Vec<_> = fs::read_dir(status.evacuation()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the last one is left: {left:?}");
        let last = status.read_evacuation().unwrap().unwrap();
        assert_eq!(last.guests.get("web"), Some(&guest));
        fs::write(
            Evacuation::journal_in(&status.evacuation()),
            "{\"version\":9}",
        )
        .unwrap();
        let refused = EvacuationJournal::open(run.path()).unwrap_err();
        assert!(refused.text().contains("version 9"), "{}", refused.text());
    }
}
