//! Writes a report.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_status::{Recording, StatusEntry, StatusEntryKind, StatusFolder};
use rustix::fs::OFlags;

use crate::output::streams;

/// A special file must not be a link, put in its place.
const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Writes a page to `path`; "-" is standard output.
///
/// Only this user can read a new file, as the recordings that a report is made of. An older report
/// stays until the new one is complete.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_page(path: &Path, page: &str) -> io::Result<()> {
    if path == Path::new("-") {
        streams::to_stdout(page);
        return Ok(());
    }
    write(path, page.as_bytes())
}

/// Replaces the file, or writes into a pipe or a device. A link may have been put there by another
/// user, and /dev/stdout must not be replaced.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let kind = fs::symlink_metadata(path).map(|metadata| metadata.file_type());
    match kind {
        Ok(kind) if kind.is_symlink() => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is a symbolic link (name the file itself; \"-\" is standard output)",
            ));
        }
        Ok(kind) if !kind.is_file() => {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(NOFOLLOW);
            return options.open(path)?.write_all(content);
        }
        _ => {}
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut name = name.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    // Another one of this name is a leftover, or was put there by someone else.
    let _ = fs::remove_file(&new);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| {
            file.write_all(content)?;
            // Errors of a network file system come with this.
            file.sync_all()
        })
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Writes the report of a migration that has ended on this side. If the other side has ended on
/// this host, too, it is a part of it, and so are earlier engines of this side.
pub(super) fn write_report_of(recording: Recording, folder: &StatusFolder, path: &Path) {
    let mut recordings = vec![recording];
    let entries = folder.entries().unwrap_or_default();
    let is_running = |entry: &StatusEntry| {
        let same =
            |other: &StatusEntry| other.kind == StatusEntryKind::Socket && other.name == entry.name;
        entries.iter().any(same)
    };
    for entry in &entries {
        if entry.kind == StatusEntryKind::File
            && !is_running(entry)
            && let Ok(other) = Recording::read(&entry.path)
            && other.migration.id == recordings[0].migration.id
        {
            recordings.push(other);
        }
    }
    // The result does not depend on it.
    streams::notice(
        &match write_page(path, &hikkoshi_dashboard::report(&recordings)) {
            Ok(()) => format!("the report is in {}", path.display()),
            Err(error) => format!(
                "the report was not written to {}: {}",
                path.display(),
                Report::new(&error)
            ),
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn only_its_owner_reads_a_report_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other, link] = ["a.html", "other", "link"].map(|name| folder.path().join(name));
        fs::write(&other, "other").unwrap();
        symlink(&other, &link).unwrap();
        let refused = write(&link, b"a report").unwrap_err().to_string();
        assert!(refused.contains("it is a symbolic link"), "{refused}");
        for content in ["first", "second"] {
            write(&path, content.as_bytes()).unwrap();
            let metadata = fs::symlink_metadata(&path).unwrap();
            assert!(metadata.is_file());
            assert_eq!(metadata.mode() & 0o777, 0o600);
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn an_older_report_stays_if_the_new_one_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.html");
        write(&path, b"older").unwrap();
        // A file of the new one's name that cannot be replaced: a folder.
        let new = folder
            .path()
            .join(format!("a.html.{}.new", std::process::id()));
        fs::create_dir(&new).unwrap();
        write(&path, b"newer").unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "older");
        assert!(write(&folder.path().join("none/a.html"), b"x").is_err());
        assert!(write(folder.path(), b"x").is_err(), "a folder");
        assert!(folder.path().is_dir());
    }

    #[test]
    fn a_pipe_is_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut text = String::new();
                fs::File::open(path)
                    .unwrap()
                    .read_to_string(&mut text)
                    .unwrap();
                text
            })
        };
        write(&path, b"a report").unwrap();
        assert_eq!(reader.join().unwrap(), "a report");
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o170_000, 0o010_000, "still a pipe");
    }
}
