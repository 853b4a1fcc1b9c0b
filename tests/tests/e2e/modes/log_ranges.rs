//! Moves with the dirty log taken in a number of ranges, as the benchmarks do.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, kvm_present};

fn verify() -> Workload {
    Workload::verify(32).rate(20_000).option("every_ms", 200)
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn linux_with_the_log_in_ranges() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, VmConfig::new().workload(verify()));
    // The guest writes 20,000 pages a second, and sending the whole log takes a while.
    let stale = [("precopy", "1"), ("hybrid", "16"), ("precopy", "64")].map(|(mode, ranges)| {
        let args = ["--log-ranges", ranges, "--rounds", "2"];
        let report = guest.migrate(&MigrationPlan::new(mode).migrate_args(&args));
        report.stale_pages.unwrap()
    });
    assert!(stale[2] < stale[0], "{stale:?}");
    let report = guest.migrate(&MigrationPlan::new("precopy"));
    assert_eq!(report.stale_pages, None, "not counted");
}

#[test]
fn nano_with_the_log_in_ranges() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let config = VmConfig::new().kvm().nano().workload(verify());
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    for (mode, ranges) in [("precopy", "4"), ("hybrid", "1")] {
        let args = ["--log-ranges", ranges, "--rounds", "2"];
        let report = guest.migrate(&MigrationPlan::new(mode).migrate_args(&args));
        let stale = report.stale_pages.unwrap();
        assert!(stale > 0 || ranges != "1", "{mode}, {ranges} ranges");
    }
}
