//! The summary: a table with one column for each migration, and bars that compare several.

use hikkoshi_account::{LatencySummary, Pages, Repeated, Repeats, Side, State, date_text};
use hikkoshi_status::Unknown;

use super::bars;
use super::both_sides::{BothSides, Downtime, DowntimeBound, outcome};
use super::format::{NONE, bytes, count, duration, duration_of, micros};
use super::markup::{Column, Table, escape, panel, text};

/// The summary of all migrations: for one, tables beside each other; for several one with a column
/// for each, and bars.
pub(super) fn summary(migrations: &[BothSides<'_>]) -> String {
    let parts = [
        ("Result", result(migrations)),
        ("Time and data", time_and_data(migrations)),
        ("Pages and page requests", pages_and_requests(migrations)),
    ];
    if let [_] = migrations {
        let tables = parts.map(|(caption, rows)| table(caption, &[text(""), text("")], &rows));
        let tables = tables.concat();
        return panel(
            "Summary",
            &format!("<div class=\"summary-tables\">{tables}</div>"),
        );
    }
    let mut columns: Vec<Column> = vec![text("")];
    let names = migrations.iter().enumerate();
    columns.extend(names.map(|(index, migration)| text(&name(index, migration))));
    let rows = parts.map(|(_, rows)| rows).concat();
    let table = table("Migrations", &columns, &rows);
    let charts = charts(migrations).concat();
    let html = format!(
        "<div class=\"summary-table\">{table}</div><div class=\"comparison\">{charts}</div>"
    );
    panel("Comparison", &html)
}

fn table(caption: &str, columns: &[Column], rows: &[Vec<String>]) -> String {
    let mut table = Table::new(caption, columns);
    for row in rows {
        table.row(row);
    }
    table.finish()
}

/// `2. web, hybrid`: what a column is called.
pub(super) fn name(index: usize, migration: &BothSides<'_>) -> String {
    let guest = migration
        .migration()
        .map_or("", |migration| &migration.guest);
    match mode(migration) {
        Some(mode) => format!("{}. {guest}, {mode}", index + 1),
        None => format!("{}. {guest}", index + 1),
    }
}

fn mode(migration: &BothSides<'_>) -> Option<String> {
    let moved = migration.migration()?;
    moved.mode.map(|mode| mode.to_string())
}

/// Rows of a table with a column for each migration.
struct Rows<'m> {
    migrations: &'m [BothSides<'m>],
    rows: Vec<Vec<String>>,
}

impl<'m> Rows<'m> {
    fn of_migrations(migrations: &'m [BothSides<'m>]) -> Self {
        Self {
            migrations,
            rows: Vec::new(),
        }
    }

    /// Adds a row, unless no migration has a value for it.
    fn add(&mut self, name: &str, value: impl Fn(&BothSides<'_>) -> Option<String>) {
        let values: Vec<_> = self.migrations.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            let values = values
                .into_iter()
                .map(|value| value.unwrap_or_else(|| NONE.into()));
            let mut row = vec![name.to_owned()];
            row.extend(values);
            self.rows.push(row);
        }
    }
}

fn result(migrations: &[BothSides<'_>]) -> Vec<Vec<String>> {
    let mut rows = Rows::of_migrations(migrations);
    rows.add("Result", |m| Some(outcome(m.end()).to_owned()));
    rows.add("What happened", |m| Some(m.end()?.message.clone()));
    rows.add("What to do next", |m| m.end()?.next.clone());
    rows.add("From", |m| host(m, Side::Source));
    rows.add("To", |m| host(m, Side::Destination));
    rows.add("Mode", mode);
    rows.add("Outages", outages);
    rows.rows
}

fn time_and_data(migrations: &[BothSides<'_>]) -> Vec<Vec<String>> {
    let mut rows = Rows::of_migrations(migrations);
    rows.add("Began", |m| {
        let began = m.migration()?.started_unix_ms;
        m.knows(Unknown::Began).then(|| date_text(began))
    });
    rows.add("Total time", |m| Some(duration_of(m.total_ms()?)));
    rows.add("Guest paused for", |m| Some(m.downtime()?.text()));
    rows.add("Limit of the downtime", |m| {
        Some(duration_of(m.migration()?.limits.max_downtime_ms?))
    });
    rows.add("Guest memory", |m| {
        let memory = &m.migration()?.memory;
        let size = memory.pages.saturating_mul(memory.page_bytes);
        m.knows(Unknown::Memory).then(|| bytes(size))
    });
    rows.add("Bytes sent", |m| Some(bytes(sent(m)?)));
    rows.add("Bytes received", |m| Some(bytes(received(m)?)));
    rows.add("Compressed", |m| {
        let all = m.compression()?.all();
        let (content, sent) = (all.content_bytes, all.sent_bytes);
        Some(format!("{} to {}", bytes(content), bytes(sent)))
    });
    rows.add("Bytes for disks", |m| {
        let state = only(m, Side::Source).or_else(|| only(m, Side::Destination))?;
        state.bytes.disks.filter(|sent| *sent > 0).map(bytes)
    });
    rows.add("Copied disks", copied_disks);
    rows.add("Rounds of pre-copy", |m| Some(count(m.rounds()?)));
    rows.rows
}

fn pages_and_requests(migrations: &[BothSides<'_>]) -> Vec<Vec<String>> {
    let mut rows = Rows::of_migrations(migrations);
    let mut pages = |name: &str, side: Side, pages: fn(&Pages) -> u64| {
        rows.add(name, |m| Some(count(pages(&only(m, side)?.pages))));
    };
    pages("Pages sent in pre-copy", Side::Source, |it| it.precopy);
    pages("Pages received in pre-copy", Side::Destination, |it| {
        it.precopy
    });
    let mut repeats = |name: &str, of: fn(&Repeats) -> Repeated| {
        rows.add(name, |m| Some(count(of(m.repeats()?).pages)));
    };
    repeats("… again, because the guest had written to them", |of| {
        of.precopy
    });
    repeats("… and again in post-copy, for the same reason", |of| {
        of.stale
    });
    let mut pages = |name: &str, side: Side, pages: fn(&Pages) -> u64| {
        rows.add(name, |m| Some(count(pages(&only(m, side)?.pages))));
    };
    pages("Pages sent as zero", Side::Source, |it| it.zero);
    pages("Pages received as zero", Side::Destination, |it| it.zero);
    // What was sent has arrived, except what was on its way when links were lost.
    rows.add("Urgent pages", |m| {
        Some(count(m.state(Side::Source)?.pages.urgent))
    });
    rows.add("Background pages", |m| {
        Some(count(m.state(Side::Source)?.pages.background))
    });
    rows.add("Pages sent again after lost links", |m| {
        Some(count(m.repeats()?.resent.pages))
    });
    rows.add("Page requests", |m| Some(count(m.requests()?.count)));
    let mut latency = |name: &str, value: fn(&LatencySummary) -> f64| {
        rows.add(name, |m| Some(micros(value(m.requests()?))));
    };
    latency("Latency of page requests: mean", |requests| requests.mean);
    latency("… median", |requests| requests.p50);
    latency("… 99th percentile", |requests| requests.p99);
    latency("… slowest", |requests| requests.max);
    rows.rows
}

/// The host of a side, or its address as the other side says; `None`: not known.
fn host(migration: &BothSides<'_>, side: Side) -> Option<String> {
    let known = migration.knows(Unknown::Engine) && migration.knows(Unknown::Side);
    let name = match migration.side(side) {
        Some(recording) => &recording.migration.host,
        None => &migration.migration()?.peer,
    };
    (known && !name.is_empty()).then(|| name.clone())
}

/// The state of this side; that of the destination only if the source, which says more, is not
/// known.
fn only<'a>(migration: &BothSides<'a>, side: Side) -> Option<&'a State> {
    let is_main = match side {
        Side::Source => true,
        Side::Destination => migration.side(Side::Source).is_none(),
    };
    let recording = migration.side(side).filter(|_| is_main)?;
    recording.state.as_ref()
}

fn sent(migration: &BothSides<'_>) -> Option<u64> {
    Some(only(migration, Side::Source)?.bytes.all())
}

/// `None` if it is known what was sent.
fn received(migration: &BothSides<'_>) -> Option<u64> {
    Some(only(migration, Side::Destination)?.bytes.all())
}

/// `vda 20 GiB, vdb 1 GiB (not complete)`: the disks that were copied.
fn copied_disks(migration: &BothSides<'_>) -> Option<String> {
    let disks = &migration.state(Side::Source)?.disks;
    let each = disks.iter().map(|disk| {
        let end = if disk.in_sync { "" } else { " (not complete)" };
        format!("{} {}{end}", disk.name, bytes(disk.copied_bytes))
    });
    (!disks.is_empty()).then(|| each.collect::<Vec<_>>().join(", "))
}

fn outages(migration: &BothSides<'_>) -> Option<String> {
    let outages = migration.outages()?;
    let end = migration.last_ms().unwrap_or(0);
    let total: u64 = outages
        .iter()
        .map(|outage| outage.lasts_ms(end))
        .fold(0, u64::saturating_add);
    Some(match outages.len() {
        0 => "none".to_owned(),
        number => format!("{number}, {} in total", duration_of(total)),
    })
}

/// Bars of what several migrations differ in.
#[allow(clippy::cast_precision_loss)] // Lengths of bars.
fn charts(migrations: &[BothSides<'_>]) -> Vec<String> {
    let names: Vec<_> = migrations
        .iter()
        .enumerate()
        .map(|(index, migration)| name(index, migration))
        .collect();
    let chart = |title: &str, values: Vec<Option<f64>>, shown: &dyn Fn(f64) -> String| {
        bars::figure(title, &names, &values, shown).unwrap_or_else(|error| {
            format!(
                "<p>This figure could not be drawn: {}</p>",
                escape(&error.to_string())
            )
        })
    };
    let of = |value: &dyn Fn(&BothSides<'_>) -> Option<f64>| migrations.iter().map(value).collect();
    vec![
        chart("Total time", of(&|m| Some(m.total_ms()? as f64)), &duration),
        downtime_chart(migrations, &chart),
        chart("Bytes sent", of(&|m| Some(sent(m)? as f64)), &bytes_of),
        chart(
            "99th percentile of the latency of page requests",
            of(&|m| Some(m.requests()?.p99)),
            &micros,
        ),
    ]
}

/// The likely downtimes, if all that have one know it, and otherwise their upper bounds: what is
/// compared must be of one kind.
fn downtime_chart(
    migrations: &[BothSides<'_>],
    chart: &impl Fn(&str, Vec<Option<f64>>, &dyn Fn(f64) -> String) -> String,
) -> String {
    let downtimes = || migrations.iter().map(BothSides::downtime);
    if downtimes().flatten().all(|it| it.likely_ms.is_some()) {
        let likely = downtimes().map(|it| it?.likely_ms).collect();
        return chart("Guest paused for about", likely, &duration);
    }
    let most = |it: Downtime| (it.bound != DowntimeBound::AtLeast).then_some(it.ms);
    let most = downtimes().map(|it| most(it?)).collect();
    chart("Guest paused for at most", most, &duration)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Was a u64.
fn bytes_of(value: f64) -> String {
    bytes(value as u64)
}
