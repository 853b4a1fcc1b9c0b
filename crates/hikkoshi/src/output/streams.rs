//! Writes to standard error and standard output.
//!
//! Standard error has one format, chosen once for the process: lines of text that begin with
//! `hikkoshi: `, or one JSON object a line (`docs/json.md`).
//!
//! `println!` and `eprintln!` panic if the reader has closed its end. A closed terminal must not
//! cost a guest, so write errors are ignored here.
//!
//! Output contains text from other sources: a peer, QEMU, names of files and processes. All of it
//! is sanitised here, so that no escape sequence reaches a terminal and no line in a log is forged.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_wire::text;
use serde::Serialize;

use crate::output::exit::{End, Exit};

/// Whether standard error is JSON. It is set once, before other threads exist.
static JSON: AtomicBool = AtomicBool::new(false);

/// The guest that the messages of this process are about.
static NAME: OnceLock<String> = OnceLock::new();

/// Puts the name of a guest before each message: a log has those of several processes.
pub(crate) fn name_messages(name: &str) {
    // It is set once.
    let _ = NAME.set(name.to_owned());
}

/// Makes standard error one JSON object a line.
pub(crate) fn use_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether standard error is one JSON object a line.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Reports something to the user.
pub(crate) fn notice(text: &str) {
    if is_json() {
        object("notice", &text);
    } else {
        line(&format!("hikkoshi: {text}"));
    }
}

/// Reports how the run ended, as JSON. Nothing is written after it.
pub(crate) fn end(end: &End<'_>) {
    object("end", end);
}

/// Reports why the run ended.
pub(crate) fn failure(exit: &Exit) {
    let written = End::from(exit);
    if is_json() {
        return end(&written);
    }
    line(&format!("hikkoshi: {}", written.message));
    if let Some(next) = written.next {
        line(&format!("hikkoshi: {next}"));
    }
}

/// Writes an invitation to standard error, on a line of its own.
pub(crate) fn invitation(invitation: &str) {
    if is_json() {
        object("invitation", &invitation);
    } else {
        line(invitation);
    }
}

/// Writes `{"NAME":VALUE}` to standard error.
pub(crate) fn object(name: &str, value: &impl Serialize) {
    line(&serde_json::json!({ name: value }).to_string());
}

/// Writes a line to standard error.
pub(crate) fn line(line: &str) {
    // With one call: several threads and the guard process write there.
    let line = match NAME.get() {
        Some(name) => format!("{name}: {}\n", text::one_line(line)),
        None => format!("{}\n", text::one_line(line)),
    };
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes text to standard output.
pub(crate) fn to_stdout(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text::lines(text).as_bytes());
    let _ = stdout.flush();
}
