//! Writes a report.

use std::io;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_status::{Entry, Kind, Recording, StatusFolder};

use crate::output::streams;

/// Writes a page about these recordings to `path`; "-" is standard output.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_report(path: &Path, recordings: &[Recording]) -> io::Result<()> {
    let page = hikkoshi_dashboard::report(recordings);
    if path == Path::new("-") {
        streams::to_stdout(&page);
        return Ok(());
    }
    std::fs::write(path, page)
}

/// Writes the report of a migration that has ended on this side. If the other side has ended on
/// this host, too, it is a part of it, and so are earlier engines of this side.
pub(super) fn write_report_of(recording: Recording, folder: &StatusFolder, path: &Path) {
    let mut recordings = vec![recording];
    let entries = folder.entries().unwrap_or_default();
    let is_running = |entry: &Entry| {
        let same = |other: &Entry| other.kind == Kind::Socket && other.name == entry.name;
        entries.iter().any(same)
    };
    for entry in &entries {
        if entry.kind == Kind::File
            && !is_running(entry)
            && let Ok(other) = Recording::read(&entry.path)
            && other.migration.id == recordings[0].migration.id
        {
            recordings.push(other);
        }
    }
    // The result does not depend on it.
    streams::notice(&match write_report(path, &recordings) {
        Ok(()) => format!("the report is in {}", path.display()),
        Err(error) => format!(
            "the report was not written to {}: {}",
            path.display(),
            Report::new(&error)
        ),
    });
}
