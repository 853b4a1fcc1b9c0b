//! The QEMU versions, and migrations between them.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::{V7_2, V10_0, V11_1};
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, Transport};

#[test]
#[ignore = "the newest runs in CI: make matrix"]
fn older_qemu_in_every_mode() {
    let env = TestEnv::new();
    let workload = Workload::verify(48)
        .threads(2)
        .rate(20_000)
        .option("every_ms", 200);
    let config = VmConfig::new().version(V7_2).cpus(2).workload(workload);
    let mut guest = Guest::boot(&env, config);
    for mode in ["precopy", "hybrid", "postcopy"] {
        guest.migrate(&MigrationPlan::new(mode).transport(Transport::Tcp));
    }
}

/// With the machine type of the oldest.
#[test]
fn to_the_newest_qemu_and_back_in_every_mode() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let config = VmConfig::new().version(V10_0).cpus(2).workload(workload);
    let mut guest = Guest::boot(&env, config);
    for (version, mode) in [(V11_1, "hybrid"), (V11_1, "precopy"), (V10_0, "postcopy")] {
        guest.migrate(&MigrationPlan::new(mode).destination_version(version));
    }
}

#[test]
#[ignore = "part of `make matrix`"]
fn between_older_and_newer_qemu() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let config = VmConfig::new().version(V7_2).workload(workload);
    let mut guest = Guest::boot(&env, config);
    for (version, mode) in [
        (V10_0, "hybrid"),
        (V7_2, "precopy"),
        (V10_0, "postcopy"),
        (V7_2, "hybrid"),
        (V10_0, "precopy"),
    ] {
        guest.migrate(&MigrationPlan::new(mode).destination_version(version));
    }
}
