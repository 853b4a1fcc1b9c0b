//! How long page requests took, as the destination tells the source.

use serde::{Deserialize, Serialize};

use super::bounded::{List, Reason};

/// Most buckets in a histogram: one for each power of two in a `u64`.
pub(crate) const MAX_BUCKETS: usize = 64;

/// Latencies of page requests, from the fault being read to the page being
/// installed. Integers, so that both sides print the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSummary {
    /// How many requests.
    pub count: u64,
    /// Their mean, in nanoseconds.
    pub mean_ns: u64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 were no slower, in nanoseconds.
    pub p99_ns: u64,
    /// The slowest, in nanoseconds.
    pub max_ns: u64,
    /// How many took at most 2ⁿ µs, and longer than the bucket before, for n
    /// from 0 on: at most 64 buckets.
    #[serde(with = "List::<MAX_BUCKETS>")]
    pub buckets: Vec<u64>,
}

/// The stages of page requests, one after another; a request that was not
/// followed from its beginning to its end is in none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSummary {
    /// From reading the fault to handing the request to the kernel.
    pub fault_to_request: RequestSummary,
    /// From there to having read the page (of a huge page: its last piece).
    pub request_to_page: RequestSummary,
    /// From there to having installed it.
    pub page_to_installed: RequestSummary,
}

/// Most threads whose faults are told apart in a message.
pub const MAX_FAULTING: usize = 1024;

/// How many faults one thread of the guest's process took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFaults {
    /// What it is called; cut at [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    #[serde(with = "Reason")]
    pub thread: String,
    /// Which virtual processor it is, if it is one.
    pub vcpu: Option<u32>,
    /// How many faults.
    pub count: u64,
}

/// What the destination has measured of the guest's faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultMeasures {
    /// What the time of a request went into.
    pub stages: StageSummary,
    /// Requests that are in no latency, for want of room in the table of
    /// outstanding ones.
    pub unmeasured: u64,
    /// Who faulted: at most [`MAX_FAULTING`] threads.
    #[serde(with = "List::<MAX_FAULTING>")]
    pub threads: Vec<ThreadFaults>,
}
