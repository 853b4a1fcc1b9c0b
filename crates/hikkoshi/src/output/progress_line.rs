//! How far a migration is, in one line for a person.

use std::ops::RangeInclusive;
use std::time::Duration;

use hikkoshi_account::rate_text;
use hikkoshi_account::{Converges, GuestAt, Outage, Phase, Progress, Stage, State, TimeLeft, Unit};

use crate::output::stderr::ProgressBar;
use crate::output::units::{mib, seconds};

/// The smallest and the largest number of columns inside the bar.
const BAR: RangeInclusive<usize> = 6..=30;

/// The parts of the line. All of them are ASCII: a byte is a column.
#[derive(Debug)]
pub(super) struct ProgressLine {
    /// What the guest is called, and a colon. Empty, if it has no name.
    name: String,
    phase: String,
    /// `None`: it is not known how much there is.
    progress: Option<Progress>,
    rate: String,
    /// What was sent, or has arrived, so far.
    bytes: String,
    /// How fast the guest writes, or what it waits for. May be empty, as the rest.
    guest: String,
    /// The time left: what is likely, or why it is not known.
    left: String,
    /// Its range.
    range: String,
    /// There are no links.
    is_alarm: bool,
}

impl ProgressLine {
    pub(super) fn new(guest_name: &str, state: &State) -> Self {
        let (left, range) = left(state);
        if let Some(outage) = state.outage() {
            return Self {
                name: name(guest_name),
                phase: phase(state),
                progress: state.progress(),
                rate: waits(state),
                bytes: String::new(),
                guest: missing(state),
                left: tried_for(state, outage),
                range: String::new(),
                is_alarm: true,
            };
        }
        Self {
            name: name(guest_name),
            is_alarm: false,
            phase: phase(state),
            progress: state.progress(),
            rate: rate_text(state.bytes_per_second),
            bytes: bytes(state),
            guest: guest(state),
            left,
            range,
        }
    }

    /// All of it, without a bar.
    pub(super) fn in_full(&self) -> String {
        let Self {
            name,
            phase,
            progress,
            rate,
            bytes,
            guest,
            left,
            range,
            ..
        } = self;
        let pages = match progress {
            Some(Progress { done, total, unit }) if *unit == Unit::DiskBytes => {
                let (done, total) = (mib(*done), mib(*total));
                return format!("{name}{phase}: {done} of {total}, {rate}");
            }
            Some(Progress { done, total, .. }) => format!("{done} of {total} pages, "),
            None => String::new(),
        };
        format!("{name}{phase}: {pages}{rate}{bytes}{guest}{left}{range}")
    }
}

impl ProgressBar for ProgressLine {
    /// Less important parts are left out of a narrow line. The last column stays free: some
    /// terminals begin a new line after it. If it is not known of how many pages, there is neither
    /// a bar nor a percentage.
    fn text(&self, columns: usize) -> String {
        let room = columns.saturating_sub(1);
        let percent = self
            .progress
            .map_or_else(String::new, |of| format!("{:>3}% ", percent(&of)));
        let Self {
            name,
            phase,
            rate,
            bytes,
            guest,
            left,
            range,
            ..
        } = self;
        let aligned = format!("{phase:>18}");
        let named = format!("{name}{aligned}");
        let short = format!("{percent}{rate}{left}");
        // For each form, the text before and after the bar, and whether there is a bar.
        let forms = [
            (
                &named,
                format!("{percent}{rate}{bytes}{guest}{left}{range}"),
                true,
            ),
            (
                &aligned,
                format!("{percent}{rate}{bytes}{guest}{left}{range}"),
                true,
            ),
            (
                &aligned,
                format!("{percent}{rate}{bytes}{guest}{left}"),
                true,
            ),
            (&aligned, format!("{percent}{rate}{guest}{left}"), true),
            (&aligned, short.clone(), true),
            (phase, short, true),
            (phase, format!("{percent}{rate}"), true),
            (phase, format!("{percent}{rate}"), false),
            (phase, percent.trim_end().to_owned(), false),
        ];
        for (before, behind, has_bar) in forms {
            let taken = before.len() + 1 + behind.len();
            let columns = room.saturating_sub(taken + 3);
            match self.progress.filter(|_| has_bar) {
                None if taken <= room => {
                    return format!("{before} {behind}").trim_end().to_owned();
                }
                Some(of) if columns >= *BAR.start() => {
                    let bar = bar(&of, columns.min(*BAR.end()));
                    return format!("{before} [{bar}] {behind}");
                }
                _ => {}
            }
        }
        let last = if self.progress.is_some() {
            percent.trim()
        } else {
            rate
        };
        last.chars().take(room).collect()
    }

    fn is_alarm(&self) -> bool {
        self.is_alarm
    }
}

/// The name of a guest before what is said of it: in ASCII, and not longer than most.
fn name(guest: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    match guest.chars().take(40).map(shown).collect::<String>() {
        name if name.is_empty() => name,
        name => format!("{name}: "),
    }
}

/// How much is done, of a hundred.
pub(super) fn percent(of: &Progress) -> u128 {
    u128::from(of.done) * 100 / u128::from(of.total)
}

/// A bar of `columns` columns.
fn bar(of: &Progress, columns: usize) -> String {
    let full = u128::from(of.done) * columns as u128 / u128::from(of.total);
    let full = usize::try_from(full).unwrap_or(columns).min(columns);
    let head = usize::from(full < columns);
    format!(
        "{}{}{}",
        "=".repeat(full),
        ">".repeat(head),
        " ".repeat(columns - full - head)
    )
}

/// The phase, for people.
pub(super) fn phase(state: &State) -> String {
    if let Some(outage) = state.outage() {
        let lasted = Duration::from_millis(outage.lasts_ms(state.at_ms));
        return format!("NO LINK for {}", seconds(lasted));
    }
    match state.phase {
        Phase::Connecting => "connecting".into(),
        Phase::Disks => "copying disks".into(),
        Phase::Precopy if state.round == 0 => "pre-copy".into(),
        Phase::Precopy => format!("pre-copy, round {}", state.round),
        Phase::Switchover => "switchover".into(),
        Phase::Postcopy => "post-copy".into(),
        Phase::Unknown => "a phase of a newer version".into(),
    }
}

/// What an outage means for the guest, as far as this side knows: only the destination knows for
/// which pages it waits.
pub(super) fn waits(state: &State) -> String {
    if state.guest_at == GuestAt::Paused {
        let is = match is_source(state) {
            true => "may be paused",
            false => "is paused",
        };
        return format!("the guest {is} until there are links");
    }
    match (is_source(state), state.missing_pages, state.waiting_pages) {
        (_, Some(0), _) => "the guest needs no page".to_owned(),
        (true, ..) => "the guest may wait for pages".to_owned(),
        (false, _, 0) => "the guest waits for no page yet".to_owned(),
        (false, _, 1) => "the guest waits for 1 page".to_owned(),
        (false, _, waiting) => format!("the guest waits for {waiting} pages"),
    }
}

/// How long new links are tried to be made.
fn tried_for(state: &State, outage: &Outage) -> String {
    let left = outage
        .until_ms
        .map(|until| until.saturating_sub(state.at_ms));
    left.map_or_else(String::new, |left| {
        format!(", tried for {} more", seconds(Duration::from_millis(left)))
    })
}

fn is_source(state: &State) -> bool {
    matches!(state.stage, Stage::Source(_))
}

/// The pages that are missing.
fn missing(state: &State) -> String {
    let missing = state.missing_pages;
    missing.map_or_else(String::new, |missing| format!(", {missing} pages missing"))
}

/// What was sent, or has arrived.
fn bytes(state: &State) -> String {
    let bytes = state.bytes.all();
    #[allow(clippy::cast_precision_loss)]
    let size = match bytes {
        0 => return String::new(),
        bytes if bytes < 1 << 30 => mib(bytes),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    };
    let what = if is_source(state) { "sent" } else { "received" };
    format!(", {size} {what}")
}

/// What is known of the guest besides: how fast it writes, or what it waits for.
fn guest(state: &State) -> String {
    match (
        state.phase,
        state.missing_pages,
        state.dirty_pages_per_second,
    ) {
        (Phase::Postcopy, Some(_), _) => {
            let faults = match state.requests.count {
                0 => String::new(),
                _ => format!(", faults {:.2} ms", state.requests.mean / 1e3),
            };
            missing(state) + &faults
        }
        (Phase::Precopy, _, Some(dirty)) => format!(", dirty {}", rate_text(dirty * 4096.0)),
        _ => String::new(),
    }
}

/// The time left: what is likely, and its range.
fn left(state: &State) -> (String, String) {
    if state.converges == Some(Converges::No) {
        return (", does not converge".into(), String::new());
    }
    let Some(left) = state.time_left else {
        return Default::default();
    };
    let how = match state.converges {
        Some(Converges::Switches) => ", post-copy follows",
        _ => "",
    };
    let likely = left_seconds(left.likely_s);
    (format!("{how}, {likely} left"), left_range(&left))
}

/// A number of seconds that are left.
pub(super) fn left_seconds(s: f64) -> String {
    let time = Duration::try_from_secs_f64(s.max(0.0));
    seconds(time.unwrap_or(Duration::MAX))
}

/// The range of an estimate, behind its likely value.
pub(super) fn left_range(left: &TimeLeft) -> String {
    let low = left_seconds(left.low_s);
    match left.high_s {
        Some(high) => format!(" ({low} to {})", left_seconds(high)),
        None => format!(" (at least {low})"),
    }
}

#[cfg(test)]
mod tests;
