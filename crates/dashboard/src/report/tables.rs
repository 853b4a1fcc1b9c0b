//! The tables of one migration, for a browser without scripts. With scripts the views show the same
//! and more (`web/js/views/`).

use hikkoshi_account::{Repeats, Side, date_text, rate_text};
use hikkoshi_status::{Recording, Unknown};

use super::both_sides::{BothSides, outcome};
use super::format::{NONE, bytes, count, duration, duration_of, elapsed, exact_bytes, micros};
use super::hot_ranges::hot_ranges;
use super::markup::{Table, number, panel, text};

/// All tables of a migration.
pub(super) fn tables(migration: &BothSides<'_>) -> String {
    [
        ("Engines", engines(migration)),
        ("What happened", course(migration)),
        ("Switchover and downtime", switchover(migration)),
        ("Copied disks", disks(migration)),
        ("Rounds of pre-copy", rounds(migration)),
        ("Latency of page requests", latency(migration)),
        ("Compression", compression(migration)),
        ("Sent twice, and why", repeats(migration)),
        ("Hot ranges", hottest(migration)),
        ("Outages", outages(migration)),
    ]
    .into_iter()
    .filter_map(|(title, table)| Some(panel(title, &table?)))
    .collect()
}

/// The side of a recording, if it is known.
fn side_of(recording: &Recording) -> &'static str {
    match recording.knows(Unknown::Side) {
        true => recording.migration.side.name(),
        false => NONE,
    }
}

fn engines(migration: &BothSides<'_>) -> Option<String> {
    let columns = [
        text("side"),
        text("host"),
        number("process"),
        text("began"),
        number("took"),
        text("result"),
    ];
    let mut table = Table::new("Engines of this migration", &columns);
    for recording in migration.all() {
        let known = |part, value: String| match recording.knows(part) && !value.is_empty() {
            true => value,
            false => NONE.to_owned(),
        };
        for engine in recording.all_engines() {
            let took = engine.until_ms.unwrap_or(0).saturating_sub(engine.begun_ms);
            table.row(&[
                side_of(recording),
                &known(Unknown::Engine, engine.host.clone()),
                &known(Unknown::Engine, engine.pid.to_string()),
                &known(Unknown::Began, date_text(engine.started_unix_ms)),
                &known(Unknown::Duration, duration_of(took)),
                outcome(engine.end.as_ref()),
            ]);
        }
    }
    Some(table.finish())
}

fn course(migration: &BothSides<'_>) -> Option<String> {
    let columns = [text("time on this side"), text("side"), text("what")];
    let mut table = Table::new("Messages and the end of each side", &columns);
    let mut empty = true;
    for recording in migration.all() {
        let side = side_of(recording);
        let ended = recording.knows(Unknown::Duration);
        let end = recording.end.as_ref().map(|end| {
            let at_ms = ended.then_some(end.at_ms);
            (at_ms, end.message.as_str())
        });
        let notices = recording.notices.iter();
        let notices = notices.map(|notice| (Some(notice.at_ms), notice.text.as_str()));
        for (at_ms, message) in notices.chain(end) {
            table.row(&[&*at_ms.map_or(NONE.to_owned(), elapsed), side, message]);
            empty = false;
        }
    }
    (!empty).then(|| table.finish())
}

fn switchover(migration: &BothSides<'_>) -> Option<String> {
    let mut html = String::new();
    for side in [Side::Source, Side::Destination] {
        let steps = migration.switchover(side);
        if steps.is_empty() {
            continue;
        }
        let caption = format!("Steps of the switchover at the {}", side.name());
        let columns = [
            text("step that was done"),
            number("took"),
            number("done at"),
        ];
        let mut table = Table::new(&caption, &columns);
        let mut before = 0.0_f64;
        for step in steps {
            let took = (step.at_ms - before).max(0.0);
            before = before.max(step.at_ms);
            table.row(&[&*step.step, &duration(took), &duration(before)]);
        }
        html.push_str(&table.finish());
    }
    (!html.is_empty()).then_some(html)
}

fn disks(migration: &BothSides<'_>) -> Option<String> {
    let state = migration.state(Side::Source)?;
    if state.disks.is_empty() {
        return None;
    }
    let columns = [
        text("disk"),
        number("copied"),
        number("of"),
        text("both sides"),
    ];
    let mut table = Table::new("How far each disk is copied", &columns);
    for disk in &state.disks {
        table.row(&[
            &*disk.name,
            &bytes(disk.copied_bytes),
            &bytes(disk.total_bytes),
            if disk.in_sync { "in sync" } else { "differ" },
        ]);
    }
    Some(table.finish())
}

fn rounds(migration: &BothSides<'_>) -> Option<String> {
    let state = migration.state(Side::Source)?;
    if state.rounds.is_empty() {
        return None;
    }
    let columns = [
        text("round"),
        number("took"),
        number("pages"),
        number("zero"),
        number("bytes"),
        number("dirty after"),
    ];
    let mut table = Table::new(
        "What each round sent, and what was dirty at its end",
        &columns,
    );
    for round in &state.rounds {
        let end = round.ended_ms.unwrap_or(state.at_ms);
        table.row(&[
            round.round.to_string(),
            duration_of(end.saturating_sub(round.begun_ms)),
            count(round.pages),
            count(round.zero),
            bytes(round.bytes),
            round.dirty_pages.map_or(NONE.to_owned(), count),
        ]);
    }
    Some(table.finish())
}

#[allow(clippy::cast_precision_loss)] // For people.
fn latency(migration: &BothSides<'_>) -> Option<String> {
    let requests = migration.requests()?;
    let caption = "Page requests by latency, from the fault to the installed page";
    let columns = [text("at most"), number("requests"), number("so far")];
    let mut table = Table::new(caption, &columns);
    let mut so_far = 0_u64;
    for bucket in &requests.histogram {
        so_far = so_far.saturating_add(bucket.count);
        let share = so_far as f64 / requests.count as f64 * 100.0;
        table.row(&[
            micros(bucket.le_us as f64),
            count(bucket.count),
            format!("{share:.1} %"),
        ]);
    }
    Some(table.finish())
}

fn compression(migration: &BothSides<'_>) -> Option<String> {
    let methods = migration.compression()?;
    let columns = [text("method"), number("bytes of pages"), number("sent as")];
    let mut table = Table::new("Pages that were compressed", &columns);
    for (method, compressed) in methods.by_method() {
        let (content, sent) = (compressed.content_bytes, compressed.sent_bytes);
        table.row(&[method.to_owned(), bytes(content), bytes(sent)]);
    }
    Some(table.finish())
}

fn repeats(migration: &BothSides<'_>) -> Option<String> {
    let repeats = migration.repeats()?;
    let columns = [text("why"), number("pages"), number("bytes")];
    let mut table = Table::new(REPEATS, &columns);
    for (why, repeated) in [
        (
            "Sent again in pre-copy: the guest had written to them",
            repeats.precopy,
        ),
        (
            "Sent in pre-copy, and again in post-copy: the guest had written to them",
            repeats.stale,
        ),
        (
            "Sent in pre-copy, and again in post-copy: the guest had written to another part of \
             their huge page",
            repeats.host_page,
        ),
        (
            "Sent in post-copy, and again after the links were lost",
            repeats.resent,
        ),
        (
            "Pages of firmware and devices: sent before the guest ran at the destination, and also \
             requested",
            repeats.requested,
        ),
    ] {
        if repeated.pages > 0 {
            table.row(&[why.to_owned(), count(repeated.pages), bytes(repeated.bytes)]);
        }
    }
    if *repeats == Repeats::default() {
        table.row(&["No page was sent twice.", "0", "0 B"]);
    }
    Some(table.finish())
}

/// The caption of the table, the same as with scripts.
const REPEATS: &str = "Pages that were sent more than once";

fn hottest(migration: &BothSides<'_>) -> Option<String> {
    let source = migration.side(Side::Source)?;
    let page_bytes = source.migration.memory.page_bytes;
    let ranges = hot_ranges(source);
    if ranges.is_empty() {
        return None;
    }
    let columns = [
        text("range"),
        text("guest address"),
        number("pages dirtied per second"),
        number("bytes per second"),
        number("a cell's highest rate"),
    ];
    let mut table = Table::new("Ranges that the guest dirtied most", &columns);
    for range in ranges {
        let end = range.offset.saturating_add(range.bytes);
        let block = range.block.as_deref().unwrap_or("memory");
        #[allow(clippy::cast_precision_loss)] // For people.
        let written = rate_text(range.mean.saturating_mul(page_bytes) as f64);
        table.row(&[
            format!(
                "{block} + {} to {}",
                exact_bytes(range.offset),
                exact_bytes(end)
            ),
            range
                .address
                .map_or(NONE.to_owned(), |address| format!("{address:#x}")),
            count(range.mean),
            written,
            count(range.highest),
        ]);
    }
    Some(table.finish())
}

fn outages(migration: &BothSides<'_>) -> Option<String> {
    let outages = migration.outages()?;
    if outages.is_empty() {
        return None;
    }
    let columns = [text("links lost at"), number("up again at"), number("took")];
    let mut table = Table::new("Times without links after the handover", &columns);
    for outage in outages {
        let up = outage.to_ms.map_or("not yet".to_owned(), elapsed);
        let took = outage.lasted_ms().map_or(NONE.to_owned(), duration_of);
        let from = match outage.before_ms {
            0 => elapsed(outage.from_ms),
            _ => "before this engine".to_owned(),
        };
        table.row(&[from, up, took]);
    }
    Some(table.finish())
}
