//! How it goes: a bar for a person, lines for a log, JSON for a program.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_engine::Observer;
use hikkoshi_engine::stats::{Phase, Progress, Silent};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::ProgressKind;
use crate::report::{mib, seconds};
use crate::say;

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// An observer of the chosen kind.
pub fn observer(kind: ProgressKind) -> Arc<dyn Observer> {
    match kind {
        ProgressKind::None => Arc::new(Silent),
        ProgressKind::Json => Arc::new(Json),
        ProgressKind::Auto if std::io::stderr().is_terminal() => Arc::new(Bar::new()),
        ProgressKind::Auto => Arc::new(Lines::default()),
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

/// A bar with rate and time left.
#[derive(Debug)]
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:>18} [{bar:30}] {percent:>3}% {msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }
}

impl Observer for Bar {
    fn progress(&self, progress: &Progress) {
        let left = progress
            .time_left()
            .map(|left| format!(", {} left", seconds(left)));
        self.0.update(|state| {
            state.set_len(progress.total_pages.max(1));
            state.set_pos(progress.done_pages);
        });
        self.0.set_prefix(name(progress));
        self.0
            .set_message(format!("{}{}", rate(progress), left.unwrap_or_default()));
    }

    fn notice(&self, text: &str) {
        self.0.suspend(|| say::notice(text));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
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
        say::notice(&format!(
            "{}: {} of {} pages, {}",
            name(progress),
            progress.done_pages,
            progress.total_pages,
            rate(progress)
        ));
    }

    fn notice(&self, text: &str) {
        say::notice(text);
    }
}

/// One object a line: `{"progress":{…}}` or `{"notice":"…"}`.
#[derive(Debug)]
struct Json;

impl Observer for Json {
    fn progress(&self, progress: &Progress) {
        say::object("progress", progress);
    }

    fn notice(&self, text: &str) {
        say::notice(text);
    }
}
