//! What the destination has measured, as it is sent to the source. The protocol has types of its
//! own, which are bounded.

use hikkoshi_account::{
    Bucket, FaultKind, LatencySummary, RequestStatistics, Stages, ThreadFaults,
};
use hikkoshi_wire as wire;
use hikkoshi_wire::{FaultMeasures, MAX_FAULTING, RequestSummary, StageSummary};

/// A latency as it is sent: in nanoseconds.
pub(crate) fn latency_sent(summary: &LatencySummary) -> RequestSummary {
    // Times are positive and far below 2^64 ns.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let ns = |us: f64| (us * 1000.0).round() as u64;
    let mut buckets = Vec::new();
    for bucket in &summary.histogram {
        buckets.resize(bucket.le_us.ilog2() as usize, 0);
        buckets.push(bucket.count);
    }
    RequestSummary {
        count: summary.count,
        mean_ns: ns(summary.mean),
        p50_ns: ns(summary.p50),
        p99_ns: ns(summary.p99),
        max_ns: ns(summary.max),
        buckets,
    }
}

/// A latency as it was received.
pub(crate) fn latency_received(sent: RequestSummary) -> LatencySummary {
    #[allow(clippy::cast_precision_loss)]
    let us = |ns: u64| ns as f64 / 1000.0;
    let buckets = sent.buckets.into_iter().enumerate();
    LatencySummary {
        count: sent.count,
        mean: us(sent.mean_ns),
        p50: us(sent.p50_ns),
        p99: us(sent.p99_ns),
        max: us(sent.max_ns),
        histogram: buckets
            .map(|(power, count)| Bucket {
                le_us: 1 << power.min(63),
                count,
            })
            .skip_while(|bucket| bucket.count == 0)
            .collect(),
    }
}

/// All measurements but the total latency, as they are sent to the source.
pub(crate) fn measures(measured: &RequestStatistics) -> FaultMeasures {
    let stages = &measured.request_stages_us;
    let threads = measured.faults.iter().take(MAX_FAULTING);
    FaultMeasures {
        stages: StageSummary {
            fault_to_request: latency_sent(&stages.fault_to_request),
            request_to_page: latency_sent(&stages.request_to_page),
            page_to_installed: latency_sent(&stages.page_to_installed),
        },
        unmeasured: measured.unmeasured_requests,
        threads: threads
            .map(|faults| wire::ThreadFaults {
                thread: faults.thread.clone(),
                kind: match faults.kind {
                    FaultKind::Vcpu(number) => wire::FaultKind::Vcpu(number),
                    FaultKind::Asynchronous => wire::FaultKind::Asynchronous,
                    FaultKind::Other => wire::FaultKind::Other,
                },
                count: faults.count,
            })
            .collect(),
    }
}

/// Adds what the destination has reported.
pub(crate) fn add_measures(known: &mut RequestStatistics, sent: FaultMeasures) {
    known.request_stages_us = Stages {
        fault_to_request: latency_received(sent.stages.fault_to_request),
        request_to_page: latency_received(sent.stages.request_to_page),
        page_to_installed: latency_received(sent.stages.page_to_installed),
    };
    known.unmeasured_requests = sent.unmeasured;
    let threads = sent.threads.into_iter();
    known.faults = threads
        .map(|faults| ThreadFaults {
            thread: faults.thread,
            kind: match faults.kind {
                wire::FaultKind::Vcpu(number) => FaultKind::Vcpu(number),
                wire::FaultKind::Asynchronous => FaultKind::Asynchronous,
                wire::FaultKind::Other => FaultKind::Other,
            },
            count: faults.count,
        })
        .collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{RequestLatencies, RequestTimeline};

    #[test]
    fn the_source_hears_what_was_measured() {
        let latencies = RequestLatencies::default();
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
        add_measures(&mut there, measures(&here));
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
