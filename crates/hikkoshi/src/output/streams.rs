//! Writes to standard error and standard output.
//!
//! Standard error has one format ([`line_format`](super::line_format)). It never makes a thread
//! wait ([`stderr`]): a terminal that is stopped must not cost a guest. Nor must one that was
//! closed, so write errors are ignored here (`println!` and `eprintln!` panic). Standard output has
//! the result, which a thread of the engine never writes.
//!
//! What is written to standard output is sanitised here, as lines of standard error are there.

use std::io::Write;

use hikkoshi_wire::text;
use serde::Serialize;

use crate::output::colours::{self, Colour};
use crate::output::exit::{End, Exit};
use crate::output::line_format::{is_json, notice_line, object_line, text_line};
use crate::output::stderr::{self, ProgressItem};

/// Reports something to the user.
pub(crate) fn notice(text: &str) {
    stderr::line(notice_line(text));
}

/// Reports why an action of a resource agent has failed, in the form that Pacemaker looks for.
pub(crate) fn ocf_exit_reason(why: &str) {
    let why = text::one_line(why);
    stderr::important_line(format!("ocf-exit-reason:{why}"));
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
    let _ = try_lines_to_stdout(all);
}

/// As [`lines_to_stdout`].
///
/// # Errors
/// Nobody reads it any more.
pub(crate) fn try_lines_to_stdout(all: &[Lines]) -> std::io::Result<()> {
    let shown = colours::on_stdout();
    let mut text = String::new();
    for line in all.iter().flat_map(sanitised) {
        text.push_str(&line.colour.paint(&line.text, shown));
        text.push('\n');
    }
    write_stdout(&text)
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
