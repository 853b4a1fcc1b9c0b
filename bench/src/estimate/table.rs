//! The tables: every move, the errors, and what the recommended mode would have been like.

use std::collections::BTreeMap;

use super::{Moved, line_name};
use crate::report::Table;

/// What is predicted, as in the JSON, and as it is called; and the least measured value that has an
/// error: a prediction of 4 faults instead of 2 is a good one.
const PREDICTED: [(&str, &str, f64); 6] = [
    ("total_ms", "total time", 0.0),
    ("downtime_ms", "downtime", 0.0),
    ("downtime_ms", "downtime, where 20 ms or more", 20.0),
    ("bytes", "bytes", 0.0),
    ("faults", "page faults, where 100 or more", 100.0),
    (
        "slowdown",
        "time lost to page faults, where 1 % or more",
        0.01,
    ),
];

/// Predictions without any of this: what they are called, and the guessed and the measured value.
type Simple = (&'static str, fn(&Moved) -> Option<(f64, f64)>);
const SIMPLE: [Simple; 2] = [
    ("total time, if all content is sent once", |moved| {
        let content = moved.prediction["guest"]["content_bytes"]["likely"].as_f64()?;
        let rate = moved.prediction["line"]["bytes_per_second"]["likely"].as_f64()?;
        Some((content / rate * 1e3, moved.measured("total_ms")?))
    }),
    ("downtime, if it is always 6 ms", |moved| {
        Some((6.0, moved.measured("downtime_ms")?))
    }),
];

/// One move, in a line.
pub(super) fn line(moved: &Moved) -> String {
    if let Some(failure) = &moved.failure {
        return format!("{}: FAILED: {failure}", moved.case);
    }
    let of = |member: &str, unit: f64| {
        let predicted = moved.predicted()[member]["likely"].as_f64();
        let measured = moved.measured(member);
        format!(
            "{} {}",
            value(predicted.map(|it| it / unit)),
            value(measured.map(|it| it / unit))
        )
    };
    format!(
        "{}: predicted and measured: total {} s, downtime {} ms, {} MB; converges: {}; others {:.2}",
        moved.case,
        of("total_ms", 1e3),
        of("downtime_ms", 1.0),
        of("bytes", 1e6),
        moved.predicted()["converges"].as_str().unwrap_or("-"),
        moved.others_cores
    )
}

/// A row for each move.
pub(super) fn moves(moves: &[Moved]) -> Table {
    let lines = moves.iter().filter(|moved| moved.failure.is_none());
    let lines = lines.map(|moved| {
        let predicted = moved.predicted();
        let mut row = vec![
            line_name(moved.case.line),
            moved.case.guest.to_string(),
            moved.case.mode.to_owned(),
            predicted["converges"].as_str().unwrap_or("-").to_owned(),
            match moved.account.is_none() {
                true => "cancelled".to_owned(),
                false => "yes".to_owned(),
            },
        ];
        for (member, unit) in [
            ("rounds", 1.0),
            ("total_ms", 1e3),
            ("downtime_ms", 1.0),
            ("bytes", 1e6),
        ] {
            row.push(value(
                predicted[member]["likely"].as_f64().map(|it| it / unit),
            ));
            row.push(value(moved.measured(member).map(|it| it / unit)));
            if member != "rounds" {
                row.push(percent(moved.pair(member)));
            }
        }
        for (member, unit) in [("faults", 1.0), ("slowdown", 0.01)] {
            let pair = moved.pair(member);
            row.push(value(pair.map(|pair| pair.0 / unit)));
            row.push(value(pair.map(|pair| pair.1 / unit)));
        }
        row.push(format!("{:.2}", moved.others_cores));
        row
    });
    Table {
        title: "each move: predicted (p) and measured (m)".to_owned(),
        words: false,
        head: vec![
            "line",
            "guest",
            "mode",
            "converges p",
            "m",
            "rounds p",
            "m",
            "total s p",
            "m",
            "error %",
            "downtime ms p",
            "m",
            "error %",
            "MB p",
            "m",
            "error %",
            "faults p",
            "m",
            "lost % p",
            "m",
            "others",
        ],
        lines: lines.collect(),
    }
}

/// The errors over all moves, and how many results were between the predicted ends.
pub(super) fn errors(moves: &[Moved]) -> Table {
    let good: Vec<_> = moves
        .iter()
        .filter(|moved| moved.failure.is_none())
        .collect();
    let mut lines = Vec::new();
    let groups = [None, Some("precopy"), Some("postcopy"), Some("hybrid")];
    for (member, name, least) in PREDICTED {
        for mode in groups {
            let of_mode = good
                .iter()
                .filter(|moved| mode.is_none_or(|mode| moved.case.mode == mode));
            let (mut errors, mut within) = (Vec::new(), 0);
            for moved in of_mode {
                let Some(pair) = moved.pair(member).filter(|pair| pair.1 >= least) else {
                    continue;
                };
                errors.push((pair.0 / pair.1 - 1.0).abs());
                within += usize::from(moved.is_within(member) == Some(true));
            }
            errors.sort_by(f64::total_cmp);
            let at = |part: f64| quantile(&errors, part).map(|error| error * 100.0);
            lines.push(vec![
                name.to_owned(),
                mode.unwrap_or("all").to_owned(),
                errors.len().to_string(),
                value(at(0.5)),
                value(at(0.9)),
                value(at(1.0)),
                format!("{within}"),
            ]);
        }
    }
    for (name, simple) in SIMPLE {
        let errors = good.iter().filter_map(|moved| simple(moved));
        let mut errors: Vec<_> = errors
            .map(|(guessed, measured)| (guessed / measured - 1.0).abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        let at = |part: f64| value(quantile(&errors, part).map(|error| error * 100.0));
        lines.push(vec![
            name.to_owned(),
            "all".to_owned(),
            errors.len().to_string(),
            at(0.5),
            at(0.9),
            at(1.0),
            "-".to_owned(),
        ]);
    }
    Table {
        title: "errors of the likely values".to_owned(),
        words: false,
        head: vec![
            "predicted",
            "mode",
            "moves",
            "median %",
            "nine in ten % <",
            "most %",
            "within the range",
        ],
        lines,
    }
}

/// How many pre-copies converged, for each prediction of that.
pub(super) fn convergence(moves: &[Moved]) -> Table {
    let precopies = moves
        .iter()
        .filter(|moved| moved.failure.is_none() && moved.case.mode == "precopy");
    let lines = ["yes", "likely", "unlikely", "no"].map(|said| {
        let of_these = precopies
            .clone()
            .filter(|moved| moved.predicted()["converges"] == said);
        let (cancelled, converged): (Vec<_>, Vec<_>) =
            of_these.partition(|moved| moved.account.is_none());
        vec![
            said.to_owned(),
            converged.len().to_string(),
            cancelled.len().to_string(),
        ]
    });
    Table {
        title: "whether pre-copy converges: predicted, and what it did".to_owned(),
        words: false,
        head: vec!["predicted", "converged", "did not"],
        lines: lines.into(),
    }
}

/// How good the time left was that each move has reported while it ran, for each line: a state
/// whose true value was between the ends is in the range. A range without a high end is not a hit.
pub(super) fn time_left(moves: &[Moved]) -> Table {
    let mut lines: BTreeMap<String, Vec<TimeLeft>> = BTreeMap::new();
    for moved in moves.iter().filter(|moved| moved.account.is_some()) {
        let of = TimeLeft::of_move(moved);
        let line = line_name(moved.case.line);
        let line = match moved.case.guest.copies_disks() {
            true => format!("{line}, with disks"),
            false => line,
        };
        lines.entry(line).or_default().push(of.clone());
        lines.entry("all".to_owned()).or_default().push(of);
    }
    let row = |(line, of): (String, Vec<TimeLeft>)| {
        let sum = |value: fn(&TimeLeft) -> usize| of.iter().map(value).sum::<usize>();
        let (known, inside) = (sum(|it| it.known), sum(|it| it.inside));
        let good = of.iter().filter(|it| it.inside * 10 >= it.known * 9);
        let mut errors: Vec<_> = of.iter().flat_map(|it| it.errors.iter().copied()).collect();
        errors.sort_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss)] // some thousands
        let part = (known > 0).then(|| inside as f64 / known as f64 * 100.0);
        vec![
            line,
            of.len().to_string(),
            sum(|it| it.states).to_string(),
            known.to_string(),
            inside.to_string(),
            value(part),
            sum(|it| it.open).to_string(),
            sum(|it| it.open_below).to_string(),
            good.count().to_string(),
            value(quantile(&errors, 0.5).map(|error| error * 100.0)),
        ]
    };
    Table {
        title: "the time left, as reported five times a second".to_owned(),
        words: false,
        head: vec![
            "line",
            "moves",
            "states",
            "known",
            "in the range",
            "%",
            "without a high end",
            "of these below the low one",
            "moves with 90 %",
            "likely: median error %",
        ],
        lines: lines.into_iter().map(row).collect(),
    }
}

/// The states of one move before its end.
#[derive(Clone, Debug, Default)]
struct TimeLeft {
    states: usize,
    /// In which it was reported.
    known: usize,
    /// Between both ends.
    inside: usize,
    /// The range had no upper end: no hit, whatever came.
    open: usize,
    /// Those whose true value was below the lower end.
    open_below: usize,
    /// Of the likely value, where the true one is half a second or more.
    errors: Vec<f64>,
}

impl TimeLeft {
    fn of_move(moved: &Moved) -> Self {
        let mut all = Self::default();
        let end = moved.measured("total_ms").unwrap_or_default() / 1e3;
        let states = moved.account.iter().flat_map(|report| &report.time_left);
        for state in states {
            let truth = end - state.at_s;
            if truth <= 0.0 {
                continue;
            }
            all.states += 1;
            let Some(left) = state.left else {
                continue;
            };
            all.known += 1;
            match left.high_s {
                Some(high) => all.inside += usize::from((left.low_s..=high).contains(&truth)),
                None => {
                    all.open += 1;
                    all.open_below += usize::from(truth < left.low_s);
                }
            }
            if truth >= 0.5 {
                all.errors.push((left.likely_s / truth - 1.0).abs());
            }
        }
        all
    }
}

/// For each guest and line that was moved in several modes: the recommended mode, and what was
/// measured in each.
pub(super) fn choices(moves: &[Moved]) -> Table {
    let mut groups: BTreeMap<(String, String), Vec<&Moved>> = BTreeMap::new();
    for moved in moves.iter().filter(|moved| moved.failure.is_none()) {
        let key = (line_name(moved.case.line), moved.case.guest.to_string());
        groups.entry(key).or_default().push(moved);
    }
    let lines = groups.into_iter().filter_map(|((line, guest), moves)| {
        let recommended = moves
            .iter()
            .filter_map(|moved| moved.prediction["recommended"]["mode"].as_str());
        // The estimates of one guest may differ.
        let mut all: Vec<_> = recommended.collect();
        all.sort_unstable();
        all.dedup();
        let of = |mode: &str| {
            let of_mode: Vec<_> = moves
                .iter()
                .filter(|moved| moved.case.mode == mode)
                .collect();
            let first = of_mode.first()?;
            let Some(report) = &first.account else {
                return Some("does not converge".to_owned());
            };
            let median = |member: &str| {
                let mut values: Vec<_> = of_mode
                    .iter()
                    .filter_map(|moved| moved.measured(member))
                    .collect();
                values.sort_by(f64::total_cmp);
                quantile(&values, 0.5)
            };
            Some(format!(
                "{} s, {} ms, {} MB, {} faults",
                value(median("total_ms").map(|it| it / 1e3)),
                value(median("downtime_ms")),
                value(median("bytes").map(|it| it / 1e6)),
                report.statistics.account.requests.request_latency_us.count
            ))
        };
        let shown = |mode| of(mode).unwrap_or_else(|| "-".to_owned());
        (moves.len() > 1).then(|| {
            vec![
                line,
                guest,
                all.join(" or "),
                shown("precopy"),
                shown("hybrid"),
                shown("postcopy"),
            ]
        })
    });
    Table {
        title: "the recommended mode, and what each mode took: total, downtime, bytes, faults"
            .to_owned(),
        words: true,
        head: vec![
            "line",
            "guest",
            "recommended",
            "precopy",
            "hybrid",
            "postcopy",
        ],
        lines: lines.collect(),
    }
}

/// Three digits.
fn value(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| {
        let digits = if value.abs() >= 100.0 {
            0
        } else if value.abs() >= 10.0 {
            1
        } else {
            2
        };
        format!("{value:.digits$}")
    })
}

/// By how much the prediction is above the measurement.
fn percent(pair: Option<(f64, f64)>) -> String {
    pair.map_or("-".to_owned(), |(predicted, measured)| {
        format!("{:+.0}", (predicted / measured - 1.0) * 100.0)
    })
}

/// Of sorted values.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)] // a handful
pub(super) fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = part * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    let (low, high) = (sorted.get(low)?, sorted.get(high)?);
    Some(low + (high - low) * at.fract())
}

#[cfg(test)]
mod tests {
    use super::super::moved::tests::test_account;
    use super::*;
    use crate::estimate::{Case, Writer};
    use crate::mover::ReportedTimeLeft;
    use crate::plan::NetworkKind;
    use hikkoshi_account::Bytes;
    use serde_json::json;

    #[test]
    fn a_state_is_in_the_range_if_the_true_value_was() {
        let state = |at_s: f64, low_s: f64, high_s: Option<f64>| ReportedTimeLeft {
            at_s,
            left: Some(hikkoshi_account::TimeLeft {
                low_s,
                likely_s: 3.0,
                high_s,
            }),
        };
        let mut report = test_account(10_000.0).unwrap();
        report.time_left = vec![
            ReportedTimeLeft {
                at_s: 0.1,
                left: None,
            },
            state(4.0, 5.0, Some(7.0)),
            state(4.0, 5.0, None),
            state(4.0, 6.5, None),
            state(4.0, 5.0, Some(5.5)),
            state(10.5, 0.0, None),
        ];
        let moved = Moved {
            case: Case {
                line: NetworkKind::Gbit(1),
                guest: Writer::Idle,
                mode: "hybrid",
            },
            round: 0,
            prediction: json!(null),
            account: Some(report),
            others_cores: 0.0,
            failure: None,
        };
        let all = TimeLeft::of_move(&moved);
        assert_eq!((all.states, all.known, all.inside), (5, 4, 1));
        assert_eq!((all.open, all.open_below), (2, 1));
        assert!(all.errors.iter().all(|error| (error - 0.5).abs() < 1e-9));
        let row = time_left(&[moved]).lines.remove(0);
        assert_eq!(
            row[..8],
            ["1gbit", "1", "5", "4", "1", "25.0", "2", "1"].map(str::to_owned)
        );
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // thousands
    fn moved(mode: &'static str, predicted: f64, measured: f64) -> Moved {
        let span = json!({ "low": predicted * 0.9, "likely": predicted, "high": predicted * 1.1 });
        let mut report = test_account(measured).unwrap();
        let account = &mut report.statistics.account;
        (account.downtime_ms, account.rounds) = (Some(measured), 2);
        account.bytes = Bytes {
            precopy: measured as u64,
            ..Bytes::default()
        };
        account.requests.request_latency_us.count = 3;
        Moved {
            case: Case {
                line: NetworkKind::Gbit(1),
                guest: Writer::Idle,
                mode,
            },
            round: 0,
            prediction: json!({
                "modes": [{
                    "mode": mode, "converges": "yes", "rounds": span, "total_ms": span,
                    "downtime_ms": span, "bytes": span,
                }],
                "recommended": { "mode": "precopy" },
            }),
            account: Some(report),
            others_cores: 0.0,
            failure: None,
        }
    }

    #[test]
    fn errors_are_medians_and_results_within_the_range_are_counted() {
        let moves = [
            moved("precopy", 1000.0, 1050.0),
            moved("hybrid", 1000.0, 500.0),
            moved("hybrid", 1000.0, 1000.0),
        ];
        let table = errors(&moves);
        // Of all: 0, 4.8 and 100 %.
        assert_eq!(table.lines[0][..4], ["total time", "all", "3", "4.76"]);
        assert_eq!(table.lines[0][5..], ["100", "2"]);
        assert_eq!(table.lines[1][..4], ["total time", "precopy", "1", "4.76"]);
        let each = super::moves(&moves);
        assert!(each.lines[1].contains(&"+100".to_owned()), "{each:?}");
        let text = choices(&moves).text();
        assert!(
            text.contains("1.05 s, 1050 ms, 0.00 MB, 3 faults"),
            "{text}"
        );
    }

    #[test]
    fn a_precopy_that_was_cancelled_did_not_converge() {
        let converged = moved("precopy", 1000.0, 1000.0);
        let mut cancelled = converged.clone();
        cancelled.account = None;
        let mut expected = cancelled.clone();
        expected.prediction["modes"][0]["converges"] = json!("no");
        let hybrid = moved("hybrid", 1000.0, 1000.0);
        let table = convergence(&[converged, cancelled, expected, hybrid]);
        assert_eq!(table.lines[0], ["yes", "1", "1"]);
        assert_eq!(table.lines[3], ["no", "0", "1"]);
    }

    #[test]
    fn the_errors_of_simple_predictions_are_beside_them() {
        let mut moved = moved("precopy", 1000.0, 1000.0);
        moved.prediction["guest"] = json!({ "content_bytes": { "likely": 5e6 } });
        moved.prediction["line"] = json!({ "bytes_per_second": { "likely": 1e7 } });
        let table = errors(&[moved]);
        let [.., total, downtime] = &table.lines[..] else {
            panic!("{table:?}");
        };
        assert_eq!(total[2..4], ["1", "50.0"]);
        assert_eq!(downtime[2..4], ["1", "99.4"]);
    }
}
