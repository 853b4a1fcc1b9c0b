//! The result of a run as one JSON object (`--json`).

use std::io::{self, Write as _};
use std::path::Path;

use error_reporter::Report;
use hikkoshi_account::SourceQuit;
use hikkoshi_wire::text;
use serde::Serialize;

use crate::output::exit::{End, Exit};
use crate::output::reason::Reason;
use crate::output::{stderr, streams};

/// A guest that had moved before this run.
#[derive(Debug, Serialize)]
struct Moved<'a> {
    moved: &'a str,
    #[serde(flatten)]
    quit: Option<&'a SourceQuit>,
}

/// Writes `{"moved":WHAT}` to `path`: the guest had moved before this run.
pub(crate) fn write_moved(what: &str, quit: Option<&SourceQuit>, path: &Path) -> io::Result<()> {
    write_object(&Moved { moved: what, quit }, path)
}

/// Writes `{"error":{…}}` to `path`, so that there is an object after every run.
pub(crate) fn write_failure(exit: &Exit, path: &Path) {
    // That file could not be written.
    if exit.reason() == Reason::AccountNotWritten {
        return;
    }
    let error = serde_json::json!({ "error": End::from(exit) });
    if let Err(error) = write_object(&error, path) {
        streams::notice(&format!(
            "writing the result to {}: {}",
            path.display(),
            Report::new(&error)
        ));
    }
}

/// Writes one JSON object on one line; "-" is standard output.
pub(crate) fn write_object(object: &impl Serialize, path: &Path) -> io::Result<()> {
    let mut json = serde_json::to_vec(object).map_err(io::Error::other)?;
    json.push(b'\n');
    if path == Path::new("-") {
        // It may be a terminal, so JSON is sanitised as well.
        let json = String::from_utf8_lossy(&json);
        stderr::before_stdout();
        io::stdout().write_all(text::lines(&json).as_bytes())
    } else {
        std::fs::write(path, json)
    }
}
