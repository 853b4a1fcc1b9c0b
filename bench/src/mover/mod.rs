//! Moves the guest, with hikkoshi, with QEMU's own migration, or with libvirt.

mod domain;
mod hikkoshi;
mod outcome;
mod qemu;

pub(crate) use domain::{migrate_domain, virsh_migrate};
pub(crate) use hikkoshi::{HikkoshiMigration, estimate};
#[cfg(test)]
pub(crate) use outcome::ReportedTimeLeft;
pub(crate) use outcome::{HikkoshiReport, MoveOutcome, OwnReport};
pub(crate) use qemu::migrate as qemu_migrate;

use std::path::Path;

use hikkoshi_lab::QemuMigration;

use crate::args::Args;
use crate::error::BenchError;
use crate::plan::{BACKGROUND_DELAY_MS, Case, Workload};
use crate::testbed::Testbed;

/// Moves the guest from its source to its destination with the case's system.
pub(crate) fn migrate(
    testbed: &Testbed,
    case: &Case,
    program: &Path,
    args: &Args,
) -> Result<MoveOutcome, BenchError> {
    let endless = case.workload == Workload::Endless;
    let give_up = endless.then(|| args.give_up());
    match (case.system.hikkoshi_mode(), case.system.qemu_mode()) {
        (Some(mode), _) => {
            let delay = BACKGROUND_DELAY_MS.to_string();
            let more: &[&str] = match case.workload {
                Workload::NanoWebRequests => &["--background-delay", &delay],
                load if load.is_uncompressed() => &["--compress", "off"],
                _ => &[],
            };
            HikkoshiMigration::start(testbed, program, mode, case.variant, args, more)?
                .finish(give_up)
        }
        (None, Some(mode)) => {
            let mut migration = QemuMigration::new(mode);
            migration.downtime_ms = args.max_downtime;
            migration.switch_at_once = case.system.switches_at_once();
            qemu_migrate(&migration, testbed, give_up)
        }
        (None, None) => unreachable!("libvirt moves domains only"),
    }
}
