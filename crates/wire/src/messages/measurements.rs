//! The destination's measurements of page requests, for the source's report.

use serde::{Deserialize, Serialize};

use super::bounded::{List, Reason};

/// The most buckets in a histogram: one for each power of two in a `u64`.
pub(crate) const MAX_BUCKETS: usize = 64;

/// Latencies of page requests, from reading the fault to installing the page.
/// They are integers, so both sides print the same values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSummary {
    /// The number of requests.
    pub count: u64,
    /// The mean, in nanoseconds.
    pub mean_ns: u64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// The maximum, in nanoseconds.
    pub max_ns: u64,
    /// A histogram of at most 64 buckets. Bucket n, from 0 on, counts the
    /// requests that took at most 2ⁿ µs and did not fit in the previous bucket.
    #[serde(with = "List::<MAX_BUCKETS>")]
    pub buckets: Vec<u64>,
}

/// The stages of page requests, one after another. A request that was not
/// measured from beginning to end is in none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSummary {
    /// From reading the fault to passing the request to the kernel.
    pub fault_to_request: RequestSummary,
    /// From then until the page is read (of a huge page: its last 4 KiB).
    pub request_to_page: RequestSummary,
    /// From then until it is installed.
    pub page_to_installed: RequestSummary,
}

/// The most threads in a message whose faults are counted separately.
pub const MAX_FAULTING: usize = 1024;

/// Whose faults a thread takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// Its own: a thread of a device, or one that cannot be identified.
    #[default]
    Other,
    /// Those of the virtual processor with this number, which it runs, and no other.
    Vcpu(u32),
    /// A worker of the kernel: those of virtual processors that KVM handles asynchronously.
    Asynchronous,
}

/// The number of faults of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFaults {
    /// Its name; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    #[serde(with = "Reason")]
    pub thread: String,
    /// Whose faults it takes.
    pub kind: FaultKind,
    /// The number of faults.
    pub count: u64,
}

/// The destination's measurements of the guest's page faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultMeasures {
    /// The time that requests spent in each stage.
    pub stages: StageSummary,
    /// Requests without a measured latency, because the table of outstanding
    /// requests was full.
    pub unmeasured: u64,
    /// Faults by thread: at most [`MAX_FAULTING`] threads.
    #[serde(with = "List::<MAX_FAULTING>")]
    pub threads: Vec<ThreadFaults>,
}
