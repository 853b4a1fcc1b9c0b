//! How far a migration is, in one line for a person.

use std::ops::RangeInclusive;
use std::time::Duration;

use hikkoshi_account::{Converges, GuestAt, Outage, Phase, Progress, Stage, State, TimeLeft, Unit};
use hikkoshi_status::rate_text;

use crate::output::report::{mib, seconds};
use crate::output::stderr::ProgressBar;

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
    pub(super) fn of(guest_name: &str, state: &State) -> Self {
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
        let lasted = Duration::from_millis(state.at_ms.saturating_sub(outage.from_ms));
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
mod tests {
    use super::*;
    use crate::output::progress::tests::at;
    use hikkoshi_account::DiskCopy;
    use hikkoshi_handover::{DestinationStage, SourceStage};

    fn line(state: &State, columns: usize) -> String {
        ProgressLine::of("", state).text(columns)
    }

    #[test]
    fn the_line_fits_into_every_terminal() {
        for (done, total) in [(0, 0), (0, 1), (1, 3), (3, 3), (u64::MAX, u64::MAX), (9, 3)] {
            for columns in 0..200 {
                let mut state = at(done, total);
                state.bytes.precopy = u64::MAX;
                for (phase, converges) in [
                    (Phase::Precopy, None),
                    (Phase::Precopy, Some(Converges::No)),
                    (Phase::Postcopy, None),
                ] {
                    (state.phase, state.converges) = (phase, converges);
                    state.missing_pages = Some(u64::MAX);
                    let line = line(&state, columns);
                    assert!(
                        line.is_ascii() && line.len() < columns.max(1),
                        "{columns}: {line:?}"
                    );
                    let has_percentage = columns < 6 || line.contains('%') == (total > 0);
                    assert!(!line.contains('\n') && has_percentage, "{line:?}");
                    state.outages = vec![Outage {
                        from_ms: 0,
                        to_ms: None,
                        until_ms: Some(u64::MAX),
                    }];
                    let line = self::line(&state, columns);
                    assert!(line.is_ascii() && line.len() < columns.max(1), "{line:?}");
                    state.outages.clear();
                }
            }
        }
    }

    #[test]
    fn disks_are_counted_in_bytes() {
        let mut state = at(1, 9);
        state.phase = Phase::Disks;
        let disk = |copied_bytes, total_bytes| DiskCopy {
            name: "vda".into(),
            copied_bytes,
            total_bytes,
            in_sync: false,
        };
        state.disks = vec![disk(1 << 20, 3 << 20), disk(2 << 20, 3 << 20)];
        assert_eq!(
            ProgressLine::of("", &state).in_full(),
            "copying disks: 3.0 MiB of 6.0 MiB, 123.4 MiB/s"
        );
        assert!(line(&state, 60).contains(" 50% "), "{}", line(&state, 60));
        state.phase = Phase::Precopy;
        assert!(ProgressLine::of("", &state).in_full().contains("pages"));
        // A destination does not know of how many bytes.
        (state.phase, state.stage) = (
            Phase::Disks,
            Stage::Destination(DestinationStage::Receiving),
        );
        state.disks.clear();
        state.bytes.disks = Some(5 << 20);
        (state.dirty_pages_per_second, state.time_left) = (None, None);
        let text = "copying disks: 123.4 MiB/s, 5.0 MiB received";
        assert_eq!(ProgressLine::of("", &state).in_full(), text);
    }

    #[test]
    fn a_narrow_terminal_shows_the_important_parts() {
        let mut state = at(25, 100);
        state.bytes.precopy = 1_288_490_189;
        let line = |columns| line(&state, columns);
        let wide = line(200);
        assert!(wide.starts_with(" pre-copy, round 3 [=======>"), "{wide}");
        let sent = "]  25% 123.4 MiB/s, 1.2 GiB sent, dirty 10.0 MiB/s, 3.5 s left";
        assert!(
            wide.ends_with(&format!("{sent} (2.0 s to 9.0 s)")),
            "{wide}"
        );
        assert!(line(100).ends_with(sent), "{}", line(100));
        assert!(
            line(85).ends_with("123.4 MiB/s, dirty 10.0 MiB/s, 3.5 s left"),
            "{}",
            line(85)
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

    /// It is the first thing that the line says, and what it means for the guest the second.
    #[test]
    fn an_outage_is_shown_instead_of_a_rate() {
        let mut state = at(63, 100);
        (state.phase, state.missing_pages) = (Phase::Postcopy, Some(37));
        (state.stage, state.waiting_pages) = (Stage::Destination(DestinationStage::Running), 3);
        assert!(!ProgressLine::of("", &state).is_alarm());
        state.at_ms = 20_300;
        state.outages = vec![Outage {
            from_ms: 8_000,
            to_ms: None,
            until_ms: Some(320_300),
        }];
        state.time_left = None;
        let shown = ProgressLine::of("", &state);
        assert!(shown.is_alarm());
        assert_eq!(
            shown.in_full(),
            "NO LINK for 12.3 s: 63 of 100 pages, the guest waits for 3 pages, 37 pages missing, \
             tried for 300.0 s more"
        );
        let narrow = line(&state, 60);
        assert_eq!(
            narrow,
            "NO LINK for 12.3 s  63% the guest waits for 3 pages"
        );
    }

    /// Only the destination knows whether it was told to run the guest.
    #[test]
    fn an_outage_in_the_switchover_says_that_the_guest_is_paused() {
        let mut state = at(0, 0);
        (state.guest_at, state.waiting_pages) = (GuestAt::Paused, 0);
        for (stage, is) in [
            (Stage::Destination(DestinationStage::Ready), "is paused"),
            (Stage::Source(SourceStage::Committed), "may be paused"),
        ] {
            state.stage = stage;
            assert_eq!(
                waits(&state),
                format!("the guest {is} until there are links")
            );
        }
        (state.guest_at, state.stage) = (
            GuestAt::Destination,
            Stage::Destination(DestinationStage::Running),
        );
        assert_eq!(waits(&state), "the guest waits for no page yet");
    }

    #[test]
    fn the_guest_has_a_name_where_there_is_room() {
        let state = at(25, 100);
        let line = ProgressLine::of("web-é", &state);
        assert!(
            line.in_full()
                .starts_with("web-?: pre-copy, round 3: 25 of")
        );
        assert!(line.text(200).starts_with("web-?:  pre-copy, round 3 ["));
        for columns in 0..200 {
            assert!(line.text(columns).len() < columns.max(1), "{columns}");
        }
        let narrow = line.text(70);
        assert!(
            narrow.contains("pre-copy") && !narrow.contains("web"),
            "{narrow}"
        );
    }

    /// A log has as much as a wide terminal.
    #[test]
    fn a_line_of_a_log_has_everything() {
        let mut state = at(25, 100);
        state.bytes.urgent = 5 << 20;
        assert_eq!(
            ProgressLine::of("", &state).in_full(),
            "pre-copy, round 3: 25 of 100 pages, 123.4 MiB/s, 5.0 MiB sent, dirty 10.0 MiB/s, \
             3.5 s left (2.0 s to 9.0 s)"
        );
        state.stage = Stage::Destination(DestinationStage::Receiving);
        let destination = ProgressLine::of("", &state).in_full();
        assert!(destination.contains(", 5.0 MiB received,"), "{destination}");
    }

    #[test]
    fn precopy_that_does_not_converge_has_no_time_left() {
        let mut state = at(25, 100);
        state.converges = Some(Converges::No);
        for text in [line(&state, 200), ProgressLine::of("", &state).in_full()] {
            assert!(
                text.ends_with("dirty 10.0 MiB/s, does not converge"),
                "{text}"
            );
        }
        // It is more important than the rate of the guest's writes.
        assert!(line(&state, 80).ends_with("123.4 MiB/s, does not converge"));
    }

    /// Post-copy follows by itself: there is a time left.
    #[test]
    fn precopy_that_switches_has_a_time_left() {
        let mut state = at(25, 100);
        state.converges = Some(Converges::Switches);
        let text = ProgressLine::of("", &state).in_full();
        let end = "dirty 10.0 MiB/s, post-copy follows, 3.5 s left (2.0 s to 9.0 s)";
        assert!(text.ends_with(end), "{text}");
    }

    /// Of what it receives in pre-copy, it does not know in which round that is, or of how many
    /// pages.
    #[test]
    fn a_destination_has_no_round_and_no_percentage() {
        let mut state = at(0, 0);
        state.round = 0;
        state.stage = Stage::Destination(DestinationStage::Receiving);
        state.bytes.precopy = 5 << 20;
        (state.dirty_pages_per_second, state.time_left) = (None, None);
        let text = "pre-copy: 123.4 MiB/s, 5.0 MiB received";
        assert_eq!(ProgressLine::of("", &state).in_full(), text);
        assert_eq!(
            line(&state, 100).trim_start(),
            "pre-copy 123.4 MiB/s, 5.0 MiB received"
        );
        assert_eq!(line(&state, 25), "pre-copy 123.4 MiB/s");
        assert_eq!(line(&state, 12), "pre-copy");
    }

    #[test]
    fn post_copy_shows_what_the_guest_waits_for() {
        let mut state = at(25, 100);
        (state.phase, state.missing_pages) = (Phase::Postcopy, Some(75));
        state.requests.count = 4;
        state.requests.mean = 81.0;
        let text = line(&state, 200);
        assert!(
            text.contains(", 75 pages missing, faults 0.08 ms, 3.5 s left"),
            "{text}"
        );
        state.time_left = Some(TimeLeft {
            low_s: 2.0,
            likely_s: 3.5,
            high_s: None,
        });
        let text = line(&state, 200);
        assert!(text.ends_with("3.5 s left (at least 2.0 s)"), "{text}");
    }
}
