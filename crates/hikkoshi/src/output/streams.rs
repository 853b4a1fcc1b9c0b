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

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_wire::text;
use serde::Serialize;

use crate::output::colours::{self, Colour};
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
    let shown = colours::on_stderr();
    let write = |colour: Colour, text: &str| {
        stderr::important_line(colour.paint(&text_line(text), shown).into_owned());
    };
    write(Colour::Alarm, written.message);
    if let Some(next) = written.next {
        write(Colour::Next, next);
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

/// Lines for standard output: one, or several that end with a line end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) text: String,
    pub(crate) colour: Colour,
}

impl Lines {
    /// In this colour.
    pub(crate) fn new(colour: Colour, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            colour,
        }
    }
}

/// Writes lines to standard output, after what was reported before.
pub(crate) fn lines_to_stdout(all: &[Lines]) {
    let shown = colours::on_stdout();
    let mut text = String::new();
    for line in all.iter().flat_map(sanitised) {
        text.push_str(&line.colour.paint(&line.text, shown));
        text.push('\n');
    }
    let _ = write_stdout(&text);
}

/// Draws lines on the terminal of standard output, in place of what it shows. Long lines are
/// wrapped, and rows for which there is no room are left out. `is_first`: what it shows is not of
/// this program.
pub(crate) fn draw_on_stdout(all: &[Lines], columns: usize, rows: usize, is_first: bool) {
    let _ = write_stdout(&drawing(all, columns, rows, is_first, colours::on_stdout()));
}

/// Where to draw: erase the screen (ED), and to its first character (CUP).
const ERASE: &str = "\x1b[2J";
const HOME: &str = "\x1b[H";

/// Erase what is behind the cursor: of the line (EL), of the screen (ED).
const ERASE_LINE: &str = "\x1b[K";
const ERASE_REST: &str = "\x1b[J";

fn drawing(all: &[Lines], columns: usize, rows: usize, is_first: bool, shown: bool) -> String {
    let mut text = if is_first { ERASE } else { "" }.to_owned();
    text.push_str(HOME);
    let lines = all.iter().flat_map(sanitised);
    let drawn = lines.flat_map(|line| wrapped(&line, columns.max(1)));
    // The last row is for the cursor.
    let room = rows.saturating_sub(1).max(1);
    for row in drawn.take(room) {
        text.push_str(&row.colour.paint(&row.text, shown));
        text.push_str(ERASE_LINE);
        text.push('\n');
    }
    text.push_str(ERASE_REST);
    text
}

/// The rows of a line.
fn wrapped(line: &Lines, columns: usize) -> Vec<Lines> {
    if line.text.is_empty() {
        return vec![line.clone()];
    }
    let letters: Vec<char> = line.text.chars().collect();
    let rows = letters.chunks(columns);
    let rows = rows.map(|row| Lines::new(line.colour, row.iter().collect::<String>()));
    rows.collect()
}

/// Single lines without control characters.
fn sanitised(lines: &Lines) -> Vec<Lines> {
    let text = text::lines(&lines.text);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let each = text.split('\n');
    each.map(|line| Lines::new(lines.colour, line)).collect()
}

/// Writes text to standard output, after what was reported before.
pub(crate) fn to_stdout(text: &str) {
    let _ = try_to_stdout(text);
}

/// Writes text, without which this process is of no use, to standard output.
///
/// # Errors
/// Such as `EPIPE`: its reader has ended.
pub(crate) fn try_to_stdout(text: &str) -> std::io::Result<()> {
    write_stdout(&text::lines(text))
}

fn write_stdout(text: &str) -> std::io::Result<()> {
    stderr::before_stdout();
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal shows the last drawing only, whatever is shorter in it.
    #[test]
    fn a_drawing_replaces_the_one_before_and_fits() {
        let mut terminal = avt::Terminal::with_scrollback(20, 4, Some(100)).unwrap();
        terminal.feed("a shell\r\n$ ");
        let many = ["one\ntwo\u{1b}[9A\n", "three", "four", "five"];
        let many = many.map(|text| Lines::new(Colour::Alarm, text));
        let long = [Lines::new(Colour::Plain, "x".repeat(30))];
        for (number, all) in [&many[..], &long].into_iter().enumerate() {
            let drawn = drawing(all, 20, 4, number == 0, true);
            // As the line discipline of a terminal does.
            terminal.feed(drawn.replace('\n', "\r\n"));
            let rows: Vec<_> = terminal
                .screen()
                .all_lines()
                .map(|row| row.text().trim_end().to_owned())
                .collect();
            // What has scrolled off was not drawn here.
            let rows = rows.get(rows.len() - 4..).unwrap();
            match number {
                0 => assert_eq!(rows, ["one", "two?[9A", "three", ""]),
                _ => assert_eq!(rows, [&*"x".repeat(20), "xxxxxxxxxx", "", ""]),
            }
        }
    }
}
