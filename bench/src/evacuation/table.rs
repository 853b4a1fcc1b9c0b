//! The results as tables.

use std::fmt::Write as _;

use serde_json::Value;

use super::Evacuated;
use super::ways::{MovedGuest, Way};
use crate::report::Table;

/// One evacuation as lines of text.
pub(super) fn lines(it: &Evacuated) -> String {
    let mut text = format!(
        "{}: total {:.2} s (with planning {:.2} s), felt {:.0} ms, slow accesses {:.0} ms, \
         others {:.2}",
        it.way,
        it.total_ms / 1e3,
        it.run_ms / 1e3,
        felt(it),
        slow(it),
        it.others_cores
    );
    if let Some(plan) = &it.plan {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n  planned {:.2} s, felt {:.0} ms, {} at a time, {}",
            likely(&plan["total_ms"]) / 1e3,
            likely(&plan["felt_ms"]),
            plan["at_once"],
            plan["order"]
        );
    }
    for guest in &it.guests {
        let planned = |member: &str| match &guest.planned {
            Some(planned) => format!("{:.0}", likely(&planned[member])),
            None => "-".to_owned(),
        };
        let mode = guest.planned.as_ref().and_then(|it| it["mode"].as_str());
        let _ = write!(
            text,
            "\n  {} ({}), {} attempts: begins {} {:.0}, total {} {:.0}, downtime {} {:.1}, felt {} {:.1} ms; {} slow accesses, \
             {:.0} ms",
            guest.guest,
            mode.unwrap_or("hybrid"),
            guest.attempts,
            planned("begins_ms"),
            guest.begins_ms,
            planned("total_ms"),
            guest.total_ms,
            planned("downtime_ms"),
            guest.downtime_ms,
            planned("felt_ms"),
            guest.felt_ms,
            guest.slow,
            guest.slow_ms
        );
    }
    text
}

/// The tables of all evacuations.
pub(super) fn tables(all: &[Evacuated]) -> Vec<Table> {
    vec![ways(all), totals(all), guests(all), errors(all)]
}

fn ways(all: &[Evacuated]) -> Table {
    let row = |way: Way| {
        let of = |value: &dyn Fn(&Evacuated) -> f64| {
            let values = all.iter().filter(|it| it.way == way).map(value);
            values.collect::<Vec<_>>()
        };
        vec![
            way.to_string(),
            spread(of(&|it| it.total_ms / 1e3), 2),
            spread(of(&|it| it.run_ms / 1e3), 2),
            spread(of(&|it| it.guests.iter().map(|it| it.downtime_ms).sum()), 0),
            spread(of(&felt), 0),
            spread(of(&slow), 0),
            spread(of(&|it| it.others_cores), 2),
            of(&|_| 0.0).len().to_string(),
        ]
    };
    Table {
        title: "8 guests to 3 hosts, 1 Gbit/s: medians, with the least and the most".to_owned(),
        words: false,
        head: vec![
            "way",
            "total, s",
            "with planning, s",
            "pauses, ms",
            "felt, ms",
            "slow accesses, ms",
            "others, cores",
            "evacuations",
        ],
        lines: Way::ALL.into_iter().map(row).collect(),
    }
}

fn totals(all: &[Evacuated]) -> Table {
    let planned = all.iter().filter_map(|it| Some((it, it.plan.as_ref()?)));
    let row = |(it, plan): (&Evacuated, &Value)| {
        let total = &plan["total_ms"];
        vec![
            (it.round + 1).to_string(),
            format!("{:.1}", likely(total) / 1e3),
            format!(
                "{:.1} to {:.1}",
                number(&total["low"]) / 1e3,
                number(&total["high"]) / 1e3
            ),
            format!("{:.1}", it.total_ms / 1e3),
            percent(error(likely(total), it.total_ms)),
            format!("{:.0}", likely(&plan["felt_ms"])),
            format!("{:.0}", felt(it)),
            plan["at_once"].to_string(),
        ]
    };
    Table {
        title: "planned and measured".to_owned(),
        words: false,
        head: vec![
            "round",
            "planned, s",
            "range",
            "measured, s",
            "error",
            "felt, ms: planned",
            "measured",
            "at a time",
        ],
        lines: planned.map(row).collect(),
    }
}

/// The moves of guests that were planned: of all rounds together.
fn moves(all: &[Evacuated]) -> impl Iterator<Item = (&MovedGuest, &Value)> {
    let guests = all.iter().flat_map(|it| &it.guests);
    guests.filter_map(|guest| Some((guest, guest.planned.as_ref()?)))
}

fn guests(all: &[Evacuated]) -> Table {
    let mut names: Vec<_> = moves(all).map(|(guest, _)| guest.guest.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let row = |name: &str| {
        let of = |value: &dyn Fn(&MovedGuest, &Value) -> f64| {
            let own = moves(all).filter(|(guest, _)| guest.guest == name);
            let own = own.map(|(guest, planned)| value(guest, planned));
            own.collect::<Vec<_>>()
        };
        vec![
            name.to_owned(),
            spread(of(&|_, planned| likely(&planned["total_ms"]) / 1e3), 1),
            spread(of(&|guest, _| guest.total_ms / 1e3), 1),
            spread(of(&|_, planned| likely(&planned["downtime_ms"])), 0),
            spread(of(&|guest, _| guest.downtime_ms), 0),
            spread(of(&|_, planned| likely(&planned["felt_ms"])), 0),
            spread(of(&|guest, _| guest.felt_ms), 0),
        ]
    };
    Table {
        title: "each guest, planned and measured".to_owned(),
        words: false,
        head: vec![
            "guest",
            "total, s: planned",
            "measured",
            "downtime, ms: planned",
            "measured",
            "felt, ms: planned",
            "measured",
        ],
        lines: names.into_iter().map(row).collect(),
    }
}

fn errors(all: &[Evacuated]) -> Table {
    let of_moves = |member: &str, value: &dyn Fn(&MovedGuest) -> f64| -> Vec<f64> {
        let errors = moves(all);
        let errors = errors.map(|(it, planned)| error(likely(&planned[member]), value(it)));
        errors.map(f64::abs).collect()
    };
    let whole: Vec<f64> = all
        .iter()
        .filter_map(|it| Some(error(likely(&it.plan.as_ref()?["total_ms"]), it.total_ms).abs()))
        .collect();
    let rows = [
        ("total time of an evacuation", whole),
        (
            "total time of a guest",
            of_moves("total_ms", &|it| it.total_ms),
        ),
        (
            "downtime of a guest",
            of_moves("downtime_ms", &|it| it.downtime_ms),
        ),
        ("what a guest felt", of_moves("felt_ms", &|it| it.felt_ms)),
    ];
    let row = |(what, errors): (&str, Vec<f64>)| {
        vec![
            what.to_owned(),
            percent(median(&errors)),
            percent(errors.iter().copied().fold(f64::NAN, f64::max)),
            errors.len().to_string(),
        ]
    };
    Table {
        title: "absolute error of what was planned".to_owned(),
        words: false,
        head: vec!["of", "median", "most", "values"],
        lines: rows.into_iter().map(row).collect(),
    }
}

/// What all guests have lost of their time, ms.
fn felt(it: &Evacuated) -> f64 {
    it.guests.iter().map(|it| it.felt_ms).sum()
}

fn slow(it: &Evacuated) -> f64 {
    it.guests.iter().map(|it| it.slow_ms).sum()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn likely(predicted: &Value) -> f64 {
    number(&predicted["likely"])
}

/// How far the planned value is from the measured one, as a part of that.
fn error(planned: f64, measured: f64) -> f64 {
    (planned - measured) / measured
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.as_slice() {
        [] => f64::NAN,
        [.., _] if values.len() % 2 == 1 => values[values.len() / 2],
        _ => f64::midpoint(values[values.len() / 2 - 1], values[values.len() / 2]),
    }
}

/// The median, with the least and the most.
pub(super) fn spread(values: Vec<f64>, digits: usize) -> String {
    let (least, most) = (
        values.iter().copied().fold(f64::INFINITY, f64::min),
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    );
    match values.len() {
        0 => "-".to_owned(),
        1 => format!("{least:.digits$}"),
        _ => format!(
            "{:.digits$} ({least:.digits$} to {most:.digits$})",
            median(&values)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert!((median(&[4.0, 1.0, 2.0, 9.0]) - 3.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!(median(&[]).is_nan());
        assert_eq!(spread(vec![3.0, 1.0, 2.0], 1), "2.0 (1.0 to 3.0)");
        assert_eq!(percent(error(12.0, 10.0)), "20 %");
    }
}
