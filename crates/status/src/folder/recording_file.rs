//! The file of a recording: stored, and read again.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hikkoshi_account::Side;
use rustix::fs::OFlags;

use super::{FolderError, StatusEntryKind, StatusFolder};
use crate::{Recording, VERSION};

/// The longest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

impl StatusFolder {
    /// Stores the recording of a migration, in place of what was stored of it before, and removes
    /// the oldest recordings of ended ones, so that the limits are kept. Recordings of migrations
    /// that run (they have a socket) are never removed.
    ///
    /// # Errors
    /// If it cannot be written, or the recordings of other migrations that run leave no room. What
    /// was stored before is still there then.
    pub fn store(&self, recording: &Recording) -> Result<PathBuf, FolderError> {
        let name = recording.migration.entry_name();
        let file = self.0.join(format!("{name}.json"));
        let new = file.with_extension("new");
        let failed = |cause| FolderError::File {
            file: file.clone(),
            cause,
        };
        let content = serde_json::to_vec(recording).map_err(|error| failed(error.into()))?;
        self.make_room(&name, content.len() as u64)?;
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| file.write_all(&content))
            .and_then(|()| fs::rename(&new, &file));
        if let Err(cause) = written {
            let _ = fs::remove_file(&new);
            return Err(failed(cause));
        }
        Ok(file)
    }
}

impl StatusFolder {
    /// When the last engine of this side of the migration with this name had its last sign of the
    /// other side. `None`: it has left no recording.
    ///
    /// While it had links, that is the time of its recording's file: at most a tenth of a second
    /// before it was killed, if pages were moving. While it had none, its outage has begun then.
    pub fn last_sign(&self, side: Side, migration: &str) -> Option<SystemTime> {
        let entries = self.entries().ok()?;
        let files = entries
            .iter()
            .filter(|entry| entry.kind == StatusEntryKind::File);
        let (recording, modified) = files
            .filter_map(|entry| Some((read(&entry.path).ok()?, entry.modified)))
            .find(|(it, _)| it.migration.side == side && it.migration.id == migration)?;
        let open = recording.state.as_ref()?.outages.last();
        let Some(open) = open.filter(|outage| outage.to_ms.is_none()) else {
            return Some(modified);
        };
        let began = Duration::from_millis(recording.migration.started_unix_ms);
        let since = Duration::from_millis(open.from_ms);
        let before = Duration::from_millis(open.before_ms);
        UNIX_EPOCH
            .checked_add(began)?
            .checked_add(since)?
            .checked_sub(before)
    }
}

impl Recording {
    /// Reads the file of a migration.
    ///
    /// # Errors
    /// If it cannot be read, or is not a recording of this version.
    pub fn read(path: &Path) -> Result<Self, FolderError> {
        read(path)
    }
}

/// Reads the file of a migration.
///
/// # Errors
/// If it cannot be read, or is not a recording of this version.
pub(crate) fn read(path: &Path) -> Result<Recording, FolderError> {
    let failed = |cause| FolderError::File {
        file: path.to_owned(),
        cause,
    };
    let file = OpenOptions::new()
        .read(true)
        // Opening a pipe must not block.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let mut content = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
    if read.map_err(failed)? as u64 > MAX_FILE_BYTES {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    parse(&content).map_err(|error| match error {
        ParseError::Version(version) => FolderError::Version {
            file: path.to_owned(),
            version,
        },
        ParseError::Json(error) => failed(error.into()),
    })
}

/// Why a recording cannot be parsed.
#[derive(Debug)]
pub(crate) enum ParseError {
    Version(u64),
    Json(serde_json::Error),
}

/// Parses a recording. Its version comes first: the rest of another version may be anything.
pub(crate) fn parse(json: &[u8]) -> Result<Recording, ParseError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u64,
    }
    let Versioned { version } = serde_json::from_slice(json).map_err(ParseError::Json)?;
    if version != u64::from(VERSION) {
        return Err(ParseError::Version(version));
    }
    serde_json::from_slice(json).map_err(ParseError::Json)
}

#[cfg(test)]
mod tests {
    use super::super::examples::{folder, recorded};
    use super::*;
    use hikkoshi_account::Outage;

    #[test]
    fn the_last_sign_is_the_time_of_the_file_or_the_beginning_of_the_outage() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let mut recording = recorded(1).recording().clone();
        let (side, id) = (recording.migration.side, recording.migration.id.clone());
        assert_eq!(folder.last_sign(side, &id), None);
        let path = folder.store(&recording).unwrap();
        let seen = SystemTime::now() - Duration::from_secs(70);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(seen).unwrap();
        assert_eq!(folder.last_sign(side, &id), Some(seen));
        assert_eq!(folder.last_sign(side, "other"), None);
        recording.migration.started_unix_ms = 1_000_000;
        let open = Outage {
            from_ms: 0,
            before_ms: 4000,
            to_ms: None,
            until_ms: None,
        };
        recording.state.as_mut().unwrap().outages = vec![open];
        folder.store(&recording).unwrap();
        let since = UNIX_EPOCH + Duration::from_millis(996_000);
        assert_eq!(folder.last_sign(side, &id), Some(since));
    }

    #[test]
    fn another_version_is_refused() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let file = folder.path().join("source-1-00.json");
        fs::write(&file, r#"{"version":2,"anything":[]}"#).unwrap();
        let error = Recording::read(&file).unwrap_err().to_string();
        assert!(error.contains("has version 2"), "{error}");
        fs::write(&file, "{").unwrap();
        assert!(matches!(
            Recording::read(&file),
            Err(FolderError::File { .. })
        ));
    }
}
