//! Measurements of the guest's faults.

use hikkoshi_wire::{FaultMeasures, MAX_FAULTING};

use crate::report::{LatencySummary, Stages};

/// Whose faults a thread takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Those of the virtual processor with this number, which it runs, and no other.
    Vcpu(u32),
    /// A worker of the kernel: those of virtual processors that KVM handles asynchronously. The
    /// guest can run another task on the processor meanwhile, if it has switched that on.
    Asynchronous,
    /// Its own: a thread of a device, or one that cannot be identified.
    Other,
}

impl From<FaultKind> for hikkoshi_wire::FaultKind {
    fn from(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Vcpu(number) => Self::Vcpu(number),
            FaultKind::Asynchronous => Self::Asynchronous,
            FaultKind::Other => Self::Other,
        }
    }
}

impl From<hikkoshi_wire::FaultKind> for FaultKind {
    fn from(kind: hikkoshi_wire::FaultKind) -> Self {
        match kind {
            hikkoshi_wire::FaultKind::Vcpu(number) => Self::Vcpu(number),
            hikkoshi_wire::FaultKind::Asynchronous => Self::Asynchronous,
            hikkoshi_wire::FaultKind::Other => Self::Other,
        }
    }
}

/// How many faults one thread took in post-copy, or all workers of the kernel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadFaults {
    /// The thread's name.
    pub thread: String,
    /// Whose faults.
    pub kind: FaultKind,
    /// Faults that it waited for.
    pub count: u64,
}

/// All measurements of faults and page requests. Empty without post-copy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestStatistics {
    /// From reading a fault to the installed page, measured by the destination, in µs.
    pub request_latency_us: LatencySummary,
    /// The stages of that time.
    pub request_stages_us: Stages,
    /// Requests that were not measured, for lack of space to record when they were made.
    pub unmeasured_requests: u64,
    /// Faults by thread, most first.
    pub faults: Vec<ThreadFaults>,
    /// Requests that arrived when all requested pages had been pushed, or were just being pushed:
    /// the background link answers them. Counted by the source.
    pub requests_under_way: Option<u64>,
    /// Faults by thread while the device state was loaded, before the guest ran here. Counted by
    /// the destination.
    pub faults_before_running: Option<Vec<ThreadFaults>>,
}

impl RequestStatistics {
    /// Faults that KVM handled asynchronously.
    pub fn asynchronous_faults(&self) -> u64 {
        let kind = |faults: &&ThreadFaults| faults.kind == FaultKind::Asynchronous;
        self.faults.iter().filter(kind).map(|f| f.count).sum()
    }

    /// All but the total latency, as it is sent to the source.
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
                    kind: faults.kind.into(),
                    count: faults.count,
                })
                .collect(),
        }
    }

    /// Adds what the destination has reported.
    pub(crate) fn add_measures(&mut self, measures: FaultMeasures) {
        self.request_stages_us = measures.stages.into();
        self.unmeasured_requests = measures.unmeasured;
        self.faults = measures
            .threads
            .into_iter()
            .map(|faults| ThreadFaults {
                thread: faults.thread,
                kind: faults.kind.into(),
                count: faults.count,
            })
            .collect();
    }
}

/// The result of rebuilding huge pages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollapseAccount {
    /// Ranges of 2 MiB that hold data of the guest, as far as they were tried.
    pub tried: u64,
    /// Those that are huge pages now.
    pub rebuilt: u64,
    /// Those that are not, by reason, most frequent first.
    pub failed: Vec<CollapseFailures>,
    /// Why it ended early, if it did.
    pub stopped: Option<String>,
    /// How long it took, in milliseconds.
    pub total_ms: f64,
}

/// Ranges that did not become huge pages, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollapseFailures {
    /// The reason.
    pub reason: String,
    /// Number of ranges.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{RequestLatencies, RequestTimeline};

    #[test]
    fn the_source_hears_what_was_measured() {
        let mut latencies = RequestLatencies::default();
        latencies.record(&RequestTimeline {
            fault_read: 0,
            request_sent: 1_000,
            page_received: 40_000,
            installed: 50_000,
        });
        let here = RequestStatistics {
            request_latency_us: latencies.total(),
            request_stages_us: latencies.stages(),
            unmeasured_requests: 3,
            faults: [
                ("kernel workers", FaultKind::Asynchronous),
                ("CPU 1/KVM", FaultKind::Vcpu(1)),
                ("qemu-system-x86", FaultKind::Other),
            ]
            .map(|(thread, kind)| ThreadFaults {
                thread: thread.into(),
                kind,
                count: 7,
            })
            .to_vec(),
            ..RequestStatistics::default()
        };
        let mut there = RequestStatistics::default();
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
