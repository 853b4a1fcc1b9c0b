//! The goals, each with its limit and the numbers behind it.

use super::goal::{Goal, Limit};
use crate::plan::NetworkKind;
use crate::report::medians::{Row, network_part};

/// hikkoshi's downtime, as a fraction of the downtime of QEMU's pre-copy.
const DOWNTIME_PART: f64 = 0.25;

/// The rate of sequential access with read-ahead, relative to without.
const READ_AHEAD: f64 = 3.0;

/// The throughput with the limit on bytes in flight, relative to without.
const FILLED: f64 = 0.95;

/// Bytes of a page on the network, including all headers (Ethernet, IP, TCP, frame).
const PAGE_ON_THE_LINE: f64 = 4096.0 + 120.0;

/// The transmission time of a page in µs, if the rate is limited.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn page_us(network: NetworkKind) -> Option<f64> {
    let rate_limit = network.rate_limit()?;
    Some(PAGE_ON_THE_LINE * 8e6 / rate_limit.rate_bits as f64)
}

/// The mean time of each stage of a page request.
fn stages(row: &Row) -> String {
    let mut text = match row.stages_us {
        [Some(request), Some(page), Some(install)] => format!(
            "fault to request {request:.1}, request to page {page:.1}, page to installed {install:.1} µs"
        ),
        _ => "the engine's report has no stages".to_owned(),
    };
    if let (Some(seen), [Some(a), Some(b), Some(c)]) = (row.fault_us, row.stages_us) {
        text.push_str(&format!(
            "; the guest waits {:.0} µs more (from the fault to the engine, and until the processor resumes)",
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

/// The verdict of a goal that has no number.
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
        self.private_memory();
        self.switchovers();
        self.clients();
        self.asynchronous_faults();
        self.asynchronous_server();
        self.goals
    }

    pub(super) fn find(
        &self,
        network: NetworkKind,
        workload: &str,
        system: &str,
    ) -> Option<&'a Row> {
        self.rows.iter().find(|row| {
            row.case.network == network && row.workload == workload && row.system == system
        })
    }

    pub(super) fn networks(&self) -> Vec<NetworkKind> {
        let mut networks = Vec::new();
        for row in self.rows {
            if !networks.contains(&row.case.network) {
                networks.push(row.case.network);
            }
        }
        networks
    }

    /// Adds a goal about a value of these rows.
    pub(super) fn add(
        &mut self,
        what: String,
        rows: &[&Row],
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
            within_limit: value.is_some_and(|value| limit.holds(value)),
            runs: rows.iter().map(|row| row.runs).min().unwrap_or(0),
            shown_by,
        });
    }

    /// Adds a goal about the ratio of a value of the first row to that of the second.
    pub(super) fn ratio(
        &mut self,
        what: String,
        rows: [&Row; 2],
        value: impl Fn(&Row) -> Option<f64>,
        unit: &str,
        limit: Limit,
        more: String,
    ) {
        let number = |value: Option<f64>| match value {
            Some(value) => format!("{value:.1}"),
            None => NOT_MEASURED.to_owned(),
        };
        let [ours, theirs] = rows.map(value);
        let mut shown_by = format!("{} to {} {unit}", number(ours), number(theirs));
        if !more.is_empty() {
            shown_by.push_str("; ");
            shown_by.push_str(&more);
        }
        let both = ours.zip(theirs).filter(|pair| pair.1 > 0.0);
        let ratio = both.map(|(ours, theirs)| ours / theirs);
        self.add(what, &rows, ratio, "x", limit, shown_by);
    }

    /// Fault latency, as the guest measures it.
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
                    &[row],
                    row.fault_us.map(|us| us / 1e3),
                    "ms",
                    Limit::AtMost(ms),
                    stages(row),
                );
                if network == NetworkKind::Gbit(1) {
                    self.add(
                        format!("{network}: p99 of the faults, {system}"),
                        &[row],
                        row.fault_p99_us.map(|us| us / 1e3),
                        "ms",
                        // The value is the upper edge of a bucket one eighth wide.
                        Limit::AtMost(1.0),
                        stages(row),
                    );
                }
            }
        }
    }

    /// Comparison with QEMU's fastest post-copy.
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
                    [ours, theirs],
                    |row| row.fault_us,
                    "µs",
                    Limit::Below(1.0),
                    String::new(),
                );
                if system == "hikkoshi-hybrid" {
                    let megabytes = |row: &Row| row.bytes.unwrap_or(0.0) / 1e6;
                    self.ratio(
                        what("time until everything is received"),
                        [ours, theirs],
                        |row| row.total_ms,
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
                        [ours, theirs],
                        |row| row.accesses,
                        "accesses",
                        Limit::AtLeast(5.0),
                        stages(ours),
                    );
                    self.ratio(
                        what("accesses a second during post-copy"),
                        [ours, theirs],
                        |row| row.accesses_per_second,
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
                    [ours, theirs],
                    |row| row.fault_us,
                    "µs",
                    Limit::AtMost(0.5),
                    on_the_line.unwrap_or_default(),
                );
            }
        }
    }

    /// Sequential access, with and without read-ahead.
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
            let mut most = String::new();
            if let Some(carried) = page_us(network).map(|us| 1e6 / us) {
                most = format!("the line carries {carried:.0} pages a second");
                if without
                    .scan_pages
                    .is_some_and(|pages| pages * READ_AHEAD > carried)
                {
                    most.push_str(", less than the goal");
                }
            }
            self.ratio(
                format!("{network}: sequential access, with read-ahead to without"),
                [with, without],
                |row| row.scan_pages,
                "pages a second",
                Limit::AtLeast(READ_AHEAD),
                most,
            );
        }
    }

    /// The background fills the network despite the limit on bytes in flight: compared with
    /// post-copy without the limit, and with pre-copy, which has none.
    fn filling(&mut self) {
        for network in self.networks() {
            let Some(bounded) = self.find(network, "fill", "hikkoshi-postcopy") else {
                continue;
            };
            let part = network_part(bounded);
            if network == NetworkKind::Gbit(1) {
                self.add(
                    format!("{network}: fraction of the line that the background fills"),
                    &[bounded],
                    part,
                    "x",
                    Limit::AtLeast(FILLED),
                    format!("{:.0} MB/s", bounded.throughput.unwrap_or(0.0) / 1e6),
                );
            }
            let of_the_line = part.map(|part| format!("{:.0} % of the line", part * 100.0));
            for (without, what) in [
                ("hikkoshi-postcopy/no-in-flight-limit", "the same"),
                ("hikkoshi-precopy", "pre-copy"),
            ] {
                let Some(unbounded) = self.find(network, "fill", without) else {
                    continue;
                };
                self.ratio(
                    format!(
                        "{network}: background in post-copy, with the limit, to {what} without"
                    ),
                    [bounded, unbounded],
                    |row| row.throughput.map(|bytes| bytes / 1e6),
                    "MB/s",
                    Limit::AtLeast(FILLED),
                    of_the_line.clone().unwrap_or_default(),
                );
            }
        }
    }

    /// Downtime, compared with QEMU's pre-copy.
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
                    [ours, theirs],
                    |row| row.downtime_ms,
                    "ms",
                    Limit::AtMost(DOWNTIME_PART),
                    String::new(),
                );
            }
            if let Some(ours) = self.find(network, "paced", "hikkoshi-precopy") {
                self.ratio(
                    format!("{network}: total time, hikkoshi-precopy to qemu-precopy (paced)"),
                    [ours, theirs],
                    |row| row.total_ms,
                    "ms",
                    Limit::AtMost(1.0),
                    String::new(),
                );
            }
        }
    }
}
