//! The medians of each case over its rounds.

use hikkoshi_account::{Stages, SwitchoverStep};
use serde::Serialize;

use crate::meter::GuestAccount;
use crate::plan::{Case, Kind};
use crate::record::Run;

/// The medians of one case over its rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// The network.
    #[serde(rename = "line")]
    pub network: String,
    /// The workload.
    #[serde(rename = "load")]
    pub workload: String,
    /// `SYSTEM[/VARIANT]`.
    pub system: String,
    /// The case.
    #[serde(skip)]
    pub case: Case,
    /// Runs with results.
    pub runs: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Runs that did not converge.
    pub called_off: usize,
    /// Downtime, ms.
    pub downtime_ms: Option<f64>,
    /// Downtime reported by the system itself, ms.
    pub own_downtime_ms: Option<f64>,
    /// Total time, ms.
    pub total_ms: Option<f64>,
    /// Bytes on the network.
    pub bytes: Option<f64>,
    /// Bytes a second on the network, from the switchover to the last page, or, in pre-copy, until
    /// the switchover.
    pub throughput: Option<f64>,
    /// Rounds of pre-copy.
    pub rounds: Option<f64>,
    /// The most memory that hikkoshi's two sides have used, MiB.
    pub memory_mib: [Option<f64>; 2],
    /// The steps of the switchover at the source, and when each was done, ms after the pause.
    pub switchover: Vec<(String, f64)>,
    /// Slow accesses from the switchover to the last page.
    pub faults: Option<f64>,
    /// Their mean, µs.
    pub fault_us: Option<f64>,
    /// Half of them took less, µs.
    pub fault_p50_us: Option<f64>,
    /// 99 % of them took less, µs.
    pub fault_p99_us: Option<f64>,
    /// The longest access, µs.
    pub fault_max_us: Option<f64>,
    /// Accesses a second from the switchover to the last page.
    pub accesses_per_second: Option<f64>,
    /// Accesses from the switchover to the last page.
    pub accesses: Option<f64>,
    /// Means of the stages of the engine's page requests, µs: from the fault to the request sent,
    /// from there to the page received, and from there to the page installed.
    pub stages_us: [Option<f64>; 3],
    /// The scan's time, ms.
    pub scan_ms: Option<f64>,
    /// Pages that it read a second.
    pub scan_pages: Option<f64>,
    /// The fraction of the scan's time that the virtual processor ran.
    pub scan_ran: Option<f64>,
    /// What the nano guest counted during the scan.
    pub guest: GuestMedians,
    /// Bytes a second that the guest read from its disk, before the migration and during it.
    pub disk: [Option<f64>; 2],
    /// The 99th percentile of the time that its reads took, likewise, ms.
    pub disk_p99_ms: [Option<f64>; 2],
    /// Drains: their number, their total time and the longest, ms.
    pub drains: [Option<f64>; 3],
    /// Pages lost.
    pub bad_pages: Option<f64>,
    /// The longest time between two answers to a client: requests over TCP, and datagrams; ms.
    pub client_gaps_ms: [Option<f64>; 2],
    /// Answers a second of a web server: before the command, and in the first second at the
    /// destination.
    pub web_per_second: [Option<f64>; 2],
    /// Datagrams lost, in the worst run.
    pub datagrams_lost: Option<f64>,
    /// Processor time, s.
    pub cpu_seconds: Option<f64>,
    /// Processors that other processes used.
    pub others_cores: Option<f64>,
}

/// What the nano guest counted during a scan.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct GuestMedians {
    /// The shares of the processors' time: tasks ran.
    pub ran: Option<f64>,
    /// No task could run.
    pub idle: Option<f64>,
    /// A task had the processor and waited for a page.
    pub stalled: Option<f64>,
    /// KVM started asynchronous page faults.
    pub in_kvm: Option<f64>,
    /// The scheduler ran.
    pub scheduler: Option<f64>,
    /// The share that tasks ran, of the time in which one could run.
    pub ran_if_runnable: Option<f64>,
    /// The share in which no task waited with the processor, of the time in which one could run.
    pub not_stalled: Option<f64>,
    /// How long a page took, µs.
    pub fault_us: Option<f64>,
    /// Asynchronous page faults.
    pub asynchronous: Option<f64>,
    /// Accesses for which the processor waited.
    pub synchronous: Option<f64>,
    /// Asynchronous page faults of accesses that had faulted before.
    pub refaults: Option<f64>,
    /// Events *page not present* and repeated faults, by the kernel's trace.
    pub kvm: [Option<f64>; 2],
}

/// The steps of the switchover at the source, by the first run.
fn steps(runs: &[&&Run]) -> Vec<(String, f64)> {
    let all = runs.iter().filter_map(|run| run.report.account());
    let all: Vec<_> = all.map(|account| &account.switchover).collect();
    let first = all.first().copied().cloned().unwrap_or_default();
    let steps = first.into_iter().filter_map(|SwitchoverStep { step, .. }| {
        let of_run = |steps: &&Vec<SwitchoverStep>| {
            let found = steps.iter().find(|other| other.step == step)?;
            Some(found.at_ms)
        };
        let at_ms = median(all.iter().filter_map(of_run))?;
        Some((step.into_owned(), at_ms))
    });
    steps.collect()
}

/// The median of the values, if there are any.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => values.get(middle).copied(),
        _ => Some((values.get(middle - 1)? + values.get(middle)?) / 2.0),
    }
}

/// One row for each case, in the order of their first runs.
pub(super) fn rows(runs: &[Run]) -> Vec<Row> {
    let mut labels: Vec<&str> = Vec::new();
    for run in runs {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
        }
    }
    labels
        .into_iter()
        .filter_map(|label| row(runs.iter().filter(|run| run.label == label).collect()))
        .collect()
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn row(runs: Vec<&Run>) -> Option<Row> {
    let case = runs.first()?.case;
    let good: Vec<_> = runs.iter().filter(|run| run.failure.is_none()).collect();
    let of = |value: &dyn Fn(&Run) -> Option<f64>| median(good.iter().filter_map(|run| value(run)));
    let accesses = |value: &dyn Fn(&crate::meter::Accesses) -> Option<f64>| {
        of(&|run| run.accesses.as_ref().and_then(value))
            .filter(|_| case.system.is_postcopy() && case.workload.kind() == Kind::Move)
    };
    let guest = |value: &dyn Fn(&GuestAccount) -> f64| {
        of(&|run| Some(value(run.scan.as_ref()?.guest.as_ref()?)))
    };
    let stage = |mean: &dyn Fn(&Stages) -> f64| {
        of(&|run| Some(mean(&run.report.account()?.requests.request_stages_us)))
    };
    Some(Row {
        network: case.network.to_string(),
        workload: case.workload.to_string(),
        system: case.system_label(),
        case,
        runs: good.len(),
        failed: runs.len() - good.len(),
        called_off: good.iter().filter(|run| run.called_off).count(),
        downtime_ms: of(&|run| run.downtime_ms),
        own_downtime_ms: of(&|run| run.own_downtime_ms),
        total_ms: of(&|run| run.total_ms),
        bytes: of(&|run| run.bytes.map(|bytes| bytes as f64)),
        throughput: of(&|run| run.throughput),
        rounds: of(&|run| run.rounds.map(|rounds| rounds as f64)),
        memory_mib: [0, 1].map(|side| of(&|run| Some(run.report.hikkoshi()?.memory_mib[side]))),
        switchover: steps(&good),
        faults: accesses(&|a| Some(a.slow as f64)),
        fault_us: accesses(&|a| Some(a.slow_mean_us)),
        fault_p50_us: of(&|run| run.slow.as_ref()?.p50_us),
        fault_p99_us: of(&|run| run.slow.as_ref()?.p99_us),
        fault_max_us: accesses(&|a| Some(a.max_us)),
        accesses_per_second: accesses(&|a| a.per_second),
        accesses: accesses(&|a| a.completed),
        stages_us: [
            stage(&|stages| stages.fault_to_request.mean),
            stage(&|stages| stages.request_to_page.mean),
            stage(&|stages| stages.page_to_installed.mean),
        ],
        scan_ms: of(&|run| run.scan.as_ref().map(|scan| scan.ms)),
        scan_pages: of(&|run| run.scan.as_ref().map(|scan| scan.pages_per_second())),
        scan_ran: of(&|run| run.scan.as_ref().map(|scan| scan.ran)),
        guest: GuestMedians {
            ran: guest(&GuestAccount::ran),
            idle: guest(&GuestAccount::idle),
            stalled: guest(&GuestAccount::stalled),
            in_kvm: guest(&GuestAccount::in_kvm),
            not_stalled: guest(&GuestAccount::not_stalled),
            scheduler: guest(&GuestAccount::scheduler),
            ran_if_runnable: guest(&GuestAccount::ran_if_runnable),
            fault_us: guest(&GuestAccount::fault_us),
            asynchronous: guest(&|account| account.asynchronous() as f64),
            synchronous: guest(&|account| account.synchronous() as f64),
            refaults: guest(&|account| account.refaults() as f64),
            kvm: [
                of(&|run| Some(run.scan.as_ref()?.guest.as_ref()?.kvm()?.not_present as f64)),
                of(&|run| Some(run.scan.as_ref()?.guest.as_ref()?.kvm()?.repeated as f64)),
            ],
        },
        disk: [
            of(&|run| run.disk.as_ref()?.before),
            of(&|run| run.disk.as_ref()?.during),
        ],
        disk_p99_ms: [
            of(&|run| run.disk.as_ref()?.p99_before_ms),
            of(&|run| run.disk.as_ref()?.p99_during_ms),
        ],
        drains: [
            of(&|run| run.disk.as_ref()?.drains.map(|count| count as f64)),
            of(&|run| run.disk.as_ref()?.drains_ms),
            of(&|run| run.disk.as_ref()?.longest_drain_ms),
        ],
        bad_pages: of(&|run| Some(run.disk.as_ref()?.bad_pages as f64)),
        client_gaps_ms: [
            of(&|run| Some(run.clients?.request_gaps_ms.longest)),
            of(&|run| Some(run.clients?.datagram_gaps_ms.longest)),
        ],
        web_per_second: [
            of(&|run| Some(run.web.as_ref()?.per_second_before)),
            of(&|run| Some(run.web.as_ref()?.per_second_first)),
        ],
        datagrams_lost: good
            .iter()
            .filter_map(|run| Some(run.clients?.lost as f64))
            .max_by(f64::total_cmp),
        cpu_seconds: of(&|run| Some(run.cpu_seconds)),
        others_cores: of(&|run| Some(run.others_cores)),
    })
}

/// The fraction of the network's rate that was used, if the rate is limited.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub(super) fn network_part(row: &Row) -> Option<f64> {
    let rate_limit = row.case.network.rate_limit()?;
    Some(row.throughput? * 8.0 / rate_limit.rate_bits as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
    }
}
