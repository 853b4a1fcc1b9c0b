//! Runs for tests.

use hikkoshi_account::{Account, Statistics};

use super::run::Run;
use crate::mover::{HikkoshiReport, OwnReport};
use crate::plan::{Case, NetworkKind, System, Variant, Workload};

/// A run at 1 Gbit/s with this downtime and total time, ms.
pub(crate) fn test_run(system: System, workload: Workload, downtime: f64, total: f64) -> Run {
    let case = Case {
        network: NetworkKind::Gbit(1),
        workload,
        system,
        variant: Variant::Plain,
        async_faults: true,
    };
    let mut run = Run::new(&case, 0);
    run.downtime_ms = Some(downtime);
    run.total_ms = Some(total);
    run
}

/// What hikkoshi says of a run, with these changes.
pub(crate) fn test_report(change: impl FnOnce(&mut Account)) -> OwnReport {
    let text = include_str!("../../../crates/account/tests/account.json");
    let mut statistics: Statistics = serde_json::from_str(text).unwrap();
    change(&mut statistics.account);
    OwnReport::Hikkoshi(Box::new(HikkoshiReport {
        statistics,
        switchover_at_destination: Vec::new(),
        time_left: Vec::new(),
        memory_mib: [0.0; 2],
    }))
}
