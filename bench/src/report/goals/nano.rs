//! The goals for asynchronous page faults, with the nano guest.

use super::goal::Limit;
use super::rules::Rules;
use crate::report::medians::{GuestMedians, Row};

/// The time of a scan with asynchronous page faults, relative to without.
const SCAN: f64 = 0.5;

/// The share of the time that tasks run, of the time in which one could run.
const RAN: f64 = 0.9;

/// The answers of a server in the first second at the destination, relative to without.
const SERVED: f64 = 2.0;

impl Rules<'_> {
    /// A server with asynchronous page faults, beside one without.
    pub(super) fn asynchronous_server(&mut self) {
        for network in self.networks() {
            let find = |system| self.find(network, "nano-web", system);
            let with = find("hikkoshi-postcopy");
            let without = find("hikkoshi-postcopy/no-async");
            let (Some(with), Some(without)) = (with, without) else {
                continue;
            };
            let before =
                with.web_per_second[0].map(|rate| format!("{rate:.0} a second before the move"));
            self.ratio(
                format!(
                    "{network}: answers in the first second, asynchronous faults to without, \
                     hikkoshi-postcopy"
                ),
                [with, without],
                |row| row.web_per_second[1],
                "answers",
                Limit::AtLeast(SERVED),
                before.unwrap_or_default(),
            );
        }
    }

    /// Scans with asynchronous page faults, beside those without.
    pub(super) fn asynchronous_faults(&mut self) {
        for network in self.networks() {
            for (workload, variant) in [
                ("nano-scan", "/no-read-ahead"),
                ("nano-scan", "/read-ahead-8"),
                ("nano-scan", ""),
                ("nano-4-tasks", "/no-read-ahead"),
            ] {
                let system = format!("hikkoshi-postcopy{variant}");
                let Some(with) = self.find(network, workload, &system) else {
                    continue;
                };
                let without = format!("{system}/no-async");
                if let Some(without) = self.find(network, workload, &without) {
                    self.ratio(
                        format!("{network}: {workload}, asynchronous faults to without, {system}"),
                        [with, without],
                        |row| row.scan_ms,
                        "ms",
                        Limit::AtMost(SCAN),
                        ran(with, without),
                    );
                }
                self.add(
                    format!(
                        "{network}: {workload}, tasks run, of the time that one could, {system}"
                    ),
                    &[with],
                    with.guest.ran_if_runnable,
                    "x",
                    Limit::AtLeast(RAN),
                    spent(&with.guest),
                );
            }
        }
    }
}

/// The shares of the time that tasks ran.
fn ran(with: &Row, without: &Row) -> String {
    match (with.guest.ran, without.guest.ran) {
        (Some(with), Some(without)) => format!("tasks ran {with:.2} and {without:.2} of it"),
        _ => String::new(),
    }
}

/// How the rest of the time was spent.
fn spent(guest: &GuestMedians) -> String {
    match (guest.stalled, guest.in_kvm, guest.scheduler) {
        (Some(stalled), Some(in_kvm), Some(scheduler)) => format!(
            "of all time, the processor waited for pages {stalled:.2}, KVM started page faults \
             {in_kvm:.2}, and the scheduler ran {scheduler:.2}"
        ),
        _ => String::new(),
    }
}
