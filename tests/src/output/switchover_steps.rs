//! The steps of a switchover in a JSON report: which each side performs, in which order, and how
//! they agree with the downtime.

use crate::JsonReport;
use hikkoshi_account::{GuestState, Side};

/// Both times of a report were calculated from the same readings of the clock.
const EXACT_MS: f64 = 1e-3;

/// A step of post-copy's destination, if pages became stale during the pause.
const STALE_PAGES_DROPPED: &str = "stale pages dropped";

/// The step from which the destination's downtime counts.
const EVERYTHING_RECEIVED: &str = "everything received";

/// The steps of a side that switched over by itself, with a guest that ran and whose pages became
/// stale during the pause. A new step is added here.
fn expected(side: Side, postcopy: bool) -> Vec<&'static str> {
    let only_postcopy = |step: &'static str| postcopy.then_some(step);
    let steps = match side {
        Side::Source => [
            Some("paused"),
            only_postcopy("stale pages known"),
            Some("device state sent"),
            Some("dirty log taken"),
            Some("destination ready"),
            only_postcopy("pages of firmware and devices sent"),
            Some("committed"),
            Some("guest resumed"),
        ],
        Side::Destination => [
            only_postcopy(STALE_PAGES_DROPPED),
            Some(EVERYTHING_RECEIVED),
            Some("faults are answered"),
            Some("device state loaded"),
            Some("readiness recorded"),
            Some("commit received"),
            Some("guest runs"),
            Some("guest announced"),
        ],
    };
    steps.into_iter().flatten().collect()
}

impl JsonReport {
    /// Checks the steps of the switchover. The engine that wrote the report has performed it.
    ///
    /// # Panics
    /// When they are not as docs/json.md says.
    pub(crate) fn check_switchover(&self, side: Side) {
        if self.guest_state == GuestState::Paused {
            assert_eq!(self.switchover, [], "its owner had paused it: {self:?}");
            return;
        }
        let names: Vec<_> = self.switchover.iter().map(|one| &*one.step).collect();
        let mut expected = expected(side, self.postcopy);
        if !names.contains(&STALE_PAGES_DROPPED) {
            expected.retain(|step| *step != STALE_PAGES_DROPPED);
        }
        if self.disk_bytes.is_some() {
            let before = match side {
                Side::Source => "paused",
                Side::Destination => EVERYTHING_RECEIVED,
            };
            let at = expected.iter().position(|step| *step == before);
            expected.insert(at.map_or(0, |at| at + 1), "disks complete");
        }
        assert_eq!(names, expected, "{side:?}: {self:?}");
        let times = self.switchover.iter().map(|one| one.at_ms);
        assert!(
            times.clone().is_sorted() && times.clone().all(|at| at >= 0.0),
            "{side:?}: a step is earlier than the one before: {self:?}"
        );
        match side {
            // It ends with the last step.
            Side::Source => assert!(
                times.fold(0.0, f64::max) <= self.downtime_ms.unwrap(),
                "{side:?}: a step is later than the downtime: {self:?}"
            ),
            // It begins when everything was received, and ends when the guest runs, before that is
            // announced to the network.
            Side::Destination => {
                let [received, runs] =
                    [EVERYTHING_RECEIVED, "guest runs"].map(|step| self.step_ms(step));
                assert!(
                    (runs - received - self.downtime_ms.unwrap()).abs() <= EXACT_MS,
                    "{side:?}: everything was received at {received} ms, the guest runs at {runs} \
                     ms: {self:?}"
                );
            }
        }
    }

    /// When that step of the switchover was done, ms.
    ///
    /// # Panics
    /// When it is not in the report.
    pub fn step_ms(&self, step: &str) -> f64 {
        let found = self.switchover.iter().find(|one| one.step == step);
        let found = found.unwrap_or_else(|| panic!("no step {step:?}: {self:?}"));
        found.at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of post-copy by that side, with a millisecond between two steps.
    fn report(side: Side) -> JsonReport {
        let names = expected(side, true);
        let steps = names.iter().zip(1u32..);
        let steps: Vec<_> = steps
            .map(|(step, at)| serde_json::json!({ "step": step, "at_ms": at }))
            .collect();
        let none = serde_json::json!({
            "count": 0, "mean": 0, "p50": 0, "p99": 0, "max": 0, "histogram": [],
        });
        let report = serde_json::json!({
            "mode": "postcopy", "guest_state": "running", "total_ms": 100, "rounds": 0,
            // The destination's: from step 2 to step 7.
            "downtime_ms": if side == Side::Source { 8.5 } else { 5.0 },
            "switchover": steps, "postcopy": true,
            "pages": { "precopy": 0, "zero": 0, "urgent": 0, "background": 0, "guest": 0 },
            "bytes": { "precopy": 0, "urgent": 0, "background": 0, "device_state": 0 },
            "outages": [], "pid": 1, "host": "", "guest": "", "peer": "", "started_unix_ms": 0,
            "resumed": false, "migration_id": "0123456789abcdef",
            "side": side,
            "request_latency_us": none, "unmeasured_requests": 0, "faults": [],
            "request_stages_us": {
                "fault_to_request": none, "request_to_page": none, "page_to_installed": none,
            },
        });
        JsonReport::read(&report.to_string())
    }

    fn noticed(side: Side, flaw: impl Fn(&mut JsonReport)) -> bool {
        let mut report = report(side);
        flaw(&mut report);
        std::panic::catch_unwind(|| report.check_switchover(side)).is_err()
    }

    #[test]
    fn each_flaw_of_the_steps_is_noticed() {
        for side in [Side::Source, Side::Destination] {
            assert!(!noticed(side, |_| ()));
            assert!(noticed(side, |report| report.switchover.clear()));
            assert!(noticed(side, |report| report.switchover[1].at_ms = 0.5));
            assert!(noticed(side, |report| report.switchover[0].at_ms = -0.5));
            assert!(noticed(side, |report| report.switchover.swap(1, 2)));
            assert!(noticed(side, |report| drop(report.switchover.remove(2))));
            assert!(noticed(side, |report| report.downtime_ms = Some(4.0)));
            assert!(noticed(side, |report| report.switchover[3].step += "?"));
            assert!(noticed(side, |report| report.guest_state = GuestState::Paused));
            let paused = |report: &mut JsonReport| {
                report.guest_state = GuestState::Paused;
                report.switchover.clear();
            };
            assert!(!noticed(side, paused));
            assert!(noticed(side, |report| report.postcopy = false));
        }
        // If no pages became stale, the step is not listed.
        let first = |report: &mut JsonReport| report.switchover.remove(0);
        assert!(!noticed(Side::Destination, |report| drop(first(report))));
        assert!(noticed(Side::Source, |report| drop(first(report))));
    }
}
