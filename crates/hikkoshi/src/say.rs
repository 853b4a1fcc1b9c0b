//! Writing to a person, who may have gone.
//!
//! `println!` and `eprintln!` panic when nobody reads any more. A guest that is
//! on its way must not be lost because a terminal was closed or a log's reader
//! has ended.

use std::io::Write;

/// Writes a line to standard error, if anybody reads it.
pub fn to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes text to standard output, if anybody reads it.
pub fn to_stdout(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}
