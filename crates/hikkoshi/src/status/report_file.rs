//! Writes a report.

use std::io;
use std::path::Path;

use error_reporter::Report;
use hikkoshi_status::{Kind, Recording, StatusFolder};

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
/// this host, too, it is a part of it.
pub(super) fn write_report_of(recording: Recording, folder: &StatusFolder, path: &Path) {
    let mut recordings = vec![recording];
    for entry in folder.entries().unwrap_or_default() {
        if entry.kind == Kind::File
            && let Ok(other) = Recording::read(&entry.path)
            && other.migration.id == recordings[0].migration.id
            && other.migration.side != recordings[0].migration.side
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
