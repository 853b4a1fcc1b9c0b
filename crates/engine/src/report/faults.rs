//! What was measured of the guest's faults.

use hikkoshi_wire::{FaultMeasures, MAX_FAULTING};
use serde::Serialize;

use crate::report::{LatencySummary, Stages};

/// How many faults one thread of the guest's process took in post-copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadFaults {
    /// What it is called.
    pub thread: String,
    /// Which virtual processor it is, if it is one.
    pub vcpu: Option<u32>,
    /// Faults that it waited for.
    pub count: u64,
}

/// Everything that was measured of faults and page requests. Empty without
/// post-copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Requests {
    /// From reading a fault to the installed page, as the destination measured
    /// it, in µs.
    pub request_latency_us: LatencySummary,
    /// What that time went into.
    pub request_stages_us: Stages,
    /// Requests that are in none of these, for want of room to note when they
    /// were made.
    pub unmeasured_requests: u64,
    /// Who faulted, most often first.
    pub faults: Vec<ThreadFaults>,
    /// Requests that came when all that they ask for had been sent unasked, or
    /// was just being sent: background is their answer. Counted by the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_under_way: Option<u64>,
    /// Who faulted while the device state was loaded, before the guest ran
    /// here. Counted by the destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults_before_running: Option<Vec<ThreadFaults>>,
}

impl Requests {
    /// All but the latency in all, as it is told to the source.
    pub fn measures(&self) -> FaultMeasures {
        FaultMeasures {
            stages: (&self.request_stages_us).into(),
            unmeasured: self.unmeasured_requests,
            threads: self
                .faults
                .iter()
                .take(MAX_FAULTING)
                .map(|faults| hikkoshi_wire::ThreadFaults {
                    thread: faults.thread.clone(),
                    vcpu: faults.vcpu,
                    count: faults.count,
                })
                .collect(),
        }
    }

    /// Takes in what the destination has told.
    pub fn add_measures(&mut self, told: FaultMeasures) {
        self.request_stages_us = told.stages.into();
        self.unmeasured_requests = told.unmeasured;
        self.faults = told
            .threads
            .into_iter()
            .map(|faults| ThreadFaults {
                thread: faults.thread,
                vcpu: faults.vcpu,
                count: faults.count,
            })
            .collect();
    }
}

/// How rebuilding huge pages went.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CollapseAccount {
    /// Places of 2 MiB that hold data of the guest, as far as it came.
    pub tried: u64,
    /// Those that are huge pages now.
    pub rebuilt: u64,
    /// Those that are not, by reason, most frequent first.
    pub failed: Vec<CollapseFailures>,
    /// Whether it ended early, and why.
    pub stopped: Option<String>,
    /// How long it took, in milliseconds.
    pub total_ms: f64,
}

/// Places that did not become huge pages, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollapseFailures {
    /// The reason.
    pub reason: String,
    /// How many places.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Moments, RequestLatencies};

    #[test]
    fn the_source_hears_what_was_measured() {
        let mut latencies = RequestLatencies::default();
        latencies.record(&Moments {
            fault_read: 0,
            request_sent: 1_000,
            page_received: 40_000,
            installed: 50_000,
        });
        let here = Requests {
            request_latency_us: latencies.total(),
            request_stages_us: latencies.stages(),
            unmeasured_requests: 3,
            faults: vec![ThreadFaults {
                thread: "CPU 1/KVM".into(),
                vcpu: Some(1),
                count: 7,
            }],
            ..Requests::default()
        };
        let mut there = Requests::default();
        there.add_measures(here.measures());
        assert_eq!(there.faults, here.faults);
        assert_eq!(there.unmeasured_requests, 3);
        let (ours, theirs) = (&here.request_stages_us, &there.request_stages_us);
        assert_eq!(theirs.request_to_page.count, 1);
        assert_eq!(
            theirs.request_to_page.histogram,
            ours.request_to_page.histogram
        );
    }
}
