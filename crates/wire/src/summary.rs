//! How long page requests took, as the destination tells the source.

use serde::{Deserialize, Serialize};

use crate::bounded::List;

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
