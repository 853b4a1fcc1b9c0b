//! Progress: a bar on a terminal, lines for a log, or JSON for a program.

use std::fmt::Debug;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_engine::Observer;
use hikkoshi_engine::report::Live;
use hikkoshi_status::{GuestAt, Phase, State, TimeLeft};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::ProgressFormat;
use crate::output::report::{mib, seconds};
use crate::output::streams;

/// How often a line is written where there is no terminal, in milliseconds.
const LINE_EVERY_MS: u64 = 2000;

/// How often an object is written for a program, in milliseconds.
const OBJECT_EVERY_MS: u64 = 200;

/// Shows how far a migration is. All calls return at once.
pub(crate) trait Display: Debug + Send + Sync {
    /// The present state, ten times a second.
    fn state(&self, state: &State);

    /// A sentence for the operator.
    fn notice(&self, text: &str) {
        streams::notice(text);
    }

    /// Removes what is drawn; nothing is drawn any more.
    fn clear(&self) {}
}

/// The display with this format.
pub(crate) fn display(kind: ProgressFormat) -> Arc<dyn Display> {
    match kind {
        ProgressFormat::None => Arc::new(Nothing),
        ProgressFormat::Json => Arc::new(Objects(Every::new(OBJECT_EVERY_MS))),
        ProgressFormat::Auto if std::io::stderr().is_terminal() => Arc::new(Bar::new()),
        ProgressFormat::Auto => Arc::new(Lines(Every::new(LINE_EVERY_MS))),
    }
}

/// Reports notices, and no progress: for a run that moves nothing.
#[derive(Debug)]
pub(crate) struct Notices;

impl Observer for Notices {
    fn begin(&self, _: &Arc<Live>) {}

    fn notice(&self, text: &str) {
        streams::notice(text);
    }
}

/// `--progress none`.
#[derive(Debug)]
struct Nothing;

impl Display for Nothing {
    fn state(&self, _: &State) {}
}

/// Lets a state through now and then.
#[derive(Debug)]
struct Every {
    period_ms: u64,
    /// When the next one is due.
    next_ms: AtomicU64,
}

impl Every {
    const fn new(period_ms: u64) -> Self {
        Self {
            period_ms,
            next_ms: AtomicU64::new(0),
        }
    }

    fn is_due(&self, state: &State) -> bool {
        let due = state.at_ms >= self.next_ms.load(Ordering::Relaxed);
        if due {
            let next = state.at_ms.saturating_add(self.period_ms);
            self.next_ms.store(next, Ordering::Relaxed);
        }
        due
    }
}

/// The phase, for people.
pub(crate) fn phase(state: &State) -> String {
    match state.phase {
        Phase::Connecting => "connecting".into(),
        Phase::Precopy => format!("pre-copy, round {}", state.round),
        Phase::Switchover => "switchover".into(),
        Phase::Postcopy => "post-copy".into(),
    }
}

/// Bytes per second, for people.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    // A rate is positive, and `as` saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = bytes_per_second as u64;
    format!("{}/s", mib(rate))
}

/// What is known of the guest besides: how fast it writes, or what it waits for.
fn guest(state: &State) -> Option<String> {
    if let (Phase::Postcopy, Some(missing)) = (state.phase, state.missing_pages) {
        let faults = match state.requests.count {
            0 => String::new(),
            _ => format!(", faults {:.2} ms", state.requests.mean_us / 1e3),
        };
        return Some(format!("{missing} pages missing{faults}"));
    }
    let dirty = state.dirty_pages_per_second?;
    let dirty = rate(dirty * 4096.0);
    (state.phase == Phase::Precopy).then(|| format!("dirty {dirty}"))
}

/// The time left: what is likely, and its range if that is wide.
fn left(left: &TimeLeft) -> (String, String) {
    let time = |s: f64| {
        let time = std::time::Duration::try_from_secs_f64(s.max(0.0));
        seconds(time.unwrap_or(std::time::Duration::MAX))
    };
    let likely = format!("{} left", time(left.likely_s));
    let range = match left.high_s {
        Some(high) => format!(" ({} to {})", time(left.low_s), time(high)),
        None => format!(" (at least {})", time(left.low_s)),
    };
    (likely, range)
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

impl Display for Bar {
    fn state(&self, state: &State) {
        // Each time: the terminal may have been resized.
        self.0.set_message(format_line(state, width()));
    }

    fn notice(&self, text: &str) {
        self.0.suspend(|| streams::notice(text));
    }

    fn clear(&self) {
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
fn format_line(state: &State, width: usize) -> String {
    let room = width.saturating_sub(1);
    let total = state.total_pages.max(1);
    let done = state.done_pages.min(total);
    let percent = u128::from(done) * 100 / u128::from(total);
    let (name, percent) = (phase(state), format!("{percent:>3}%"));
    let rate = rate(state.bytes_per_second);
    let with_comma = |text: String| format!(", {text}");
    let guest = guest(state).map_or_else(String::new, with_comma);
    let (left, range) = state.time_left.as_ref().map(left).unwrap_or_default();
    let left = match left.is_empty() {
        true => left,
        false => with_comma(left),
    };
    // For each form, the text before and after the bar, and whether there is a bar.
    let forms = [
        (
            format!("{name:>18}"),
            format!("{percent} {rate}{guest}{left}{range}"),
            true,
        ),
        (
            format!("{name:>18}"),
            format!("{percent} {rate}{guest}{left}"),
            true,
        ),
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
#[derive(Debug)]
struct Lines(Every);

impl Display for Lines {
    fn state(&self, state: &State) {
        // There is nothing to count before a phase has pages.
        if state.total_pages == 0 || !self.0.is_due(state) {
            return;
        }
        let guest = guest(state).map_or_else(String::new, |guest| format!(", {guest}"));
        streams::notice(&format!(
            "{}: {} of {} pages, {}{guest}",
            phase(state),
            state.done_pages,
            state.total_pages,
            rate(state.bytes_per_second)
        ));
    }
}

/// One object a line: `{"progress":{…}}` or `{"notice":"…"}`.
#[derive(Debug)]
struct Objects(Every);

impl Display for Objects {
    fn state(&self, state: &State) {
        if self.0.is_due(state) {
            streams::object("progress", &ProgressReport::from(state));
        }
    }
}

/// A [`State`] as JSON, without what grows with the guest or with time (`docs/json.md`).
#[derive(Debug, Serialize)]
pub(crate) struct ProgressReport<'a> {
    at_ms: u64,
    phase: Phase,
    round: u32,
    done_pages: u64,
    total_pages: u64,
    bytes: u64,
    bytes_per_second: f64,
    dirty_pages_per_second: Option<f64>,
    time_left: Option<TimeLeft>,
    guest_at: GuestAt,
    stage: &'a str,
    peer_stage: &'a str,
    downtime_ms: Option<f64>,
    missing_pages: Option<u64>,
    waiting_pages: u64,
    requests: Requests,
}

/// The latency of page requests.
#[derive(Debug, Serialize)]
struct Requests {
    count: u64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl<'a> From<&'a State> for ProgressReport<'a> {
    fn from(state: &'a State) -> Self {
        let (bytes, requests) = (&state.bytes, &state.requests);
        Self {
            at_ms: state.at_ms,
            phase: state.phase,
            round: state.round,
            done_pages: state.done_pages,
            total_pages: state.total_pages,
            bytes: bytes.precopy + bytes.urgent + bytes.background,
            bytes_per_second: state.bytes_per_second,
            dirty_pages_per_second: state.dirty_pages_per_second,
            time_left: state.time_left,
            guest_at: state.guest_at,
            stage: &state.stage,
            peer_stage: &state.peer_stage,
            downtime_ms: state.downtime_ms,
            missing_pages: state.missing_pages,
            waiting_pages: state.waiting_pages,
            requests: Requests {
                count: requests.count,
                mean_us: requests.mean_us,
                p50_us: requests.p50_us,
                p99_us: requests.p99_us,
                max_us: requests.max_us,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_status::{Bytes, Map, Pages, Requests};

    fn at(done: u64, total: u64) -> State {
        State {
            at_ms: 0,
            phase: Phase::Precopy,
            round: 3,
            done_pages: done,
            total_pages: total,
            stage: "owned".into(),
            peer_stage: "receiving".into(),
            guest_at: GuestAt::Source,
            pages: Pages::default(),
            bytes: Bytes::default(),
            bytes_per_second: 123.4 * 1_048_576.0,
            dirty_pages_per_second: Some(2560.0),
            limits: None,
            time_left: Some(TimeLeft {
                low_s: 2.0,
                likely_s: 3.5,
                high_s: Some(9.0),
            }),
            missing_pages: None,
            waiting_pages: 0,
            requests: Requests::default(),
            downtime_ms: None,
            switchover: Vec::new(),
            rounds: Vec::new(),
            outages: Vec::new(),
            map: Map::default(),
        }
    }

    #[test]
    fn the_line_fits_into_every_terminal() {
        for (done, total) in [(0, 0), (0, 1), (1, 3), (3, 3), (u64::MAX, u64::MAX), (9, 3)] {
            for width in 0..200 {
                let mut state = at(done, total);
                for phase in [Phase::Precopy, Phase::Postcopy] {
                    state.phase = phase;
                    state.missing_pages = Some(u64::MAX);
                    let line = format_line(&state, width);
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
    }

    #[test]
    fn a_narrow_terminal_shows_the_important_parts() {
        let line = |width| format_line(&at(25, 100), width);
        let wide = line(200);
        assert!(wide.starts_with(" pre-copy, round 3 [=======>"), "{wide}");
        assert!(
            wide.ends_with("]  25% 123.4 MiB/s, dirty 10.0 MiB/s, 3.5 s left (2.0 s to 9.0 s)"),
            "{wide}"
        );
        assert!(
            line(90).ends_with("dirty 10.0 MiB/s, 3.5 s left"),
            "{}",
            line(90)
        );
        assert!(
            line(70).ends_with("123.4 MiB/s, 3.5 s left"),
            "{}",
            line(70)
        );
        assert!(line(46).contains('[') && line(46).contains("MiB/s"));
        assert_eq!(line(38), "pre-copy, round 3  25% 123.4 MiB/s");
        assert_eq!(line(25), "pre-copy, round 3  25%");
        assert_eq!(line(10), "25%");
    }

    #[test]
    fn post_copy_shows_what_the_guest_waits_for() {
        let mut state = at(25, 100);
        (state.phase, state.missing_pages) = (Phase::Postcopy, Some(75));
        state.requests.count = 4;
        state.requests.mean_us = 81.0;
        let line = format_line(&state, 200);
        assert!(
            line.contains(", 75 pages missing, faults 0.08 ms, 3.5 s left"),
            "{line}"
        );
        state.time_left = Some(TimeLeft {
            low_s: 2.0,
            likely_s: 3.5,
            high_s: None,
        });
        let line = format_line(&state, 200);
        assert!(line.ends_with("3.5 s left (at least 2.0 s)"), "{line}");
    }

    #[test]
    fn objects_are_written_every_200_ms() {
        let every = Every::new(OBJECT_EVERY_MS);
        let due = (0..10).filter(|tenth| {
            let mut state = at(0, 1);
            state.at_ms = tenth * 100;
            every.is_due(&state)
        });
        assert_eq!(due.count(), 5);
    }
}
