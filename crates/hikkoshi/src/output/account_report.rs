//! The account of a finished migration as JSON (`docs/json.md`). The engine's types may change
//! freely; these are a contract.

use hikkoshi_engine::report::{
    AsynchronousFaults, Bucket, CollapseAccount, CollapseFailures, FaultKind, GuestState,
    LatencySummary, RequestStatistics, Stages, SwitchoverStep, ThreadFaults,
};
use hikkoshi_engine::{Account, FramesAccount};
use hikkoshi_status::{DiskCopy, Migration, Outage, Repeats, Round, Side};
use serde::Serialize;

use crate::status;

/// [`Account`].
#[derive(Debug, Serialize)]
pub(crate) struct AccountReport<'a> {
    mode: &'static str,
    guest_state: &'static str,
    total_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_ms: Option<f64>,
    downtime_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    likely_downtime_ms: Option<f64>,
    switchover: Vec<StepReport>,
    rounds: u32,
    postcopy: bool,
    pages: PagesReport,
    bytes: BytesReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats: Option<Repeats>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rounds_detail: Vec<Round>,
    outages: Vec<Outage>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disks: Vec<DiskCopy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_pages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drains: Option<DrainsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<FramesReport>,
    #[serde(flatten)]
    requests: RequestsReport<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    collapse: Option<CollapseReport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_private_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asynchronous_faults: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_to_do: Option<&'a str>,
}

/// Which engine it was, and of which migration.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct EngineReport<'a> {
    migration_id: &'a str,
    side: Side,
    pid: u32,
    host: &'a str,
    guest: &'a str,
    peer: &'a str,
    started_unix_ms: u64,
    resumed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_downtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<u64>,
}

impl<'a> From<&'a Migration> for EngineReport<'a> {
    fn from(migration: &'a Migration) -> Self {
        Self {
            migration_id: &migration.id,
            side: migration.side,
            pid: migration.pid,
            host: &migration.host,
            guest: &migration.guest,
            peer: &migration.peer,
            started_unix_ms: migration.started_unix_ms,
            resumed: migration.resumed,
            max_downtime_ms: migration.max_downtime_ms,
            bandwidth: migration.bandwidth,
        }
    }
}

#[derive(Debug, Serialize)]
struct StepReport {
    step: &'static str,
    at_ms: f64,
}

#[derive(Debug, Serialize)]
struct PagesReport {
    precopy: u64,
    zero: u64,
    urgent: u64,
    background: u64,
    guest: u64,
}

#[derive(Debug, Serialize)]
struct BytesReport {
    precopy: u64,
    urgent: u64,
    background: u64,
    device_state: u64,
}

#[derive(Debug, Serialize)]
struct DrainsReport {
    count: u64,
    total_ms: f64,
    max_ms: f64,
}

#[derive(Debug, Serialize)]
struct FramesReport {
    kept: u64,
    delivered: u64,
    dropped: u64,
}

#[derive(Debug, Serialize)]
struct RequestsReport<'a> {
    request_latency_us: LatencyReport,
    request_stages_us: StagesReport,
    unmeasured_requests: u64,
    faults: Vec<FaultsReport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_under_way: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults_before_running: Option<Vec<FaultsReport<'a>>>,
}

#[derive(Debug, Serialize)]
struct LatencyReport {
    count: u64,
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
    histogram: Vec<BucketReport>,
}

#[derive(Debug, Serialize)]
struct BucketReport {
    le_us: u64,
    count: u64,
}

#[derive(Debug, Serialize)]
struct StagesReport {
    fault_to_request: LatencyReport,
    request_to_page: LatencyReport,
    page_to_installed: LatencyReport,
}

#[derive(Debug, Serialize)]
struct FaultsReport<'a> {
    thread: &'a str,
    kind: &'static str,
    vcpu: Option<u32>,
    count: u64,
}

#[derive(Debug, Serialize)]
struct CollapseReport<'a> {
    tried: u64,
    rebuilt: u64,
    failed: Vec<FailuresReport<'a>>,
    stopped: Option<&'a str>,
    total_ms: f64,
}

#[derive(Debug, Serialize)]
struct FailuresReport<'a> {
    reason: &'a str,
    count: u64,
}

impl<'a> From<&'a Account> for AccountReport<'a> {
    fn from(account: &'a Account) -> Self {
        Self {
            mode: account.mode.name(),
            guest_state: match account.guest_state {
                GuestState::Running => "running",
                GuestState::Paused => "paused",
                GuestState::ShutDown => "shut_down",
                GuestState::Unknown => "unknown",
            },
            total_ms: account.total_ms,
            engine_ms: account.resumed.then_some(account.engine_ms),
            downtime_ms: account.downtime_ms,
            likely_downtime_ms: account.likely_downtime_ms,
            switchover: account.switchover.iter().map(Into::into).collect(),
            rounds: account.rounds,
            postcopy: account.postcopy,
            pages: PagesReport {
                precopy: account.pages.precopy,
                zero: account.pages.zero,
                urgent: account.pages.urgent,
                background: account.pages.background,
                guest: account.pages.guest,
            },
            bytes: BytesReport {
                precopy: account.bytes.precopy,
                urgent: account.bytes.urgent,
                background: account.bytes.background,
                device_state: account.bytes.device_state,
            },
            repeats: account.repeats.as_ref().map(status::repeats),
            rounds_detail: account.round_accounts.iter().map(status::round).collect(),
            outages: account.outages.iter().map(status::outage).collect(),
            disks: account.disks.iter().map(status::disk).collect(),
            disk_bytes: (account.disk_bytes > 0).then_some(account.disk_bytes),
            stale_pages: account.stale_pages,
            drains: account.drains.map(|drains| DrainsReport {
                count: drains.count,
                total_ms: drains.total_ms,
                max_ms: drains.max_ms,
            }),
            frames: account.frames.map(Into::into),
            requests: (&account.requests).into(),
            collapse: account.collapse.as_ref().map(Into::into),
            source_private_bytes: account.source_private_bytes,
            asynchronous_faults: account.asynchronous_faults.map(|faults| match faults {
                AsynchronousFaults::NoKvm => "no_kvm",
                AsynchronousFaults::Off => "off",
                AsynchronousFaults::Unused => "unused",
                AsynchronousFaults::Used => "used",
                AsynchronousFaults::Unknown => "unknown",
            }),
            left_to_do: account.left_to_do.as_deref(),
        }
    }
}

impl From<&SwitchoverStep> for StepReport {
    fn from(done: &SwitchoverStep) -> Self {
        Self {
            step: done.step,
            at_ms: done.at_ms,
        }
    }
}

impl From<FramesAccount> for FramesReport {
    fn from(frames: FramesAccount) -> Self {
        Self {
            kept: frames.kept,
            delivered: frames.delivered,
            dropped: frames.dropped,
        }
    }
}

impl<'a> From<&'a RequestStatistics> for RequestsReport<'a> {
    fn from(requests: &'a RequestStatistics) -> Self {
        let threads = |faults: &'a Vec<ThreadFaults>| faults.iter().map(Into::into).collect();
        Self {
            request_latency_us: (&requests.request_latency_us).into(),
            request_stages_us: (&requests.request_stages_us).into(),
            unmeasured_requests: requests.unmeasured_requests,
            faults: threads(&requests.faults),
            requests_under_way: requests.requests_under_way,
            faults_before_running: requests.faults_before_running.as_ref().map(threads),
        }
    }
}

impl From<&LatencySummary> for LatencyReport {
    fn from(latency: &LatencySummary) -> Self {
        Self {
            count: latency.count,
            mean: latency.mean,
            p50: latency.p50,
            p99: latency.p99,
            max: latency.max,
            histogram: latency.histogram.iter().map(Into::into).collect(),
        }
    }
}

impl From<&Bucket> for BucketReport {
    fn from(bucket: &Bucket) -> Self {
        Self {
            le_us: bucket.le_us,
            count: bucket.count,
        }
    }
}

impl From<&Stages> for StagesReport {
    fn from(stages: &Stages) -> Self {
        Self {
            fault_to_request: (&stages.fault_to_request).into(),
            request_to_page: (&stages.request_to_page).into(),
            page_to_installed: (&stages.page_to_installed).into(),
        }
    }
}

impl<'a> From<&'a ThreadFaults> for FaultsReport<'a> {
    fn from(faults: &'a ThreadFaults) -> Self {
        let (kind, vcpu) = match faults.kind {
            FaultKind::Vcpu(number) => ("vcpu", Some(number)),
            FaultKind::Asynchronous => ("asynchronous", None),
            FaultKind::Other => ("other", None),
        };
        Self {
            thread: &faults.thread,
            kind,
            vcpu,
            count: faults.count,
        }
    }
}

impl<'a> From<&'a CollapseAccount> for CollapseReport<'a> {
    fn from(collapse: &'a CollapseAccount) -> Self {
        Self {
            tried: collapse.tried,
            rebuilt: collapse.rebuilt,
            failed: collapse.failed.iter().map(Into::into).collect(),
            stopped: collapse.stopped.as_deref(),
            total_ms: collapse.total_ms,
        }
    }
}

impl<'a> From<&'a CollapseFailures> for FailuresReport<'a> {
    fn from(failures: &'a CollapseFailures) -> Self {
        Self {
            reason: &failures.reason,
            count: failures.count,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hikkoshi_engine::DiskProgress;
    use hikkoshi_engine::Mode;
    use hikkoshi_engine::report::{Bytes, Drains, Outage, Pages, Repeated, Repeats, RoundAccount};
    use std::time::Duration;

    /// One that has everything.
    pub(crate) fn account() -> Account {
        let latency = |count| LatencySummary {
            count,
            mean: 1.5,
            p50: 1.0,
            p99: 2.0,
            max: 3.0,
            histogram: vec![Bucket { le_us: 4, count }],
        };
        let faults = |count| ThreadFaults {
            thread: "CPU 0/KVM".into(),
            kind: FaultKind::Vcpu(0),
            count,
        };
        Account {
            mode: Mode::Hybrid,
            guest_state: GuestState::ShutDown,
            total_ms: 12.5,
            engine_ms: 12.5,
            resumed: false,
            downtime_ms: Some(2.5),
            likely_downtime_ms: Some(1.25),
            switchover: vec![SwitchoverStep {
                step: "saved",
                at_ms: 0.5,
            }],
            disks: vec![DiskProgress {
                name: "vda".into(),
                copied: 41,
                total: 42,
                in_sync: true,
            }],
            disk_bytes: 43,
            rounds: 2,
            postcopy: true,
            pages: Pages {
                precopy: 1,
                zero: 2,
                urgent: 3,
                background: 4,
                guest: 5,
            },
            bytes: Bytes {
                precopy: 6,
                urgent: 7,
                background: 8,
                device_state: 9,
            },
            repeats: Some(Repeats {
                precopy: Repeated {
                    pages: 30,
                    bytes: 31,
                },
                resent: Repeated {
                    pages: 32,
                    bytes: 33,
                },
                ..Repeats::default()
            }),
            round_accounts: vec![RoundAccount {
                round: 1,
                begun: Duration::from_millis(34),
                ended: Some(Duration::from_millis(35)),
                pages: 36,
                zero: 37,
                bytes: 38,
                dirty_pages: None,
            }],
            outages: vec![Outage {
                from: Duration::from_millis(39),
                to: Some(Duration::from_millis(40)),
                until: None,
            }],
            stale_pages: Some(29),
            drains: Some(Drains {
                count: 10,
                total_ms: 11.5,
                max_ms: 12.5,
            }),
            frames: Some(FramesAccount {
                kept: 13,
                delivered: 14,
                dropped: 15,
            }),
            requests: RequestStatistics {
                request_latency_us: latency(16),
                request_stages_us: Stages {
                    fault_to_request: latency(17),
                    request_to_page: latency(18),
                    page_to_installed: latency(19),
                },
                unmeasured_requests: 20,
                faults: vec![faults(21)],
                requests_under_way: Some(22),
                faults_before_running: Some(vec![faults(23)]),
            },
            collapse: Some(CollapseAccount {
                tried: 24,
                rebuilt: 25,
                failed: vec![CollapseFailures {
                    reason: "in use".into(),
                    count: 26,
                }],
                stopped: Some("cancelled".into()),
                total_ms: 27.5,
            }),
            source_private_bytes: Some(28),
            asynchronous_faults: Some(AsynchronousFaults::Used),
            left_to_do: Some("define it".into()),
        }
    }

    /// Every member, as programs read it; the schema has their types.
    #[test]
    fn an_account_is_written_as_before() {
        let account = account();
        let shown = |count| {
            format!(
                r#"{{"count":{count},"mean":1.5,"p50":1.0,"p99":2.0,"max":3.0,"histogram":[{{"le_us":4,"count":{count}}}]}}"#
            )
        };
        let expected = [
            r#"{"mode":"hybrid","guest_state":"shut_down","total_ms":12.5,"downtime_ms":2.5,"#,
            r#""likely_downtime_ms":1.25,"#,
            r#""switchover":[{"step":"saved","at_ms":0.5}],"rounds":2,"postcopy":true,"#,
            r#""pages":{"precopy":1,"zero":2,"urgent":3,"background":4,"guest":5},"#,
            r#""bytes":{"precopy":6,"urgent":7,"background":8,"device_state":9},"#,
            r#""repeats":{"precopy":{"pages":30,"bytes":31},"stale":{"pages":0,"bytes":0},"#,
            r#""host_page":{"pages":0,"bytes":0},"resent":{"pages":32,"bytes":33},"#,
            r#""requested":{"pages":0,"bytes":0}},"#,
            r#""rounds_detail":[{"round":1,"begun_ms":34,"ended_ms":35,"pages":36,"zero":37,"#,
            r#""bytes":38,"dirty_pages":null}],"outages":[{"from_ms":39,"to_ms":40}],"#,
            r#""disks":[{"name":"vda","copied_bytes":41,"total_bytes":42,"in_sync":true}],"#,
            r#""disk_bytes":43,"#,
            r#""stale_pages":29,"#,
            r#""drains":{"count":10,"total_ms":11.5,"max_ms":12.5},"#,
            r#""frames":{"kept":13,"delivered":14,"dropped":15},"#,
            &format!(r#""request_latency_us":{},"#, shown(16)),
            &format!(r#""request_stages_us":{{"fault_to_request":{},"#, shown(17)),
            &format!(r#""request_to_page":{},"#, shown(18)),
            &format!(r#""page_to_installed":{}}},"#, shown(19)),
            r#""unmeasured_requests":20,"faults":[{"thread":"CPU 0/KVM","kind":"vcpu","vcpu":0,"count":21}],"#,
            r#""requests_under_way":22,"#,
            r#""faults_before_running":[{"thread":"CPU 0/KVM","kind":"vcpu","vcpu":0,"count":23}],"#,
            r#""collapse":{"tried":24,"rebuilt":25,"failed":[{"reason":"in use","count":26}],"#,
            r#""stopped":"cancelled","total_ms":27.5},"source_private_bytes":28,"#,
            r#""asynchronous_faults":"used","left_to_do":"define it"}"#,
        ]
        .concat();
        let written = serde_json::to_string(&AccountReport::from(&account)).unwrap();
        assert_eq!(written, expected);
    }
}
