//! The tables of one migration, for a browser without scripts. With scripts the views show the same
//! and more (`web/js/views/`).

use hikkoshi_status::{Recording, Side};

use super::both_sides::{BothSides, outcome};
use super::format::{NONE, bytes, clock, count, duration, duration_of, elapsed, micros};
use super::markup::{Table, number, panel, text};

/// Cells in the table of hot ones.
const CELLS: usize = 10;

/// All tables of a migration.
pub(super) fn tables(migration: &BothSides<'_>) -> String {
    [
        ("Engines", engines(migration)),
        ("What happened", course(migration)),
        ("Switchover and downtime", switchover(migration)),
        ("Rounds of pre-copy", rounds(migration)),
        ("Latency of page requests", latency(migration)),
        ("Cells with the highest dirty rate", hot_cells(migration)),
        ("Outages", outages(migration)),
    ]
    .into_iter()
    .filter_map(|(title, table)| Some(panel(title, &table?)))
    .collect()
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Source => "source",
        Side::Destination => "destination",
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
        for engine in recording.all_engines() {
            let took = engine.until_ms.unwrap_or(0).saturating_sub(engine.begun_ms);
            table.row(&[
                side_name(recording.migration.side),
                &engine.host,
                &engine.pid.to_string(),
                &clock(engine.started_unix_ms),
                &duration_of(took),
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
        let side = side_name(recording.migration.side);
        let end = recording
            .end
            .as_ref()
            .map(|end| (end.at_ms, end.message.as_str()));
        let notices = recording.notices.iter();
        let notices = notices.map(|notice| (notice.at_ms, notice.text.as_str()));
        for (at_ms, message) in notices.chain(end) {
            table.row(&[&elapsed(at_ms), side, message]);
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
        let caption = format!("Steps of the switchover at the {}", side_name(side));
        let columns = [
            text("step that was done"),
            number("took"),
            number("done at"),
        ];
        let mut table = Table::new(&caption, &columns);
        let mut before = 0.0_f64;
        for step in steps {
            let took = (step.after_pause_ms - before).max(0.0);
            before = before.max(step.after_pause_ms);
            table.row(&[&*step.step, &duration(took), &duration(before)]);
        }
        html.push_str(&table.finish());
    }
    (!html.is_empty()).then_some(html)
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

fn hot_cells(migration: &BothSides<'_>) -> Option<String> {
    let source = migration.side(Side::Source)?;
    let cells = hottest(source);
    if cells.is_empty() {
        return None;
    }
    let columns = [text("cell"), number("pages dirtied per second")];
    let mut table = Table::new("Cells with the highest dirty rate", &columns);
    for (cell, rate) in cells {
        table.row(&[cell_name(source, cell), count(rate)]);
    }
    Some(table.finish())
}

/// Cells by their highest dirty rate in all maps.
fn hottest(recording: &Recording) -> Vec<(u64, u64)> {
    let frames = recording.frames.iter().map(|frame| &frame.map);
    let last = recording.state.as_ref().map(|state| &state.map);
    let mut highest: Vec<u64> = Vec::new();
    for map in frames.chain(last) {
        let rates = map.dirty_per_second.iter().take(hikkoshi_status::MAX_CELLS);
        for (cell, rate) in rates.enumerate() {
            match highest.get_mut(cell) {
                Some(most) => *most = (*most).max(*rate),
                None => highest.push(*rate),
            }
        }
    }
    let mut cells: Vec<_> = (0..).zip(highest).filter(|(_, rate)| *rate > 0).collect();
    cells.sort_by_key(|(cell, rate)| (std::cmp::Reverse(*rate), *cell));
    cells.truncate(CELLS);
    cells
}

/// `pc.ram + 64 MiB`: the block and the offset of a cell's first page.
fn cell_name(recording: &Recording, cell: u64) -> String {
    let memory = &recording.migration.memory;
    let first = cell.saturating_mul(memory.cell_pages);
    let inside = |block: &&hikkoshi_status::Block| {
        (block.first_page..block.first_page.saturating_add(block.pages)).contains(&first)
    };
    match memory.blocks.iter().find(inside) {
        Some(block) => {
            let offset = first.saturating_sub(block.first_page);
            let offset = offset.saturating_mul(memory.page_bytes);
            format!("{} + {}", block.id, bytes(offset))
        }
        None => format!("cell {}", cell.saturating_add(1)),
    }
}

fn outages(migration: &BothSides<'_>) -> Option<String> {
    let outages = migration.outages();
    if outages.is_empty() {
        return None;
    }
    let columns = [text("links lost at"), number("up again at"), number("took")];
    let mut table = Table::new("Times without links after the handover", &columns);
    for outage in outages {
        let up = outage.to_ms.map_or("not yet".to_owned(), elapsed);
        let took = outage.to_ms.map(|to| to.saturating_sub(outage.from_ms));
        let took = took.map_or(NONE.to_owned(), duration_of);
        table.row(&[elapsed(outage.from_ms), up, took]);
    }
    Some(table.finish())
}
