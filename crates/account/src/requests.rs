//! Page requests and faults, in post-copy.

use serde::{Deserialize, Serialize};

/// All measurements of faults and page requests. Empty without post-copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_under_way: Option<u64>,
    /// Faults by thread while the device state was loaded, before the guest ran here. Counted by
    /// the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults_before_running: Option<Vec<ThreadFaults>>,
}

impl RequestStatistics {
    /// Faults that KVM handled asynchronously.
    pub fn asynchronous_faults(&self) -> u64 {
        let kind = |faults: &&ThreadFaults| faults.kind == FaultKind::Asynchronous;
        self.faults.iter().filter(kind).map(|f| f.count).sum()
    }
}

/// A distribution of latencies, in µs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of requests.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
    /// Power-of-two buckets from the first to the last that is not empty.
    pub histogram: Vec<Bucket>,
}

/// The members of a [`LatencySummary`] in a [`State`](crate::State), where nothing else says that
/// they are in µs.
#[derive(Serialize, Deserialize)]
#[serde(remote = "LatencySummary")]
pub(crate) struct InState {
    count: u64,
    #[serde(rename = "mean_us")]
    mean: f64,
    #[serde(rename = "p50_us")]
    p50: f64,
    #[serde(rename = "p99_us")]
    p99: f64,
    #[serde(rename = "max_us")]
    max: f64,
    histogram: Vec<Bucket>,
}

/// The requests that took at most `le_us`, and longer than the bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Upper bound, in µs: a power of two.
    pub le_us: u64,
    /// Requests in the bucket.
    pub count: u64,
}

/// The stages of page requests, one after another, in µs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// From reading the fault to passing the request to the kernel: the destination's own work, and
    /// waiting for other faults of the same batch.
    pub fault_to_request: LatencySummary,
    /// From there to having read the page: the network, the source, and waiting for a processor on
    /// either side.
    pub request_to_page: LatencySummary,
    /// From there to having installed it.
    pub page_to_installed: LatencySummary,
}

/// How many faults one thread took in post-copy, or all workers of the kernel together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFaults {
    /// The thread's name.
    pub thread: String,
    /// Whose faults.
    #[serde(flatten)]
    pub kind: FaultKind,
    /// Faults that it waited for.
    pub count: u64,
}

/// Whose faults a thread takes. In JSON two members: `kind`, and `vcpu` with its number, or null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "KindAndNumber", from = "KindAndNumber")]
pub enum FaultKind {
    /// Those of the virtual processor with this number, which it runs, and no other.
    Vcpu(u32),
    /// A worker of the kernel: those of virtual processors that KVM handles asynchronously. The
    /// guest can run another task on the processor meanwhile, if it has switched that on.
    Asynchronous,
    /// Its own: a thread of a device, or one that cannot be identified.
    Other,
}

impl FaultKind {
    /// The number of the virtual processor, if it is one.
    pub const fn vcpu(self) -> Option<u32> {
        match self {
            Self::Vcpu(number) => Some(number),
            Self::Asynchronous | Self::Other => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct KindAndNumber {
    kind: Kind,
    vcpu: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Vcpu,
    Asynchronous,
    Other,
}

impl From<FaultKind> for KindAndNumber {
    fn from(kind: FaultKind) -> Self {
        let vcpu = kind.vcpu();
        let kind = match kind {
            FaultKind::Vcpu(_) => Kind::Vcpu,
            FaultKind::Asynchronous => Kind::Asynchronous,
            FaultKind::Other => Kind::Other,
        };
        Self { kind, vcpu }
    }
}

impl From<KindAndNumber> for FaultKind {
    fn from(read: KindAndNumber) -> Self {
        match (read.kind, read.vcpu) {
            (Kind::Vcpu, Some(number)) => Self::Vcpu(number),
            (Kind::Asynchronous, _) => Self::Asynchronous,
            (Kind::Vcpu | Kind::Other, _) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_faults_is_two_members() {
        for (kind, text) in [
            (FaultKind::Vcpu(3), r#""kind":"vcpu","vcpu":3"#),
            (
                FaultKind::Asynchronous,
                r#""kind":"asynchronous","vcpu":null"#,
            ),
            (FaultKind::Other, r#""kind":"other","vcpu":null"#),
        ] {
            let thread = "CPU 3/KVM".to_owned();
            let faults = ThreadFaults {
                thread,
                kind,
                count: 7,
            };
            let written = serde_json::to_string(&faults).unwrap();
            assert_eq!(
                written,
                format!(r#"{{"thread":"CPU 3/KVM",{text},"count":7}}"#)
            );
            assert_eq!(
                serde_json::from_str::<ThreadFaults>(&written).unwrap(),
                faults
            );
        }
    }
}
