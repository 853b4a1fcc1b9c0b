//! The format of standard error, chosen once for the process: lines of text that begin with
//! `hikkoshi: `, or one JSON object a line (`docs/json.md`).
//!
//! Lines contain text from other sources: a peer, QEMU, names of files and processes. All of it is
//! sanitised here, so that no escape sequence reaches a terminal and no line in a log is forged.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_wire::text;
use serde::Serialize;

/// Whether standard error is JSON. It is set once, before other threads exist.
static JSON: AtomicBool = AtomicBool::new(false);

/// The guest that the messages of this process are about.
static NAME: OnceLock<String> = OnceLock::new();

/// Puts the name of a guest before each message: a log has those of several processes.
pub(crate) fn name_messages(name: &str) {
    // It is set once.
    let _ = NAME.set(name.to_owned());
}

/// Whether messages have the name of a guest before them.
pub(crate) fn has_name() -> bool {
    NAME.get().is_some()
}

/// Makes standard error one JSON object a line.
pub(crate) fn use_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether standard error is one JSON object a line.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// A line about lines that were dropped.
pub(super) fn dropped_lines(lines: u64) -> String {
    notice_line(&format!(
        "{lines} messages were not written here: standard error was not read in time"
    ))
}

/// A line that reports something to the user.
pub(super) fn notice_line(text: &str) -> String {
    match is_json() {
        true => object_line("notice", &text),
        false => text_line(text),
    }
}

/// `{"NAME":VALUE}`.
pub(super) fn object_line(name: &str, value: &impl Serialize) -> String {
    text::one_line(&serde_json::json!({ name: value }).to_string()).into_owned()
}

/// A line of text.
pub(super) fn text_line(line: &str) -> String {
    let line = match NAME.get() {
        Some(name) => format!("{name}: hikkoshi: {line}"),
        None => format!("hikkoshi: {line}"),
    };
    text::one_line(&line).into_owned()
}
