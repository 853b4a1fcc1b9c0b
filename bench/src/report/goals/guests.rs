//! The goals for guests as they are: private memory, a short switchover, undisturbed clients.

use super::goal::Limit;
use super::rules::Rules;
use crate::report::medians::Row;

/// What moving private memory takes, relative to memory in shared files.
const PRIVATE: f64 = 1.1;

/// The guest's downtime, from the STOP event to the RESUME event, ms.
const DOWNTIME_MS: f64 = 5.0;

/// The Debian guest's downtime, ms.
const DEBIAN_DOWNTIME_MS: f64 = 15.0;

/// The longest time that a client waits for an answer, ms.
const CLIENT_GAP_MS: f64 = 60.0;

/// hikkoshi's modes.
const MODES: [&str; 3] = ["hikkoshi-precopy", "hikkoshi-hybrid", "hikkoshi-postcopy"];

impl Rules<'_> {
    /// Private memory at both sides, compared with shared files.
    pub(super) fn private_memory(&mut self) {
        for network in self.networks() {
            for (private, shared) in [
                ("private", "busy"),
                ("private-paced", "paced"),
                ("private-fill", "fill"),
            ] {
                for system in MODES {
                    let find = |workload| self.find(network, workload, system);
                    let (Some(private), Some(shared)) = (find(private), find(shared)) else {
                        continue;
                    };
                    let mut compare = |what: &str, value: fn(&Row) -> Option<f64>, unit: &str| {
                        self.ratio(
                            format!(
                                "{network}: {what}, {system}, {} to {}",
                                private.workload, shared.workload
                            ),
                            [private, shared],
                            value,
                            unit,
                            Limit::AtMost(PRIVATE),
                            String::new(),
                        );
                    };
                    compare("total time", |row| row.total_ms, "ms");
                    if shared.workload == "busy" {
                        compare("mean fault", |row| row.fault_us, "µs");
                    }
                }
            }
        }
    }

    /// The downtime by itself, with QEMU's beside it.
    pub(super) fn switchovers(&mut self) {
        let [precopy, hybrid, postcopy] = MODES;
        let qemu_precopy = &["qemu-precopy"][..];
        let qemu_postcopy = &["qemu-preempt", "qemu-postcopy"][..];
        for (workload, system, qemu, limit) in [
            ("paced", precopy, qemu_precopy, DOWNTIME_MS),
            ("busy", hybrid, qemu_postcopy, DOWNTIME_MS),
            ("busy", postcopy, qemu_postcopy, DOWNTIME_MS),
            ("private-paced", precopy, qemu_precopy, DOWNTIME_MS),
            ("private", hybrid, qemu_postcopy, DOWNTIME_MS),
            ("private", postcopy, qemu_postcopy, DOWNTIME_MS),
            ("debian", precopy, qemu_precopy, DEBIAN_DOWNTIME_MS),
            ("debian", hybrid, qemu_postcopy, DEBIAN_DOWNTIME_MS),
            ("debian", postcopy, qemu_postcopy, DEBIAN_DOWNTIME_MS),
        ] {
            for network in self.networks() {
                let Some(row) = self.find(network, workload, system) else {
                    continue;
                };
                let theirs = |system: &&str| {
                    let ms = self.find(network, workload, system)?.downtime_ms?;
                    Some(format!("{system}: {ms:.1} ms"))
                };
                let theirs = qemu.iter().find_map(theirs);
                let theirs = theirs.unwrap_or_else(|| "QEMU's was not measured".to_owned());
                self.add(
                    format!("{network}: downtime, {system} ({workload})"),
                    &[row],
                    row.downtime_ms,
                    "ms",
                    Limit::AtMost(limit),
                    theirs,
                );
            }
        }
    }

    /// What the guest's clients notice.
    pub(super) fn clients(&mut self) {
        for network in self.networks() {
            for system in MODES {
                let Some(row) = self.find(network, "clients", system) else {
                    continue;
                };
                let theirs = self.find(network, "clients", "qemu-precopy");
                let theirs = theirs.map_or([None; 2], |row| row.client_gaps_ms);
                let kinds = ["requests", "datagrams"];
                for ((what, ours), theirs) in kinds.iter().zip(row.client_gaps_ms).zip(theirs) {
                    let shown_by = match theirs {
                        Some(ms) => format!("qemu-precopy: {ms:.0} ms"),
                        None => "qemu-precopy was not measured".to_owned(),
                    };
                    self.add(
                        format!("{network}: longest gap between answers to {what}, {system}"),
                        &[row],
                        ours,
                        "ms",
                        Limit::AtMost(CLIENT_GAP_MS),
                        shown_by,
                    );
                }
                self.add(
                    format!("{network}: datagrams lost in the worst run, {system}"),
                    &[row],
                    row.datagrams_lost,
                    "datagrams",
                    Limit::AtMost(0.0),
                    String::new(),
                );
            }
        }
    }
}
