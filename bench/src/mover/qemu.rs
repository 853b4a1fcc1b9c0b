//! Moves the guest with QEMU's own migration.

use std::time::{Duration, Instant};

use hikkoshi_lab::{LabError, QemuMigration};

use super::outcome::{MoveOutcome, OwnReport};
use crate::error::BenchError;
use crate::testbed::Testbed;

/// Moves the guest as `migration` specifies; cancels pre-copy after the time limit.
pub(crate) fn migrate(
    migration: &QemuMigration,
    testbed: &Testbed,
    give_up: Option<Duration>,
) -> Result<MoveOutcome, BenchError> {
    let mut migration = migration.clone();
    if let Some(limit) = give_up {
        migration.timeout = limit;
    }
    let started = Instant::now();
    let uri = format!("tcp:{}", testbed.network.address());
    match migration.run(&testbed.source, &testbed.destination, &uri) {
        Ok(report) => Ok(MoveOutcome {
            // From the `migrate` command on, without the configuration before it.
            started: report.ended.checked_sub(report.total).unwrap_or(started),
            ended: report.ended,
            called_off: false,
            own_downtime_ms: report.info["downtime"].as_f64(),
            rounds: report.info["ram"]["dirty-sync-count"].as_u64(),
            report: OwnReport::Other(report.info),
        }),
        Err(LabError::QemuMigration { status, .. }) if give_up.is_some() && status == "active" => {
            let info = testbed
                .source
                .qmp()
                .execute("query-migrate", serde_json::json!({}))?;
            Ok(MoveOutcome {
                started,
                ended: Instant::now(),
                called_off: true,
                own_downtime_ms: None,
                rounds: info["ram"]["dirty-sync-count"].as_u64(),
                report: OwnReport::Other(info),
            })
        }
        Err(error) => Err(error.into()),
    }
}
