//! What the project wants to reach, and whether it does.

use std::fmt::Write as _;

use serde::Serialize;

use crate::record::Run;
use crate::table::{Row, rows};

/// The part of QEMU's pre-copy downtime that ours may be.
const DOWNTIME_PART: f64 = 0.25;

/// One aim on one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// In words.
    pub what: String,
    /// Ours.
    pub ours: f64,
    /// Theirs.
    pub theirs: f64,
    /// Ours as a part of theirs.
    pub ratio: f64,
    /// What it may be at most.
    pub at_most: f64,
    /// Whether it is.
    pub reached: bool,
}

/// Every aim that the runs have numbers for.
pub fn goals(runs: &[Run]) -> Vec<Goal> {
    let rows = rows(runs);
    let mut lines: Vec<&str> = rows.iter().map(|row| row.line.as_str()).collect();
    lines.dedup();
    let mut goals = Vec::new();
    for line in lines {
        let find = |load: &str, system: &str| {
            rows.iter()
                .find(|row| row.line == line && row.load == load && row.system == system)
        };
        let mut add = |ours: (&str, &str),
                       theirs: (&str, &str),
                       at_most,
                       unit: &str,
                       value: fn(&Row) -> Option<f64>| {
            let pair = find(ours.0, ours.1)
                .and_then(value)
                .zip(find(theirs.0, theirs.1).and_then(value));
            if let Some((mine, other)) = pair.filter(|pair| pair.1 > 0.0) {
                goals.push(Goal {
                    what: format!(
                        "{line}: {unit}, {} ({}) to {} ({})",
                        ours.1, ours.0, theirs.1, theirs.0
                    ),
                    ours: mine,
                    theirs: other,
                    ratio: mine / other,
                    at_most,
                    reached: mine / other <= at_most,
                });
            }
        };
        let downtime = |row: &Row| row.downtime_ms;
        let precopy = ("paced", "qemu-precopy");
        for ours in [
            ("paced", "hikkoshi-precopy"),
            ("paced", "hikkoshi-hybrid"),
            ("busy", "hikkoshi-hybrid"),
            ("busy", "hikkoshi-postcopy"),
        ] {
            add(ours, precopy, DOWNTIME_PART, "downtime", downtime);
        }
        let fault = |row: &Row| row.fault_us;
        for ours in [("busy", "hikkoshi-hybrid"), ("busy", "hikkoshi-postcopy")] {
            add(ours, ("busy", "qemu-preempt"), 1.0, "mean fault", fault);
        }
        let total = |row: &Row| row.total_ms;
        add(
            ("paced", "hikkoshi-precopy"),
            precopy,
            1.0,
            "total time",
            total,
        );
    }
    goals
}

/// For people.
pub fn text(runs: &[Run]) -> String {
    let goals = goals(runs);
    let width = goals.iter().map(|goal| goal.what.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for goal in &goals {
        let _ = writeln!(
            text,
            "{:<7} {:<width$}  {:.2}x (at most {:.2}x)",
            if goal.reached { "reached" } else { "MISSED" },
            goal.what,
            goal.ratio,
            goal.at_most,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Load, System};
    use crate::table::tests::run;

    #[test]
    fn an_aim_is_missed_or_reached() {
        let runs = [
            run(System::HikkoshiHybrid, Load::Busy, 40.0, 1.0),
            run(System::HikkoshiPrecopy, Load::Paced(7), 160.0, 5000.0),
            run(System::QemuPrecopy, Load::Paced(7), 200.0, 6000.0),
        ];
        let goals = goals(&runs);
        let reached: Vec<_> = goals.iter().map(|goal| goal.reached).collect();
        assert_eq!(reached, [false, true, true], "{goals:?}");
        assert!(text(&runs).contains("MISSED"));
    }
}
