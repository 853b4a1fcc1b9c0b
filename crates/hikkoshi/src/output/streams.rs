//! What is written to standard error and standard output.
//!
//! Standard error has one format of lines, chosen once for the process: text for a
//! person, each line beginning with `hikkoshi: `, or one JSON object a line for a
//! program (`docs/json.md`).
//!
//! `println!` and `eprintln!` panic if the reader has gone. A guest that is being
//! moved must not be lost because a terminal was closed, so errors of writing are
//! ignored here.
//!
//! What is written contains words of others: of a peer, of QEMU, names of files and
//! processes. Here is where they leave the program, and here they become text: no
//! escape sequence reaches a terminal, and no line is made up in a log.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_wire::text;
use serde::Serialize;

use crate::output::exit::{End, Exit};

/// Whether standard error is JSON. It is set once, before other threads exist.
static JSON: AtomicBool = AtomicBool::new(false);

/// From now on standard error is one JSON object a line.
pub fn in_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether standard error is one JSON object a line.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Tells something that a person wants to know.
pub fn notice(text: &str) {
    if is_json() {
        object("notice", &text);
    } else {
        line(&format!("hikkoshi: {text}"));
    }
}

/// Tells how the run ended. This is the last thing that is written.
pub fn end(end: &End<'_>) {
    object("end", end);
}

/// Tells why the run ended, to whoever reads.
pub fn failure(exit: &Exit) {
    let written = End::from(exit);
    if is_json() {
        return end(&written);
    }
    line(&format!("hikkoshi: {}", written.message));
    if let Some(next) = written.next {
        line(&format!("hikkoshi: {next}"));
    }
}

/// Shows an invitation on standard error, alone on its line.
pub fn invitation(invitation: &str) {
    if is_json() {
        object("invitation", &invitation);
    } else {
        line(invitation);
    }
}

/// Writes `{"NAME":VALUE}` to standard error.
pub fn object(name: &str, value: &impl Serialize) {
    line(&serde_json::json!({ name: value }).to_string());
}

/// Writes a line to standard error, if anybody reads it.
pub fn line(line: &str) {
    // In one piece: several threads and the guard process write there.
    let line = format!("{}\n", text::one_line(line));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes text to standard output, if anybody reads it.
pub fn to_stdout(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text::lines(text).as_bytes());
    let _ = stdout.flush();
}
