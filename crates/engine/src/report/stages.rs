//! The stages of a page request's time.

use hikkoshi_account::{LatencySummary, Stages};

use crate::report::Latency;

/// The times of one page request, in nanoseconds of one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTimeline {
    /// The fault was read from the userfaultfd.
    pub fault_read: u64,
    /// The request was ready: recorded right before it is passed to the kernel.
    pub request_sent: u64,
    /// The page was read from a link; for a huge page: its last piece.
    pub page_received: u64,
    /// The page was installed.
    pub installed: u64,
}

/// Latencies of page requests: in total, and of each stage.
#[derive(Debug, Default)]
pub struct RequestLatencies {
    total: Latency,
    fault_to_request: Latency,
    request_to_page: Latency,
    page_to_installed: Latency,
}

impl RequestLatencies {
    /// Adds one request. Allocates nothing.
    pub fn record(&self, moments: &RequestTimeline) {
        let between = |from: u64, to: u64| to.saturating_sub(from);
        let RequestTimeline {
            fault_read,
            request_sent,
            page_received,
            installed,
        } = *moments;
        self.total.record(between(fault_read, installed));
        self.fault_to_request
            .record(between(fault_read, request_sent));
        self.request_to_page
            .record(between(request_sent, page_received));
        self.page_to_installed
            .record(between(page_received, installed));
    }

    /// From reading the fault to the installed page.
    pub fn total(&self) -> LatencySummary {
        self.total.summary()
    }

    /// Each stage.
    pub fn stages(&self) -> Stages {
        Stages {
            fault_to_request: self.fault_to_request.summary(),
            request_to_page: self.request_to_page.summary(),
            page_to_installed: self.page_to_installed.summary(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_gets_its_part() {
        let latencies = RequestLatencies::default();
        latencies.record(&RequestTimeline {
            fault_read: 1_000,
            request_sent: 4_000,
            page_received: 54_000,
            installed: 64_000,
        });
        // A page that was pushed while the request was being sent.
        latencies.record(&RequestTimeline {
            fault_read: 1_000,
            request_sent: 9_000,
            page_received: 8_000,
            installed: 10_000,
        });
        let near = |value: f64, expected: f64| (value - expected).abs() < expected * 0.01;
        let total = latencies.total();
        assert_eq!(total.count, 2);
        assert!(near(total.max, 63.0), "{total:?}");
        let stages = latencies.stages();
        assert!(near(stages.fault_to_request.mean, 5.5), "{stages:?}");
        assert!(near(stages.request_to_page.max, 50.0), "{stages:?}");
        assert!(near(stages.page_to_installed.p50, 2.0), "{stages:?}");
    }
}
