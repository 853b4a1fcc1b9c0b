//! What was moved of which there is no recording any more: a line for each recording that was
//! removed because there are newer ones.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::StatusFolder;
use crate::history::past_migration;
use crate::{PastMigration, Recording};

/// The largest file, in bytes: some thousand migrations. Of a larger one the older half is removed.
const MAX_BYTES: u64 = 2 << 20;

impl StatusFolder {
    /// The file with these lines.
    pub(crate) fn past_file(&self) -> PathBuf {
        self.path().join("history.jsonl")
    }

    /// Adds a line for a recording that is about to be removed.
    pub(super) fn remember(&self, recording: &Path) -> io::Result<()> {
        let recording = Recording::read(recording).map_err(io::Error::other)?;
        let Some(past) = past_migration(&[recording]) else {
            return Ok(());
        };
        let mut line = serde_json::to_vec(&past).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.past_file())?;
        // Several engines may end at the same time.
        flock(&file, FlockOperation::LockExclusive)?;
        if file.metadata()?.len() > MAX_BYTES {
            forget_half(&mut file)?;
        }
        file.write_all(&line)
    }

    /// The migrations of these lines. One that is damaged, or of a later version, is left out.
    pub(crate) fn past(&self) -> Vec<PastMigration> {
        let text = fs::read(self.past_file()).unwrap_or_default();
        let lines = text.split(|&byte| byte == b'\n');
        let parsed = lines.filter_map(|line| serde_json::from_slice(line).ok());
        parsed.filter(PastMigration::is_known).collect()
    }
}

fn forget_half(file: &mut File) -> io::Result<()> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    let (_, newer) = text.split_at(text.len() / 2);
    let whole = newer.iter().position(|&byte| byte == b'\n');
    file.set_len(0)?;
    file.write_all(&newer[whole.map_or(newer.len(), |at| at + 1)..])
}

#[cfg(test)]
mod tests {
    use super::super::examples::{folder, recorded};
    use super::*;

    #[test]
    fn more_is_remembered_than_there_are_recordings() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let mut ids = Vec::new();
        for number in 0..40 {
            let mut recording = recorded(number).recording().clone();
            recording.migration.id = format!("{number:08x}");
            recording.migration.started_unix_ms = u64::from(number) * 1000;
            folder.store(&recording).unwrap();
            ids.push(recording.migration.id);
        }
        assert!(folder.entries().unwrap().len() < 40);
        let history = crate::History::read(&folder).unwrap();
        assert!(history.skipped.is_empty(), "{:?}", history.skipped);
        let found: Vec<_> = history.migrations.iter().map(|it| &*it.id).collect();
        assert_eq!(found, ids);
        assert!(history.migrations[0].entries.is_empty());
        // A line that an engine could not write to its end.
        let mut file = OpenOptions::new()
            .append(true)
            .open(folder.past_file())
            .unwrap();
        file.write_all(b"{\"version\":1,\"id\"").unwrap();
        let history = crate::History::read(&folder).unwrap();
        assert_eq!(history.migrations.len(), 40);
    }

    #[test]
    fn the_older_half_of_a_large_file_is_forgotten() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(folder.past_file())
            .unwrap();
        file.write_all(b"one\ntwo\nthree\nfour\n").unwrap();
        forget_half(&mut file).unwrap();
        assert_eq!(fs::read_to_string(folder.past_file()).unwrap(), "four\n");
    }
}
