//! What an evacuation has done so far, so that the same command continues it: a file in the folder
//! *evacuation* of the run folder, beside the result and the messages of each move.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::guests::Reached;
use crate::journal::JournalFile;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// The version of the file. Others are refused.
const VERSION: u32 = 1;

/// The files of one move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MoveFiles {
    /// What `migrate --json` writes.
    pub(super) result: PathBuf,
    /// Its messages.
    pub(super) log: PathBuf,
}

/// Where a guest is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuestStage {
    /// A process moves it.
    Moving {
        /// The process.
        pid: u32,
    },
    /// It is at the destination.
    Moved,
    /// It is at this host.
    Stays {
        /// Why, for people.
        message: String,
    },
    /// It was handed over, and the migration is not finished.
    Unfinished {
        /// Why, for people.
        message: String,
        /// What resumes it.
        resume: Option<String>,
    },
    /// It is lost.
    Lost {
        /// How, for people.
        message: String,
    },
}

/// What is known of a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct GuestRecord {
    /// How it was reached.
    pub(super) at: Reached,
    /// Where it was moved to last.
    pub(super) to: Option<String>,
    /// How often moving it was begun.
    pub(super) attempts: u32,
    /// Where it is.
    pub(super) stage: GuestStage,
    /// How long its move has taken, in milliseconds.
    #[serde(default)]
    pub(super) total_ms: Option<f64>,
    /// How long it was paused, in milliseconds.
    #[serde(default)]
    pub(super) downtime_ms: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    version: u32,
    guests: BTreeMap<String, GuestRecord>,
}

/// The journal of the evacuation of this host, which no other process works with.
#[derive(Debug)]
pub(super) struct EvacuationJournal {
    folder: PathBuf,
    /// Held as long as this exists.
    _lock: JournalFile,
    pub(super) guests: BTreeMap<String, GuestRecord>,
}

impl EvacuationJournal {
    /// Opens the journal in this run folder, which is empty if there is none.
    ///
    /// # Errors
    /// The folder cannot be used, another evacuation runs, or the journal cannot be read.
    pub(super) fn open(run: &Path) -> Result<Self, Exit> {
        let folder = run.join("evacuation");
        let failed = |reason, error: &io::Error| {
            let error = error_reporter::Report::new(error);
            let what = format!(
                "the journal of the evacuation in {}: {error}",
                folder.display()
            );
            Exit::new(ExitStatus::Usage, reason, what).with("nothing was tried")
        };
        let make = || {
            JournalFile::make_folder(run)?;
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
        };
        make().map_err(|error| failed(Reason::Journal, &error))?;
        let path = journal(&folder);
        let lock = JournalFile::try_lock(&path).map_err(|error| failed(Reason::Journal, &error))?;
        let Some(lock) = lock else {
            let what = "an evacuation of this host runs already".to_owned();
            return Err(
                Exit::new(ExitStatus::Usage, Reason::JournalBusy, what).with("nothing was tried")
            );
        };
        let guests = read(&path).map_err(|error| failed(Reason::Journal, &error))?;
        Ok(Self {
            folder,
            _lock: lock,
            guests,
        })
    }

    /// The files of the move of this guest. Its name has no other characters than those of a file.
    pub(super) fn files(&self, guest: &str) -> MoveFiles {
        MoveFiles {
            result: self.folder.join(format!("{guest}.json")),
            log: self.folder.join(format!("{guest}.log")),
        }
    }

    /// Stores what is known of this guest.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn set(&mut self, guest: &str, record: GuestRecord) -> io::Result<()> {
        self.guests.insert(guest.to_owned(), record);
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let stored = Stored {
            version: VERSION,
            guests: self.guests.clone(),
        };
        let text = serde_json::to_vec_pretty(&stored).map_err(io::Error::other)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&text)?;
        file.as_file().sync_all()?;
        file.persist(journal(&self.folder))
            .map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the journal: nothing is left to be continued.
    pub(super) fn remove(&mut self) {
        for guest in self.guests.keys() {
            let files = self.files(guest);
            let _ = fs::remove_file(files.result);
            let _ = fs::remove_file(files.log);
        }
        let _ = fs::remove_file(journal(&self.folder));
        self.guests.clear();
    }
}

fn journal(folder: &Path) -> PathBuf {
    folder.join("journal.json")
}

fn read(path: &Path) -> io::Result<BTreeMap<String, GuestRecord>> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let Versioned { version } = serde_json::from_slice(&text).map_err(io::Error::other)?;
    if version != VERSION {
        let what = format!("it has version {version}, and this hikkoshi reads version {VERSION}");
        return Err(io::Error::other(what));
    }
    let stored: Stored = serde_json::from_slice(&text).map_err(io::Error::other)?;
    Ok(stored.guests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_read_again() {
        let run = tempfile::tempdir().unwrap();
        let record = GuestRecord {
            at: Reached::Qmp("/q".into()),
            to: Some("b:7000".to_owned()),
            attempts: 2,
            stage: GuestStage::Unfinished {
                message: "m".to_owned(),
                resume: None,
            },
            total_ms: None,
            downtime_ms: Some(3.5),
        };
        let mut first = EvacuationJournal::open(run.path()).unwrap();
        assert!(first.guests.is_empty());
        first.set("web", record.clone()).unwrap();
        let busy = EvacuationJournal::open(run.path()).unwrap_err();
        assert_eq!(busy.reason(), Reason::JournalBusy);
        drop(first);
        let mut second = EvacuationJournal::open(run.path()).unwrap();
        assert_eq!(second.guests.get("web"), Some(&record));
        second.remove();
        drop(second);
        let third = EvacuationJournal::open(run.path()).unwrap();
        assert!(third.guests.is_empty());
        drop(third);
        let left = fs::read_dir(run.path().join("evacuation")).unwrap().count();
        assert_eq!(left, 0, "files are left");
        fs::write(
            run.path().join("evacuation/journal.json"),
            "{\"version\":9}",
        )
        .unwrap();
        let refused = EvacuationJournal::open(run.path()).unwrap_err();
        assert!(refused.text().contains("version 9"), "{}", refused.text());
    }
}
