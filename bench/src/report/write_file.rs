//! Writes a file of results.

use std::fs;
use std::path::Path;

use crate::error::BenchError;

/// Writes a file, and makes its folder.
///
/// # Errors
/// When one of them cannot be made.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), BenchError> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = folder.and_then(|()| fs::write(path, text));
    written.map_err(|source| BenchError::File {
        doing: "writing",
        path: path.to_owned(),
        source,
    })
}
