//! Writes to standard error and standard output.
//!
//! Standard error has one format, chosen once for the process: lines of text that begin with
//! `hikkoshi: `, or one JSON object a line (`docs/json.md`).
//!
//! Standard error never makes a thread wait ([`stderr`]): a terminal that is stopped must not cost
//! a guest. Nor must one that was closed, so write errors are ignored here (`println!` and
//! `eprintln!` panic). Standard output has the result, which a thread of the engine never writes.
//!
//! Output contains text from other sources: a peer, QEMU, names of files and processes. All of it
//! is sanitised here, so that no escape sequence reaches a terminal and no line in a log is forged.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_wire::text;
use serde::Serialize;

use crate::output::colour;
use crate::output::exit::{End, Exit};
use crate::output::stderr::{self, ProgressItem};

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
    stderr::line(notice_line(text));
}

/// A line about lines that were dropped.
pub(crate) fn dropped(lines: u64) -> String {
    notice_line(&format!(
        "{lines} messages were not written here: standard error was not read in time"
    ))
}

fn notice_line(text: &str) -> String {
    match is_json() {
        true => object_line("notice", &text),
        false => text_line(text),
    }
}

/// Reports how the run ended, as JSON. Nothing is written after it.
pub(crate) fn end(end: &End<'_>) {
    stderr::important_line(object_line("end", end));
}

/// Reports why the run ended.
pub(crate) fn failure(exit: &Exit) {
    let written = End::from(exit);
    if is_json() {
        return end(&written);
    }
    stderr::important_line(text_line(written.message));
    if let Some(next) = written.next {
        stderr::important_line(text_line(next));
    }
}

/// Writes an invitation to standard error, on a line of its own.
pub(crate) fn invitation(invitation: &str) {
    stderr::important_line(match is_json() {
        true => object_line("invitation", &invitation),
        false => text::one_line(invitation).into_owned(),
    });
}

/// Writes `{"log":RECORD}` to standard error.
pub(crate) fn log_object(record: &impl Serialize) {
    stderr::line(object_line("log", record));
}

/// Writes a line of the log to standard error.
pub(crate) fn log_text(text: &str) {
    stderr::line(text_line(text));
}

/// Writes `{"progress":STATE}` to standard error, in place of a state that was not written yet.
pub(crate) fn progress_object(state: &impl Serialize) {
    stderr::progress(ProgressItem::Line(object_line("progress", state)));
}

/// Writes a line about progress to standard error, in place of one that was not written yet.
pub(crate) fn progress_text(text: &str) {
    stderr::progress(ProgressItem::Line(text_line(text)));
}

/// `{"NAME":VALUE}`.
fn object_line(name: &str, value: &impl Serialize) -> String {
    text::one_line(&serde_json::json!({ name: value }).to_string()).into_owned()
}

fn text_line(line: &str) -> String {
    let line = match NAME.get() {
        Some(name) => format!("{name}: hikkoshi: {line}"),
        None => format!("hikkoshi: {line}"),
    };
    text::one_line(&line).into_owned()
}

/// Writes text to standard output, after what was reported before.
pub(crate) fn to_stdout(text: &str) {
    let _ = try_to_stdout(text);
}

/// Writes a line that must not be overlooked to standard output, in a colour if that is a terminal.
pub(crate) fn alarm_to_stdout(line: &str) {
    let line = text::one_line(line);
    let has_colours = std::io::stdout().is_terminal() && colour::is_wanted();
    let line = match has_colours {
        true => colour::alarm(&line),
        false => line.into_owned(),
    };
    stderr::before_stdout();
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// The same, for text without which this process is of no use.
///
/// # Errors
/// Such as `EPIPE`: its reader has ended.
pub(crate) fn try_to_stdout(text: &str) -> std::io::Result<()> {
    stderr::before_stdout();
    let mut stdout = std::io::stdout();
    stdout.write_all(text::lines(text).as_bytes())?;
    stdout.flush()
}
