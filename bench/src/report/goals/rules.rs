//! The goals, each with its limit and the numbers behind it.

use super::goal::{Goal, Limit};
use crate::plan::NetworkKind;
use crate::report::medians::{Row, network_part};

/// The part of QEMU's pre-copy downtime that ours may be.
const DOWNTIME_PART: f64 = 0.25;

/// Sequential access with read-ahead beside without.
const READ_AHEAD: f64 = 3.0;

/// The part of the throughput that the bound on what is in flight must leave.
const FILLED: f64 = 0.95;

/// What a page takes on the line, with all headers (Ethernet, IP, TCP, our frame), bytes.
const PAGE_ON_THE_LINE: f64 = 4096.0 + 120.0;

/// A page's time on the line in µs, if it has a rate.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn page_us(network: NetworkKind) -> Option<f64> {
    let shape = network.shape()?;
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
    if let Some(us) = page_us(row.case.network) {
        text.push_str(&format!("; a page takes {us:.1} µs on the line"));
    }
    text
}

pub(super) struct Rules<'a> {
    rows: &'a [Row],
    goals: Vec<Goal>,
}

/// The number of a goal that there is none for.
pub(super) const NOT_MEASURED: &str = "not measured";

impl<'a> Rules<'a> {
    pub(super) fn new(rows: &'a [Row]) -> Self {
        Self {
            rows,
            goals: Vec::new(),
        }
    }

    /// Every goal that the rows have numbers for.
    pub(super) fn evaluate(mut self) -> Vec<Goal> {
        self.faults();
        self.beside_preempt();
        self.reading();
        self.filling();
        self.downtimes();
        self.goals
    }

    fn find(&self, network: NetworkKind, workload: &str, system: &str) -> Option<&'a Row> {
        self.rows.iter().find(|row| {
            row.case.network == network && row.workload == workload && row.system == system
        })
    }

    fn networks(&self) -> Vec<NetworkKind> {
        let mut networks = Vec::new();
        for row in self.rows {
            if !networks.contains(&row.case.network) {
                networks.push(row.case.network);
            }
        }
        networks
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
            (NetworkKind::Gbit(1), 0.25),
            (NetworkKind::Gbit(10), 0.12),
            (NetworkKind::Loopback, 0.08),
        ];
        for (network, ms) in mean {
            for system in ["hikkoshi-hybrid", "hikkoshi-postcopy"] {
                let Some(row) = self.find(network, "busy", system) else {
                    continue;
                };
                self.add(
                    format!("{network}: mean fault, {system}"),
                    row.fault_us.map(|us| us / 1e3),
                    "ms",
                    Limit::AtMost(ms),
                    stages(row),
                );
                if network == NetworkKind::Gbit(1) {
                    self.add(
                        format!("{network}: p99 of the faults, {system}"),
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
        for network in self.networks() {
            let theirs = self.find(network, "busy", "qemu-preempt");
            for system in ["hikkoshi-hybrid", "hikkoshi-postcopy"] {
                let (Some(ours), Some(theirs)) = (self.find(network, "busy", system), theirs)
                else {
                    continue;
                };
                let what = |what: &str| format!("{network}: {what}, {system} to qemu-preempt");
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
                if network == NetworkKind::Gbit(1) {
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
            let huge = |system| self.find(network, "huge", system);
            if let (Some(ours), Some(theirs)) = (huge("hikkoshi-hybrid"), huge("qemu-preempt")) {
                let on_the_line = page_us(network)
                    .map(|us| format!("2 MiB take {:.2} ms on the line", us * 512.0 / 1e3));
                self.ratio(
                    format!(
                        "{network}: mean fault with 2 MiB pages, hikkoshi-hybrid to qemu-preempt"
                    ),
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
        for network in self.networks() {
            let find = |variant: &str| {
                self.find(
                    network,
                    "sequential",
                    &format!("hikkoshi-postcopy{variant}"),
                )
            };
            let (Some(with), Some(without)) = (find(""), find("/no-read-ahead")) else {
                continue;
            };
            let (with, without) = (with.scan_pages, without.scan_pages);
            let mut most = String::new();
            if let Some(carried) = page_us(network).map(|us| 1e6 / us) {
                most = format!("the line carries {carried:.0} pages a second");
                if without.is_some_and(|pages| pages * READ_AHEAD > carried) {
                    most.push_str(", less than would be wanted");
                }
            }
            self.ratio(
                format!("{network}: sequential access, with read-ahead to without"),
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
        for network in self.networks() {
            let Some(bounded) = self.find(network, "fill", "hikkoshi-postcopy") else {
                continue;
            };
            let part = network_part(bounded);
            if network == NetworkKind::Gbit(1) {
                self.add(
                    format!("{network}: part of the line that the background fills"),
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
                let Some(unbounded) = self.find(network, "fill", without) else {
                    continue;
                };
                let megabytes = |row: &Row| row.throughput.map(|bytes| bytes / 1e6);
                self.ratio(
                    format!(
                        "{network}: background in post-copy, with the bound, to {what} without"
                    ),
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
        for network in self.networks() {
            let Some(theirs) = self.find(network, "paced", "qemu-precopy") else {
                continue;
            };
            for (workload, system) in [
                ("paced", "hikkoshi-precopy"),
                ("paced", "hikkoshi-hybrid"),
                ("busy", "hikkoshi-hybrid"),
                ("busy", "hikkoshi-postcopy"),
            ] {
                let Some(ours) = self.find(network, workload, system) else {
                    continue;
                };
                self.ratio(
                    format!("{network}: downtime, {system} ({workload}) to qemu-precopy (paced)"),
                    (ours.downtime_ms, theirs.downtime_ms),
                    "ms",
                    Limit::AtMost(DOWNTIME_PART),
                    String::new(),
                );
            }
            if let Some(ours) = self.find(network, "paced", "hikkoshi-precopy") {
                self.ratio(
                    format!("{network}: total time, hikkoshi-precopy to qemu-precopy (paced)"),
                    (ours.total_ms, theirs.total_ms),
                    "ms",
                    Limit::AtMost(1.0),
                    String::new(),
                );
            }
        }
    }
}
