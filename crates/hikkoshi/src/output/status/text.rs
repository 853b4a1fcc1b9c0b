//! Migrations as text: a table, or all about each.

use hikkoshi_account::rate_text;
use hikkoshi_account::{DiskCopy, GuestAt, Phase, Progress, Side, State, TimeLeft, Unit};
use hikkoshi_status::Migration;

use super::alarm::no_links;
use super::report::expected_downtime_ms;
use super::{Engine, SeenMigration};
use crate::output::colours::Colour;
use crate::output::columns::{Row, in_columns};
use crate::output::progress_line::{self, left_range, left_seconds};
use crate::output::streams::Lines;
use crate::output::units::{downtime_limit, limit, mib};

/// What is not known.
pub(super) const NOTHING: &str = "-";

const HEADINGS: [&str; 12] = [
    "GUEST", "SIDE", "PID", "ID", "MODE", "PHASE", "DONE", "RATE", "DIRTY", "LEFT", "DOWNTIME",
    "FAULTS",
];

/// The headings of columns that a narrow terminal does not have.
const LEFT_OUT: [&str; 8] = [
    "FAULTS", "ID", "MODE", "PID", "DIRTY", "SIDE", "DOWNTIME", "RATE",
];

/// A line for each migration, under headings. It has as many columns of the table as there are
/// `columns` of the terminal for; `None`: all.
pub(crate) fn table(all: &[&SeenMigration], columns: Option<usize>) -> Vec<Lines> {
    if all.is_empty() {
        let none = "no migration runs on this host";
        return vec![Lines::new(Colour::Plain, none)];
    }
    let mut rows = vec![(Colour::Heading, HEADINGS.map(str::to_owned).to_vec())];
    rows.extend(all.iter().map(|seen| (colour(seen), row(seen).to_vec())));
    in_columns(&rows, &LEFT_OUT, columns)
}

/// The same for the migrations of several hosts, each of which is named first.
pub(super) fn table_of_hosts(all: &[(&str, &SeenMigration)], columns: Option<usize>) -> Vec<Lines> {
    if all.is_empty() {
        let none = "no migration runs on these hosts";
        return vec![Lines::new(Colour::Plain, none)];
    }
    let with_host = |host: &str, row: [String; 12]| {
        let host = [host.to_owned()].into_iter();
        host.chain(row).collect::<Vec<_>>()
    };
    let headings = with_host("HOST", HEADINGS.map(str::to_owned));
    let mut rows: Vec<Row> = vec![(Colour::Heading, headings)];
    let row = |(host, seen): &(&str, &SeenMigration)| (colour(seen), with_host(host, row(seen)));
    rows.extend(all.iter().map(row));
    in_columns(&rows, &LEFT_OUT, columns)
}

/// A migration that is not finished, an outage, or an engine that is gone and has not ended, is not
/// to be missed.
fn colour(seen: &SeenMigration) -> Colour {
    if seen.unfinished.is_some() {
        return Colour::Alarm;
    }
    let state = seen.state.as_ref();
    let is_out = state.is_some_and(|state| state.outage().is_some());
    match (seen.engine, &seen.end) {
        (Engine::Gone, None) if seen.is_continued => Colour::Plain,
        (Engine::Gone, None) | (Engine::Silent, _) => Colour::Alarm,
        (_, None) if is_out => Colour::Alarm,
        _ => Colour::Plain,
    }
}

fn row(seen: &SeenMigration) -> [String; 12] {
    let migration = &seen.migration;
    let state = seen.state.as_ref();
    let shown = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
    let running = state.filter(|_| seen.answers());
    [
        one_line(&migration.guest),
        migration.side.name().to_owned(),
        shown(process(migration)),
        migration.id.chars().take(8).collect(),
        migration.mode_name().to_owned(),
        phase(seen),
        shown(state.and_then(done)),
        shown(running.map(|state| rate_text(state.bytes_per_second))),
        shown(running.and_then(dirty)),
        shown(running.and_then(|state| Some(left_seconds(state.time_left?.likely_s)))),
        shown(state.and_then(|state| downtime(seen, state))),
        shown(state.and_then(faults)),
    ]
}

/// All that is known of each migration, a line for each thing.
pub(crate) fn details(all: &[&SeenMigration]) -> Vec<Lines> {
    let mut text = Vec::new();
    for (number, seen) in all.iter().enumerate() {
        if number > 0 {
            text.push(Lines::new(Colour::Plain, ""));
        }
        for (name, value) in lines(seen) {
            let colour = match name {
                "guest" => Colour::Heading,
                "phase" | "links" | "no engine" => colour(seen),
                "next" | "resume it" => Colour::Next,
                _ => Colour::Plain,
            };
            let line = format!("{name:<10} {}", one_line(&value));
            text.push(Lines::new(colour, line));
        }
    }
    text
}

fn lines(seen: &SeenMigration) -> Vec<(&'static str, String)> {
    let migration = &seen.migration;
    let mut lines = vec![
        ("guest", guest(migration)),
        (
            "migration",
            format!(
                "{} (process {}), {} side, {}, {} {}",
                migration.id,
                process(migration).as_deref().unwrap_or(NOTHING),
                migration.side.name(),
                migration.mode_name(),
                if migration.side == Side::Source {
                    "to"
                } else {
                    "from"
                },
                migration.peer,
            ),
        ),
        ("phase", phase(seen)),
    ];
    if let Some(unfinished) = &seen.unfinished {
        lines.push(("no engine", unfinished.message.clone()));
        lines.push(("resume it", unfinished.resume.clone()));
    }
    if let Some(state) = &seen.state {
        lines.extend(state_lines(seen, state));
    }
    if let Some(end) = &seen.end {
        lines.push(("end", end.message.clone()));
        lines.extend(end.next.clone().map(|next| ("next", next)));
    }
    lines
}

/// The process of the engine. A journal does not have it.
fn process(migration: &Migration) -> Option<String> {
    (migration.pid > 0).then(|| migration.pid.to_string())
}

/// The guest, and where its monitor is.
fn guest(migration: &Migration) -> String {
    match &migration.qmp {
        Some(qmp) if *qmp != migration.guest => format!("{} ({qmp})", migration.guest),
        _ => migration.guest.clone(),
    }
}

fn state_lines(seen: &SeenMigration, state: &State) -> Vec<(&'static str, String)> {
    let guest = match state.guest_at {
        GuestAt::Source => "at the source",
        GuestAt::Paused => "paused for the switchover",
        GuestAt::Destination => "at the destination",
    };
    let mut lines = vec![("guest is", guest.to_owned())];
    if let Some(outage) = state.outage().filter(|_| seen.answers()) {
        lines.push(("links", no_links(seen, state, outage)));
    }
    if let Some(of) = state.progress().filter(|of| of.unit == Unit::Pages) {
        let pages = format!("{} of {} in this phase ({})", of.done, of.total, share(&of));
        lines.push(("pages", pages));
    }
    lines.extend(state.disks.iter().map(|disk| ("disk", self::disk(disk))));
    let missing = |missing: u64| match seen.migration.side {
        Side::Source => format!("{missing} pages not sent yet"),
        Side::Destination => {
            format!("{missing} pages, {} of them requested", state.waiting_pages)
        }
    };
    lines.extend(state.missing_pages.map(|pages| ("missing", missing(pages))));
    if seen.answers() {
        lines.push(("rate", rate_text(state.bytes_per_second)));
        lines.extend(dirty(state).map(|rate| ("dirty rate", rate)));
        lines.extend(compressed(state).map(|by| ("compressed", by)));
        let left = |left: TimeLeft| left_seconds(left.likely_s) + &left_range(&left);
        lines.extend(state.time_left.map(|it| ("time left", left(it))));
    }
    lines.extend(downtime(seen, state).map(|downtime| ("downtime", downtime)));
    lines.extend(faults(state).map(|faults| ("faults", faults)));
    if let Some(limits) = state.limits {
        let bandwidth = format!("bandwidth {}", limit(limits.bandwidth));
        let downtime = limits.max_downtime_ms;
        let downtime = downtime.map(|ms| format!(", downtime {}", downtime_limit(ms)));
        lines.push(("limits", bandwidth + &downtime.unwrap_or_default()));
    }
    lines
}

fn phase(seen: &SeenMigration) -> String {
    // Also if the last engine has said how it ended: it has given up, and can be resumed.
    if seen.unfinished.is_some() {
        return "NOT FINISHED".to_owned();
    }
    match (&seen.end, &seen.state, seen.engine) {
        (Some(end), ..) => format!("ended ({})", end.reason),
        (None, Some(state), Engine::Answers) => progress_line::phase(state),
        (None, None, Engine::Answers) => "connecting".to_owned(),
        (None, _, Engine::Silent) => "engine does not answer".to_owned(),
        (None, _, Engine::Gone) => "engine killed".to_owned(),
    }
}

fn done(state: &State) -> Option<String> {
    Some(share(&state.progress()?))
}

fn share(progress: &Progress) -> String {
    format!("{}%", progress_line::percent(progress))
}

/// How far the copy of a disk is.
fn disk(disk: &DiskCopy) -> String {
    let copied = format!(
        "{}, {} of {} copied",
        disk.name,
        mib(disk.copied_bytes),
        mib(disk.total_bytes)
    );
    match disk.in_sync {
        true => format!("{copied}, in sync"),
        false => copied,
    }
}

/// How fast the guest writes.
fn dirty(state: &State) -> Option<String> {
    let pages = state.dirty_pages_per_second?;
    (state.phase == Phase::Precopy).then(|| rate_text(pages * 4096.0))
}

/// What compression has made of the pages.
fn compressed(state: &State) -> Option<String> {
    let methods = state.compression?;
    let each = methods.by_method().map(|(method, compressed)| {
        format!(
            "{} to {} by {method}",
            mib(compressed.content_bytes),
            mib(compressed.sent_bytes)
        )
    });
    Some(each.collect::<Vec<_>>().join(", "))
}

/// The downtime, or what it would be now.
fn downtime(seen: &SeenMigration, state: &State) -> Option<String> {
    if let Some(ms) = state.likely_downtime_ms.or(state.downtime_ms) {
        return Some(format!("{ms:.1} ms"));
    }
    let expected = expected_downtime_ms(seen, state).filter(|_| seen.answers())?;
    Some(format!("~{expected:.0} ms"))
}

/// The latency of page requests.
fn faults(state: &State) -> Option<String> {
    let requests = &state.requests;
    (requests.count > 0).then(|| {
        format!(
            "{} x {:.2} ms, p99 {:.2} ms",
            requests.count,
            requests.mean / 1e3,
            requests.p99 / 1e3
        )
    })
}

/// Names from other processes can contain anything: each stays in its line.
pub(super) fn one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::output::status::Unfinished;
    use crate::output::status::examples::{self, seen};
    use hikkoshi_account::{Limits, Mode, Outage, Stage};
    use hikkoshi_handover::SourceStage;
    use hikkoshi_status::End;

    pub(crate) fn state() -> State {
        State {
            at_ms: 1000,
            phase: Phase::Precopy,
            round: 2,
            done_pages: 25,
            total_pages: 100,
            bytes_per_second: 1_048_576.0,
            dirty_pages_per_second: Some(512.0),
            limits: Some(Limits {
                max_downtime_ms: None,
                bandwidth: Some(5000),
            }),
            time_left: Some(TimeLeft {
                low_s: 2.0,
                likely_s: 3.5,
                high_s: None,
            }),
            ..State::new(Side::Source)
        }
    }

    fn text(lines: &[Lines]) -> String {
        lines.iter().fold(String::new(), |mut text, line| {
            text.push_str(&line.text);
            text.push('\n');
            text
        })
    }

    fn table(all: &[&SeenMigration]) -> String {
        text(&super::table(all, None))
    }

    fn details(all: &[&SeenMigration]) -> String {
        text(&super::details(all))
    }

    /// A source that runs.
    pub(crate) fn running(mode: Mode) -> SeenMigration {
        let mut seen = seen(Side::Source, "web", 4711, true);
        seen.migration.mode = Some(mode);
        seen.state = Some(state());
        seen
    }

    #[test]
    fn the_columns_are_aligned() {
        let (one, mut other) = (running(Mode::Hybrid), running(Mode::Postcopy));
        other.migration.guest = "a-guest-with-a-longer-name\u{1b}[2J".into();
        let other_state = other.state.as_mut().unwrap();
        other_state.phase = Phase::Postcopy;
        other_state.downtime_ms = Some(8.25);
        other_state.requests.count = 4;
        other_state.requests.mean = 81.0;
        let text = table(&[&one, &other]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for heading in ["SIDE", "PHASE", "RATE", "FAULTS"] {
            let column = lines[0].find(heading).unwrap();
            assert!(lines.iter().all(|line| line.as_bytes()[column - 1] == b' '));
        }
        let words: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "web",
                "source",
                "4711",
                "00001267",
                "hybrid",
                "pre-copy,",
                "round",
                "2",
                "25%",
                "1.0",
                "MiB/s",
                "2.0",
                "MiB/s",
                "3.5",
                "s",
                "-",
                "-"
            ]
        );
        assert!(
            lines[2].contains("8.2 ms") && lines[2].contains("4 x 0.08 ms"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        assert_eq!(table(&[]), "no migration runs on this host\n");
    }

    #[test]
    fn a_narrow_terminal_shows_the_important_columns() {
        let mut seen = running(Mode::Precopy);
        seen.migration.pid = 1_234_567;
        let state = seen.state.as_mut().unwrap();
        state.bytes_per_second = 1.25e9;
        state.dirty_pages_per_second = Some(1e6);
        state.round = 12;
        state.requests.count = 1000;
        state.downtime_ms = Some(120.5);
        let of_destination = examples::seen(Side::Destination, "database-1", 7, true);
        for columns in 0..200 {
            let lines = super::table(&[&seen, &of_destination], Some(columns));
            let is_cut = |line: &Lines| line.text.chars().count() > columns;
            assert!(!lines.iter().any(is_cut), "{columns}: {lines:?}");
            let headings = &lines[0].text;
            for (heading, least) in [("LEFT", 48), ("RATE", 64), ("SIDE", 80), ("FAULTS", 170)] {
                let has = headings.contains(heading);
                assert!(has || columns < least, "{columns}: {headings}");
            }
            assert!(columns < 80 || headings.contains("DOWNTIME"), "{headings}");
        }
    }

    #[test]
    fn what_is_wrong_has_an_alarm_colour() {
        let mut seen = running(Mode::Hybrid);
        let colours = |seen: &SeenMigration| {
            super::table(&[seen], None)
                .iter()
                .map(|row| row.colour)
                .collect::<Vec<_>>()
        };
        assert_eq!(colours(&seen), [Colour::Heading, Colour::Plain]);
        let outage = |to_ms| Outage {
            from_ms: 1,
            before_ms: 0,
            to_ms,
            until_ms: None,
        };
        seen.state.as_mut().unwrap().outages = vec![outage(Some(2))];
        assert_eq!(colours(&seen)[1], Colour::Plain);
        seen.state.as_mut().unwrap().outages.push(outage(None));
        assert_eq!(colours(&seen)[1], Colour::Alarm);
        let phase = super::details(&[&seen])
            .into_iter()
            .find(|line| line.text.starts_with("phase"));
        assert_eq!(phase.unwrap().colour, Colour::Alarm);
        seen.state.as_mut().unwrap().outages.clear();
        seen.engine = Engine::Gone;
        assert_eq!(colours(&seen)[1], Colour::Alarm);
        seen.is_continued = true;
        assert_eq!(colours(&seen)[1], Colour::Plain);
    }

    /// It has left its end and its journal.
    #[test]
    fn an_engine_that_gave_up_has_not_finished() {
        let mut seen = running(Mode::Postcopy);
        seen.engine = Engine::Gone;
        seen.end = Some(End {
            at_ms: 1,
            exit_status: 3,
            reason: "link".into(),
            message: "no link".into(),
            next: None,
            account: None,
        });
        assert_eq!(super::table(&[&seen], None)[1].colour, Colour::Plain);
        seen.unfinished = Some(Unfinished {
            journal: "/run/j.json".into(),
            stage: Stage::Source(SourceStage::HandedOver),
            message: "the guest runs at the destination".to_owned(),
            resume: "hikkoshi migrate --resume=/run/j.json".into(),
        });
        let row = &super::table(&[&seen], None)[1];
        assert_eq!(row.colour, Colour::Alarm);
        assert!(row.text.contains("NOT FINISHED"), "{}", row.text);
        let lines = super::details(&[&seen]);
        let phase = lines.iter().find(|line| line.text.starts_with("phase"));
        let phase = phase.unwrap();
        assert_eq!(
            (phase.text.as_str(), phase.colour),
            ("phase      NOT FINISHED", Colour::Alarm)
        );
        let text = details(&[&seen]);
        assert!(text.contains("end        no link\n"), "{text}");
    }

    #[test]
    fn a_migration_without_a_recording_has_no_process() {
        let mut seen = running(Mode::Postcopy);
        seen.migration.pid = 0;
        let text = table(&[&seen]);
        let row: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..3], ["web", "source", "-"]);
        assert!(details(&[&seen]).contains("(process -)"));
    }

    #[test]
    fn disks_are_shown_by_name() {
        let mut seen = running(Mode::Hybrid);
        let state = seen.state.as_mut().unwrap();
        state.phase = Phase::Disks;
        (state.done_pages, state.total_pages) = (0, 0);
        let disk = |name: &str, copied_bytes, in_sync| DiskCopy {
            name: name.into(),
            copied_bytes,
            total_bytes: 4 << 20,
            in_sync,
        };
        state.disks = vec![disk("vda", 4 << 20, true), disk("vdb\n", 1 << 20, false)];
        let text = details(&[&seen]);
        for line in [
            "phase      copying disks\n",
            "disk       vda, 4.0 MiB of 4.0 MiB copied, in sync\n",
            "disk       vdb, 1.0 MiB of 4.0 MiB copied\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("pages"), "{text}");
        let text = table(&[&seen]);
        assert!(
            text.contains("copying disks") && text.contains("62%"),
            "{text}"
        );
    }

    #[test]
    fn the_details_have_the_limits_and_the_end() {
        let mut seen = running(Mode::Hybrid);
        assert!(details(&[&seen]).starts_with("guest      web\n"));
        seen.migration.qmp = Some("/run/web.qmp".into());
        let text = details(&[&seen]);
        assert!(text.starts_with("guest      web (/run/web.qmp)\n"));
        assert!(
            text.contains("limits     bandwidth 0.0048 MiB/s\n"),
            "{text}"
        );
        assert!(
            text.contains("time left  3.5 s (at least 2.0 s)\n"),
            "{text}"
        );
        seen.engine = Engine::Silent;
        let text = details(&[&seen]);
        assert!(text.contains("phase      engine does not answer\n"));
        seen.engine = Engine::Answers;
        let now = seen.state.as_mut().unwrap();
        now.outages = vec![Outage {
            from_ms: 0,
            before_ms: 0,
            to_ms: None,
            until_ms: None,
        }];
        let text = details(&[&seen]);
        assert!(text.contains("phase      NO LINK for 1.0 s\n"), "{text}");
        assert!(text.contains("links      NO LINK to host-b:7000"), "{text}");
        seen.state.as_mut().unwrap().outages.clear();
        seen.engine = Engine::Silent;
        let text = details(&[&seen]);
        assert!(!text.contains("rate"), "{text}");
        seen.engine = Engine::Gone;
        assert!(details(&[&seen]).contains("engine killed"));
        seen.unfinished = Some(Unfinished {
            journal: "/run/j.json".into(),
            stage: Stage::Source(SourceStage::HandedOver),
            message: "the guest runs at the destination".to_owned(),
            resume: "hikkoshi migrate --resume=/run/j.json".into(),
        });
        let text = details(&[&seen]);
        for line in [
            "phase      NOT FINISHED\n",
            "no engine  the guest runs at the destination\n",
            "resume it  hikkoshi migrate --resume=/run/j.json\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        seen.unfinished = None;
        seen.end = Some(End {
            at_ms: 1,
            exit_status: 1,
            reason: "cancelled".into(),
            message: "cancelled\nby hand".into(),
            next: Some("the guest still runs at the source".into()),
            account: None,
        });
        let text = details(&[&seen]);
        assert!(text.contains("phase      ended (cancelled)\n"), "{text}");
        assert!(text.contains("end        cancelledby hand\n"), "{text}");
        assert!(!text.contains("rate"), "{text}");
    }
}
