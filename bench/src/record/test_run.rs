//! Runs for tests.

use super::run::Run;
use crate::plan::{Case, NetworkKind, System, Variant, Workload};

/// A run at 1 Gbit/s with this downtime and total time, ms.
pub(crate) fn test_run(system: System, workload: Workload, downtime: f64, total: f64) -> Run {
    let case = Case {
        network: NetworkKind::Gbit(1),
        workload,
        system,
        variant: Variant::Plain,
        async_faults: true,
        rounds: 1,
    };
    let mut run = Run::new(&case, 0);
    run.downtime_ms = Some(downtime);
    run.total_ms = Some(total);
    run
}
