//! Progress: a bar on a terminal, lines for a log, or JSON for a program.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_engine::Observer;
use hikkoshi_engine::report::{Phase, Progress, Silent};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::ProgressFormat;
use crate::output::report::{mib, seconds};
use crate::output::streams;

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// An observer that reports in this format.
pub(crate) fn observer(kind: ProgressFormat) -> Arc<dyn Observer> {
    match kind {
        ProgressFormat::None => Arc::new(Silent),
        ProgressFormat::Json => Arc::new(Json),
        ProgressFormat::Auto if std::io::stderr().is_terminal() => Arc::new(Bar::new()),
        ProgressFormat::Auto => Arc::new(Lines::default()),
    }
}

fn name(progress: &Progress) -> String {
    match progress.phase {
        Phase::Connecting => "connecting".into(),
        Phase::Precopy => format!("pre-copy, round {}", progress.round),
        Phase::Switchover => "switchover".into(),
        Phase::Postcopy => "post-copy".into(),
    }
}

fn rate(progress: &Progress) -> String {
    // A rate is positive, and `as` saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = progress.bytes_per_second as u64;
    format!("{}/s", mib(rate))
}

/// A bar with the rate and the remaining time. indicatif redraws it after other output; its text,
/// which has to fit into the terminal, is formatted here.
#[derive(Debug)]
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }
}

impl Observer for Bar {
    fn progress(&self, progress: &Progress) {
        // Each time: the terminal may have been resized.
        self.0.set_message(format_line(progress, width()));
    }

    fn notice(&self, text: &str) {
        self.0.suspend(|| streams::notice(text));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Columns of the terminal on standard error; 80 if they are not known.
fn width() -> usize {
    let said = rustix::termios::tcgetwinsize(std::io::stderr()).map(|size| size.ws_col);
    said.ok()
        .filter(|&columns| columns > 0)
        .map_or(80, usize::from)
}

/// The smallest and the largest number of columns inside the bar.
const BAR: std::ops::RangeInclusive<usize> = 6..=30;

/// One line for a terminal with `width` columns. Less important parts are left out of a narrow one.
/// The last column stays free: some terminals begin a new line after it.
fn format_line(progress: &Progress, width: usize) -> String {
    let room = width.saturating_sub(1);
    let total = progress.total_pages.max(1);
    let done = progress.done_pages.min(total);
    let percent = u128::from(done) * 100 / u128::from(total);
    let left = progress.time_left();
    let left = left.map_or_else(String::new, |left| format!(", {} left", seconds(left)));
    let (name, percent, rate) = (name(progress), format!("{percent:>3}%"), rate(progress));
    // For each form, the text before and after the bar, and whether there is a bar.
    let forms = [
        (
            format!("{name:>18}"),
            format!("{percent} {rate}{left}"),
            true,
        ),
        (name.clone(), format!("{percent} {rate}{left}"), true),
        (name.clone(), format!("{percent} {rate}"), true),
        (name.clone(), format!("{percent} {rate}"), false),
        (name, percent.clone(), false),
    ];
    for (before, behind, has_bar) in forms {
        // All of it is ASCII: a byte is a column.
        let taken = before.len() + 1 + behind.len();
        if !has_bar && taken <= room {
            return format!("{before} {behind}");
        }
        let columns = room.saturating_sub(taken + 3);
        if has_bar && columns >= *BAR.start() {
            let bar = bar(done, total, columns.min(*BAR.end()));
            return format!("{before} [{bar}] {behind}");
        }
    }
    let percent = percent.trim_start();
    percent.chars().take(room).collect()
}

/// A bar of `columns` columns.
fn bar(done: u64, total: u64, columns: usize) -> String {
    let full = u128::from(done) * columns as u128 / u128::from(total.max(1));
    let full = usize::try_from(full).unwrap_or(columns).min(columns);
    let head = usize::from(full < columns);
    format!(
        "{}{}{}",
        "=".repeat(full),
        ">".repeat(head),
        " ".repeat(columns - full - head)
    )
}

/// A line every two seconds.
#[derive(Debug, Default)]
struct Lines(Mutex<Option<Instant>>);

impl Observer for Lines {
    fn progress(&self, progress: &Progress) {
        let Ok(mut last) = self.0.lock() else { return };
        if last.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        streams::notice(&format!(
            "{}: {} of {} pages, {}",
            name(progress),
            progress.done_pages,
            progress.total_pages,
            rate(progress)
        ));
    }

    fn notice(&self, text: &str) {
        streams::notice(text);
    }
}

/// One object a line: `{"progress":{…}}` or `{"notice":"…"}`.
#[derive(Debug)]
struct Json;

/// [`Progress`] as JSON (`docs/json.md`).
#[derive(Debug, Serialize)]
struct ProgressReport {
    phase: &'static str,
    round: u32,
    done_pages: u64,
    total_pages: u64,
    bytes: u64,
    bytes_per_second: f64,
}

impl From<&Progress> for ProgressReport {
    fn from(progress: &Progress) -> Self {
        Self {
            phase: match progress.phase {
                Phase::Connecting => "connecting",
                Phase::Precopy => "precopy",
                Phase::Switchover => "switchover",
                Phase::Postcopy => "postcopy",
            },
            round: progress.round,
            done_pages: progress.done_pages,
            total_pages: progress.total_pages,
            bytes: progress.bytes,
            bytes_per_second: progress.bytes_per_second,
        }
    }
}

impl Observer for Json {
    fn progress(&self, progress: &Progress) {
        streams::object("progress", &ProgressReport::from(progress));
    }

    fn notice(&self, text: &str) {
        streams::notice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: u64, total: u64) -> Progress {
        Progress {
            phase: Phase::Precopy,
            round: 3,
            done_pages: done,
            total_pages: total,
            bytes: 0,
            bytes_per_second: 123.4 * 1_048_576.0,
        }
    }

    #[test]
    fn the_line_fits_into_every_terminal() {
        for (done, total) in [(0, 0), (0, 1), (1, 3), (3, 3), (u64::MAX, u64::MAX), (9, 3)] {
            for width in 0..200 {
                let line = format_line(&at(done, total), width);
                assert!(
                    line.is_ascii() && line.len() < width.max(1),
                    "{width}: {line:?}"
                );
                assert!(
                    !line.contains('\n') && (width < 6 || line.contains('%')),
                    "{line:?}"
                );
            }
        }
    }

    #[test]
    fn a_narrow_terminal_shows_the_important_parts() {
        let line = |width| format_line(&at(25, 100), width);
        let wide = line(200);
        assert!(wide.starts_with(" pre-copy, round 3 [=======>"), "{wide}");
        assert!(wide.contains("]  25% 123.4 MiB/s"), "{wide}");
        assert_eq!(line(80).len(), wide.len().min(79));
        assert!(line(46).contains('[') && line(46).contains("MiB/s"));
        assert_eq!(line(38), "pre-copy, round 3  25% 123.4 MiB/s");
        assert_eq!(line(25), "pre-copy, round 3  25%");
        assert_eq!(line(10), "25%");
    }
}
