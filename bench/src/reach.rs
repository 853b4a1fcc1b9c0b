//! What the project wants to reach, whether it does, and what bounds it where it does not.

use serde::Serialize;

use crate::plan::LineKind;
use crate::record::Run;
use crate::table::{Row, Sheet, line_part, rows};

/// The part of QEMU's pre-copy downtime that ours may be.
const DOWNTIME_PART: f64 = 0.25;
/// Sequential access with read-ahead beside without.
const READ_AHEAD: f64 = 3.0;
/// The part of the throughput that the bound on what is in flight must leave.
const FILLED: f64 = 0.95;
/// What a page takes on the line, with all headers (Ethernet, IP, TCP, our frame), bytes.
const PAGE_ON_THE_LINE: f64 = 4096.0 + 120.0;

/// Up to which number, or from which on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Limit {
    /// At most that.
    AtMost(f64),
    /// Less than that.
    Below(f64),
    /// At least that.
    AtLeast(f64),
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::Below(limit) => value < limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

/// One aim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// In words.
    pub what: String,
    /// What was measured; none when every run of it failed or has no such number.
    pub value: Option<f64>,
    /// Of what it is, or `x`.
    pub unit: &'static str,
    /// What it should be.
    pub limit: Limit,
    /// Whether it is.
    pub reached: bool,
    /// The numbers behind it; if it is missed, they show what bounds it.
    pub shown_by: String,
}

/// Every aim that the runs are about.
pub fn goals(runs: &[Run]) -> Vec<Goal> {
    let rows = rows(runs);
    let mut goals = Goals {
        rows: &rows,
        goals: Vec::new(),
    };
    goals.faults();
    goals.beside_preempt();
    goals.reading();
    goals.filling();
    goals.downtimes();
    goals.goals
}

/// A page's time on the line in µs, if it has a rate.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn page_us(line: LineKind) -> Option<f64> {
    let shape = line.shape()?;
    Some(PAGE_ON_THE_LINE * 8e6 / shape.rate_bits as f64)
}

/// Where a fault's time goes.
fn stages(row: &Row) -> String {
    let mut text = match row.stages_us {
        [Some(request), Some(page), Some(install)] => format!(
            "fault to request {request:.1}, request to page {page:.1}, page to installed {install:.1} µs"
        ),
        _ => "the engine's account has no stages".to_owned(),
    };
    if let (Some(seen), [Some(a), Some(b), Some(c)]) = (row.fault_us, row.stages_us) {
        text.push_str(&format!(
            "; the guest waits {:.0} µs more (the fault's way to the engine, and back to the processor)",
            (seen - a - b - c).max(0.0)
        ));
    }
    if let Some(us) = page_us(row.case.line) {
        text.push_str(&format!("; a page takes {us:.1} µs on the line"));
    }
    text
}

struct Goals<'a> {
    rows: &'a [Row],
    goals: Vec<Goal>,
}

/// The number of a goal that there is none for.
const NOT_MEASURED: &str = "not measured";

impl<'a> Goals<'a> {
    fn find(&self, line: LineKind, load: &str, system: &str) -> Option<&'a Row> {
        self.rows
            .iter()
            .find(|row| row.case.line == line && row.load == load && row.system == system)
    }

    fn lines(&self) -> Vec<LineKind> {
        let mut lines = Vec::new();
        for row in self.rows {
            if !lines.contains(&row.case.line) {
                lines.push(row.case.line);
            }
        }
        lines
    }

    fn add(
        &mut self,
        what: String,
        value: Option<f64>,
        unit: &'static str,
        limit: Limit,
        shown_by: String,
    ) {
        self.goals.push(Goal {
            what,
            value,
            unit,
            limit,
            reached: value.is_some_and(|value| limit.holds(value)),
            shown_by,
        });
    }

    /// A ratio, with the two numbers that it is of.
    fn ratio(
        &mut self,
        what: String,
        (ours, theirs): (Option<f64>, Option<f64>),
        unit: &str,
        limit: Limit,
        more: String,
    ) {
        let number = |value: Option<f64>| match value {
            Some(value) => format!("{value:.1}"),
            None => NOT_MEASURED.to_owned(),
        };
        let mut shown_by = format!("{} to {} {unit}", number(ours), number(theirs));
        if !more.is_empty() {
            shown_by.push_str("; ");
            shown_by.push_str(&more);
        }
        let both = ours.zip(theirs).filter(|pair| pair.1 > 0.0);
        let ratio = both.map(|(ours, theirs)| ours / theirs);
        self.add(what, ratio, "x", limit, shown_by);
    }

    /// Faults as the guest sees them.
    fn faults(&mut self) {
        let mean = [
            (LineKind::Gbit(1), 0.25),
            (LineKind::Gbit(10), 0.12),
            (LineKind::Loopback, 0.08),
        ];
        for (line, ms) in mean {
            for system in ["hikkoshi-hybrid", "hikkoshi-postcopy"] {
                let Some(row) = self.find(line, "busy", system) else {
                    continue;
                };
                self.add(
                    format!("{line}: mean fault, {system}"),
                    row.fault_us.map(|us| us / 1e3),
                    "ms",
                    Limit::AtMost(ms),
                    stages(row),
                );
                if line == LineKind::Gbit(1) {
                    self.add(
                        format!("{line}: p99 of the faults, {system}"),
                        row.fault_p99_us.map(|us| us / 1e3),
                        "ms",
                        // The bound is the upper edge of a bucket an eighth wide.
                        Limit::AtMost(1.0),
                        stages(row),
                    );
                }
            }
        }
    }

    /// Beside QEMU's best post-copy.
    fn beside_preempt(&mut self) {
        for line in self.lines() {
            let theirs = self.find(line, "busy", "qemu-preempt");
            for system in ["hikkoshi-hybrid", "hikkoshi-postcopy"] {
                let (Some(ours), Some(theirs)) = (self.find(line, "busy", system), theirs) else {
                    continue;
                };
                let what = |what: &str| format!("{line}: {what}, {system} to qemu-preempt");
                self.ratio(
                    what("mean fault"),
                    (ours.fault_us, theirs.fault_us),
                    "µs",
                    Limit::Below(1.0),
                    String::new(),
                );
                if system == "hikkoshi-hybrid" {
                    let megabytes = |row: &Row| row.bytes.unwrap_or(0.0) / 1e6;
                    self.ratio(
                        what("time until everything is received"),
                        (ours.total_ms, theirs.total_ms),
                        "ms",
                        Limit::AtMost(1.1),
                        format!(
                            "{:.0} and {:.0} MB on the line",
                            megabytes(ours),
                            megabytes(theirs)
                        ),
                    );
                }
                if line == LineKind::Gbit(1) {
                    self.ratio(
                        what("accesses completed during post-copy"),
                        (ours.accesses, theirs.accesses),
                        "accesses",
                        Limit::AtLeast(5.0),
                        stages(ours),
                    );
                    self.ratio(
                        what("accesses a second during post-copy"),
                        (ours.accesses_per_second, theirs.accesses_per_second),
                        "a second",
                        Limit::AtLeast(5.0),
                        stages(ours),
                    );
                }
            }
            let huge = |system| self.find(line, "huge", system);
            if let (Some(ours), Some(theirs)) = (huge("hikkoshi-hybrid"), huge("qemu-preempt")) {
                let on_the_line = page_us(line)
                    .map(|us| format!("2 MiB take {:.2} ms on the line", us * 512.0 / 1e3));
                self.ratio(
                    format!("{line}: mean fault with 2 MiB pages, hikkoshi-hybrid to qemu-preempt"),
                    (ours.fault_us, theirs.fault_us),
                    "µs",
                    Limit::AtMost(0.5),
                    on_the_line.unwrap_or_default(),
                );
            }
        }
    }

    /// Sequential access, with read-ahead and without.
    fn reading(&mut self) {
        for line in self.lines() {
            let find = |variant: &str| {
                self.find(line, "sequential", &format!("hikkoshi-postcopy{variant}"))
            };
            let (Some(with), Some(without)) = (find(""), find("/no-read-ahead")) else {
                continue;
            };
            let (with, without) = (with.scan_pages, without.scan_pages);
            let mut most = String::new();
            if let Some(carried) = page_us(line).map(|us| 1e6 / us) {
                most = format!("the line carries {carried:.0} pages a second");
                if without.is_some_and(|pages| pages * READ_AHEAD > carried) {
                    most.push_str(", less than would be wanted");
                }
            }
            self.ratio(
                format!("{line}: sequential access, with read-ahead to without"),
                (with, without),
                "pages a second",
                Limit::AtLeast(READ_AHEAD),
                most,
            );
        }
    }

    /// The line is filled although what is in flight is bounded: beside post-copy with the bound
    /// switched off, and beside pre-copy, which has none.
    fn filling(&mut self) {
        for line in self.lines() {
            let Some(bounded) = self.find(line, "fill", "hikkoshi-postcopy") else {
                continue;
            };
            let part = line_part(bounded);
            if line == LineKind::Gbit(1) {
                self.add(
                    format!("{line}: part of the line that the background fills"),
                    part,
                    "x",
                    Limit::AtLeast(FILLED),
                    format!("{:.0} MB/s", bounded.throughput.unwrap_or(0.0) / 1e6),
                );
            }
            let of_the_line = part.map(|part| format!("{:.0} % of the line", part * 100.0));
            for (without, what) in [
                ("hikkoshi-postcopy/no-bound", "the same"),
                ("hikkoshi-precopy", "pre-copy"),
            ] {
                let Some(unbounded) = self.find(line, "fill", without) else {
                    continue;
                };
                let megabytes = |row: &Row| row.throughput.map(|bytes| bytes / 1e6);
                self.ratio(
                    format!("{line}: background in post-copy, with the bound, to {what} without"),
                    (megabytes(bounded), megabytes(unbounded)),
                    "MB/s",
                    Limit::AtLeast(FILLED),
                    of_the_line.clone().unwrap_or_default(),
                );
            }
        }
    }

    /// The switch, beside QEMU's pre-copy.
    fn downtimes(&mut self) {
        for line in self.lines() {
            let Some(theirs) = self.find(line, "paced", "qemu-precopy") else {
                continue;
            };
            for (load, system) in [
                ("paced", "hikkoshi-precopy"),
                ("paced", "hikkoshi-hybrid"),
                ("busy", "hikkoshi-hybrid"),
                ("busy", "hikkoshi-postcopy"),
            ] {
                let Some(ours) = self.find(line, load, system) else {
                    continue;
                };
                self.ratio(
                    format!("{line}: downtime, {system} ({load}) to qemu-precopy (paced)"),
                    (ours.downtime_ms, theirs.downtime_ms),
                    "ms",
                    Limit::AtMost(DOWNTIME_PART),
                    String::new(),
                );
            }
            if let Some(ours) = self.find(line, "paced", "hikkoshi-precopy") {
                self.ratio(
                    format!("{line}: total time, hikkoshi-precopy to qemu-precopy (paced)"),
                    (ours.total_ms, theirs.total_ms),
                    "ms",
                    Limit::AtMost(1.0),
                    String::new(),
                );
            }
        }
    }
}

/// For people.
pub fn sheet(runs: &[Run]) -> Sheet {
    let lines = goals(runs)
        .iter()
        .map(|goal| {
            let digits = if goal.unit == "x" { 2 } else { 3 };
            let (sign, limit) = match goal.limit {
                Limit::AtMost(limit) => ("at most", limit),
                Limit::Below(limit) => ("below", limit),
                Limit::AtLeast(limit) => ("at least", limit),
            };
            let (verdict, value) = match goal.value {
                Some(value) if goal.reached => {
                    ("reached", format!("{value:.digits$} {}", goal.unit))
                }
                Some(value) => ("MISSED", format!("{value:.digits$} {}", goal.unit)),
                None => (NOT_MEASURED, "-".to_owned()),
            };
            vec![
                goal.what.clone(),
                verdict.to_owned(),
                value,
                format!("{sign} {limit} {}", goal.unit),
                goal.shown_by.clone(),
            ]
        })
        .collect();
    Sheet {
        title: "Reach".to_owned(),
        head: vec!["aim", "", "measured", "wanted", "shown by"],
        words: true,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Accesses;
    use crate::plan::{Load, System, Variant};
    use crate::scan::ScanOutcome;
    use crate::table::tests::run;
    use serde_json::json;

    fn reached(runs: &[Run]) -> Vec<(String, bool)> {
        let goals = goals(runs).into_iter();
        goals.map(|goal| (goal.what, goal.reached)).collect()
    }

    fn busy(system: System, load: Load, mean_us: f64, accesses: f64, total_ms: f64) -> Run {
        let mut run = run(system, load, 20.0, total_ms);
        run.accesses = Some(Accesses {
            slow: 100,
            slow_mean_us: mean_us,
            max_us: 9e3,
            slow_p50_below_us: None,
            slow_p99_below_us: None,
            per_second: Some(accesses / 5.0),
            completed: Some(accesses),
            histogram: Vec::new(),
        });
        run
    }

    #[test]
    fn downtimes_are_a_part_of_qemus() {
        let runs = [
            run(System::HikkoshiHybrid, Load::Busy, 40.0, 1.0),
            run(System::HikkoshiPrecopy, Load::Paced(7), 160.0, 5000.0),
            run(System::QemuPrecopy, Load::Paced(7), 200.0, 6000.0),
        ];
        let goals = reached(&runs).into_iter();
        let of_time = goals.filter(|goal| goal.0.contains("time,"));
        let reached: Vec<_> = of_time.map(|goal| goal.1).collect();
        assert_eq!(reached, [false, true, true]);
        assert!(sheet(&runs).text().contains("MISSED"));
    }

    #[test]
    fn the_issues_figures_are_judged_with_what_bounds_them() {
        let mut ours = busy(System::HikkoshiHybrid, Load::Busy, 300.0, 6000.0, 1050.0);
        ours.account = json!({ "request_stages_us": {
            "fault_to_request": { "mean": 10.0 },
            "request_to_page": { "mean": 200.0 },
            "page_to_installed": { "mean": 20.0 },
        }});
        let theirs = busy(System::QemuPreempt, Load::Busy, 2000.0, 1000.0, 1000.0);
        let huge = [
            busy(System::HikkoshiHybrid, Load::Huge, 9e3, 1.0, 1.0),
            busy(System::QemuPreempt, Load::Huge, 20e3, 1.0, 1.0),
        ];
        let runs: Vec<_> = [ours, theirs].into_iter().chain(huge).collect();
        let verdicts = reached(&runs);
        let of = |what: &str| {
            let found = verdicts.iter().find(|goal| goal.0.contains(what));
            found.unwrap_or_else(|| panic!("{what} in {verdicts:?}")).1
        };
        assert!(!of("1gbit: mean fault, hikkoshi-hybrid"));
        assert!(of("1gbit: mean fault, hikkoshi-hybrid to"));
        assert!(of("time until everything is received"));
        assert!(of("accesses completed"));
        assert!(of("2 MiB"));
        let text = sheet(&runs).text();
        assert!(text.contains("request to page 200.0"), "{text}");
        assert!(text.contains("the guest waits 70 µs more"), "{text}");
        assert!(text.contains("a page takes 33.7 µs"), "{text}");
    }

    #[test]
    fn what_has_no_number_is_not_passed_over() {
        let failed = |system| {
            let mut run = run(system, Load::Busy, 20.0, 1.0);
            run.failure = Some("it did not begin".to_owned());
            run
        };
        let theirs = busy(System::QemuPreempt, Load::Busy, 2000.0, 1000.0, 1000.0);
        let runs = [failed(System::HikkoshiHybrid), theirs];
        let goals = goals(&runs);
        let mean = |goal: &&Goal| goal.what == "1gbit: mean fault, hikkoshi-hybrid";
        assert_eq!(goals.iter().find(mean).unwrap().value, None);
        assert!(goals.iter().all(|goal| !goal.reached), "{goals:?}");
        let text = sheet(&runs).text();
        assert!(text.contains("not measured to 2000.0 µs"), "{text}");
        assert!(!text.contains("MISSED"), "{text}");
    }

    #[test]
    fn reading_ahead_is_worth_three_times() {
        let scan = |variant, ms| {
            let mut run = run(System::HikkoshiPostcopy, Load::Sequential, 1.0, 1.0);
            run.case.variant = variant;
            run.label = run.case.to_string();
            run.scan = Some(ScanOutcome {
                ms,
                pages: 1000,
                ran: 0.5,
                progress: Vec::new(),
            });
            run
        };
        let runs = [
            scan(Variant::Plain, 50.0),
            scan(Variant::NoReadAhead, 90.0),
            scan(Variant::ReadAhead8, 10.0),
        ];
        let goals = goals(&runs);
        assert_eq!(goals.len(), 1);
        assert!(!goals[0].reached && (goals[0].value.unwrap() - 1.8).abs() < 1e-9);
        let bound = "the line carries 29649 pages a second, less than would be wanted";
        assert!(goals[0].shown_by.ends_with(bound), "{}", goals[0].shown_by);
    }
}
