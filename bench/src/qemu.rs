//! QEMU moves the guest itself.

use std::time::Instant;

use hikkoshi_lab::{LabError, QemuMigration, QemuMigrationMode, Vm};

use crate::args::Args;
use crate::error::BenchError;
use crate::line::Line;
use crate::run::Moved;

/// Moves the guest of `source`; gives up on pre-copy after the time allowed.
pub fn migrate(
    mode: QemuMigrationMode,
    line: &Line,
    source: &Vm,
    destination: &Vm,
    args: &Args,
    endless: bool,
) -> Result<Moved, BenchError> {
    let mut migration = QemuMigration::new(mode);
    migration.downtime_ms = args.max_downtime;
    if endless {
        migration.timeout = args.give_up();
    }
    let started = Instant::now();
    let uri = format!("tcp:{}", line.address());
    match migration.run(source, destination, &uri) {
        Ok(report) => Ok(Moved {
            // From the `migrate` command, without what QEMU was told before.
            started: report.ended.checked_sub(report.total).unwrap_or(started),
            ended: report.ended,
            called_off: false,
            own_downtime_ms: report.info["downtime"].as_f64(),
            rounds: report.info["ram"]["dirty-sync-count"].as_u64(),
            account: report.info,
        }),
        Err(LabError::QemuMigration { status, .. }) if endless && status == "active" => {
            let info = source
                .qmp()
                .execute("query-migrate", serde_json::json!({}))?;
            Ok(Moved {
                started,
                ended: Instant::now(),
                called_off: true,
                own_downtime_ms: None,
                rounds: info["ram"]["dirty-sync-count"].as_u64(),
                account: info,
            })
        }
        Err(error) => Err(error.into()),
    }
}
