//! The part of a report that is about an evacuation: what was planned, and what happened.

use hikkoshi_account::{Predicted, date_text};
use hikkoshi_status::{EvacuatedGuest, Evacuation, EvacuationStage, PlannedMove};

use super::format::{NONE, bytes, duration};
use super::markup::{Table, escape, number, panel, text};

/// Its guests, and its time.
pub(super) fn section(evacuation: &Evacuation) -> String {
    let mut table = Table::new(
        "Guests: planned and measured",
        &[
            text("guest"),
            text("is"),
            text("to"),
            text("mode"),
            number("memory"),
            number("begins: planned"),
            number("measured"),
            number("total: planned"),
            number("measured"),
            number("paused: planned"),
            number("measured"),
            number("felt: planned"),
            number("measured"),
        ],
    );
    let planned = evacuation.plan.iter().flat_map(|plan| &plan.moves);
    let mut names: Vec<&str> = planned.clone().map(|it| &*it.guest).collect();
    let others = evacuation.guests.keys().map(String::as_str);
    let others: Vec<_> = others.filter(|name| !names.contains(name)).collect();
    names.extend(others);
    for name in names {
        let planned = planned.clone().find(|it| it.guest == name);
        table.row(&row(evacuation, name, planned));
    }
    let html = format!("<p>{}</p>{}", escape(&summary(evacuation)), table.finish());
    panel("Evacuation", &html)
}

/// `Began 2026-11-29 23:00:00 UTC, 7 of 8 guests have moved in 12 s (planned: …).`
fn summary(evacuation: &Evacuation) -> String {
    let guests = evacuation.guests.values();
    let moved = guests.filter(|it| it.stage == EvacuationStage::Moved);
    let began = evacuation.started_unix_ms.map(date_text);
    let planned = evacuation.plan.as_ref();
    let within = planned.and_then(|plan| plan.within.as_ref());
    let within = within.map(|it| format!("; to be done in {}", duration(it.deadline_ms)));
    format!(
        "Began {}; {} guests have moved in {} (planned: {}){}.",
        began.as_deref().unwrap_or(NONE),
        moved.count(),
        evacuation
            .total_ms()
            .map_or_else(|| NONE.to_owned(), duration),
        planned.map_or_else(|| NONE.to_owned(), |plan| span(plan.total_ms)),
        within.unwrap_or_default()
    )
}

fn row(evacuation: &Evacuation, name: &str, planned: Option<&PlannedMove>) -> [String; 13] {
    let guest = evacuation.guests.get(name);
    let time = |value: Option<f64>| value.map_or_else(|| NONE.to_owned(), duration);
    let plan = |value: fn(&PlannedMove) -> Predicted| planned.and_then(|it| value(it).likely);
    let since = |from: Option<u64>, to: Option<u64>| {
        #[allow(clippy::cast_precision_loss)] // Far below 2^53.
        Some(to?.checked_sub(from?)? as f64)
    };
    let begins = |it: &EvacuatedGuest| since(evacuation.started_unix_ms, it.began_unix_ms);
    let total = |it: &EvacuatedGuest| since(it.began_unix_ms, it.ended_unix_ms);
    let to = guest.and_then(|it| it.to.clone());
    [
        name.to_owned(),
        guest.map_or_else(|| "has not begun".to_owned(), stage),
        to.or_else(|| Some(planned?.to.clone()))
            .unwrap_or_else(|| NONE.to_owned()),
        planned.map_or_else(|| NONE.to_owned(), |it| it.mode.to_string()),
        planned.map_or_else(|| NONE.to_owned(), |it| bytes(it.memory_bytes)),
        time(plan(|it| it.begins_ms)),
        time(guest.and_then(begins)),
        time(plan(|it| it.total_ms)),
        time(guest.and_then(total)),
        time(plan(|it| it.downtime_ms)),
        time(guest.and_then(|it| it.downtime_ms)),
        time(plan(|it| it.felt_ms)),
        time(guest.and_then(|it| it.felt_ms)),
    ]
}

fn stage(guest: &EvacuatedGuest) -> String {
    match &guest.stage {
        EvacuationStage::Moving => "moves".to_owned(),
        EvacuationStage::Moved => "moved".to_owned(),
        EvacuationStage::Stays { message } => format!("stays: {message}"),
        EvacuationStage::Unfinished { message, .. } => {
            format!("handed over, not complete: {message}")
        }
        EvacuationStage::Lost { message } => format!("lost: {message}"),
    }
}

/// The likely time, with its range.
fn span(time: Predicted) -> String {
    let text = |ms: Option<f64>| ms.map_or_else(|| "without end".to_owned(), duration);
    format!(
        "{}, {} to {}",
        text(time.likely),
        text(time.low),
        text(time.high)
    )
}
