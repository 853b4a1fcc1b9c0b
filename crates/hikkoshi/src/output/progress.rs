//! How it goes: a bar for a person, lines for a log, JSON for a program.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_engine::Observer;
use hikkoshi_engine::report::{Phase, Progress, Silent};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::ProgressFormat;
use crate::output::report::{mib, seconds};
use crate::output::streams;

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// An observer of the chosen kind.
pub fn observer(kind: ProgressFormat) -> Arc<dyn Observer> {
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

/// A bar with rate and time left. indicatif draws it again when something else was
/// written; what it shows, and how much of that fits, is decided here.
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
        // Each time: the terminal may have become another one.
        self.0.set_message(drawn(progress, width()));
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

/// Columns of the terminal that standard error is; what most have, if it does not
/// say.
fn width() -> usize {
    let said = rustix::termios::tcgetwinsize(std::io::stderr()).map(|size| size.ws_col);
    said.ok()
        .filter(|&columns| columns > 0)
        .map_or(80, usize::from)
}

/// The bar's own columns, at most and at least (without its ends).
const BAR: std::ops::RangeInclusive<usize> = 6..=30;

/// What is shown in a terminal with `width` columns, on one line: as much of it as
/// there is room for, the weightiest first. The last column stays free: some
/// terminals begin a new line after it.
fn drawn(progress: &Progress, width: usize) -> String {
    let room = width.saturating_sub(1);
    let total = progress.total_pages.max(1);
    let done = progress.done_pages.min(total);
    let percent = u128::from(done) * 100 / u128::from(total);
    let left = progress.time_left();
    let left = left.map_or_else(String::new, |left| format!(", {} left", seconds(left)));
    let (name, percent, rate) = (name(progress), format!("{percent:>3}%"), rate(progress));
    // Of each form the text before and behind the bar, and whether there is one.
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

/// So much of `columns`.
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

/// A line now and then.
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

impl Observer for Json {
    fn progress(&self, progress: &Progress) {
        streams::object("progress", progress);
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
                let line = drawn(&at(done, total), width);
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
    fn the_weightiest_is_shown_where_there_is_little_room() {
        let drawn = |width| drawn(&at(25, 100), width);
        let wide = drawn(200);
        assert!(wide.starts_with(" pre-copy, round 3 [=======>"), "{wide}");
        assert!(wide.contains("]  25% 123.4 MiB/s"), "{wide}");
        assert_eq!(drawn(80).len(), wide.len().min(79));
        assert!(drawn(46).contains('[') && drawn(46).contains("MiB/s"));
        assert_eq!(drawn(38), "pre-copy, round 3  25% 123.4 MiB/s");
        assert_eq!(drawn(25), "pre-copy, round 3  25%");
        assert_eq!(drawn(10), "25%");
    }
}
