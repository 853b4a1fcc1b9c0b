//! The three modes, with one, two and four processors, and with busy, idle and growing guests.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestReport, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, Transport};

const MODES: [&str; 3] = ["hybrid", "postcopy", "precopy"];

/// Migrates a guest by each mode in turn.
fn all_modes(cpus: u32, workload: Workload) {
    let env = TestEnv::new();
    let workload = workload.option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().cpus(cpus).workload(workload));
    for (mode, transport) in
        MODES
            .into_iter()
            .zip([Transport::Tcp, Transport::Unix, Transport::Tcp])
    {
        let json_report = guest.migrate(&MigrationPlan::new(mode).transport(transport));
        assert_eq!(json_report.postcopy, mode != "precopy");
        assert_eq!(json_report.rounds > 0, mode != "postcopy");
    }
}

#[test]
#[ignore = "part of `make matrix`"]
fn one_processor_writing_as_fast_as_possible() {
    all_modes(1, Workload::verify(32));
}

#[test]
#[ignore = "part of `make matrix`"]
fn four_processors_writing_as_fast_as_possible() {
    all_modes(4, Workload::verify(64).threads(4));
}

#[test]
fn no_counted_write_is_lost() {
    all_modes(2, Workload::dirty(64).threads(2));
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn an_idle_guest() {
    all_modes(1, Workload::idle());
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn a_guest_that_mostly_reads() {
    all_modes(1, Workload::verify(64).rate(5000).write_percent(5));
}

/// Half of the pages alternate between zeros and content; others are touched for the first time
/// during the migration.
#[test]
fn zero_pages_and_memory_first_touched_during_migration() {
    let env = TestEnv::new();
    // Growth of a MiB a second is visible in each migration, and the limit is far away on any
    // machine.
    let workload = Workload::verify(16)
        .rate(20_000)
        .grow(1, 144)
        .option("zero", 50)
        .option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for mode in MODES {
        let pages = |report: &GuestReport| match report {
            GuestReport::Verify(verify) => Some(verify.pages),
            _ => None,
        };
        let first = guest.vm().console().len();
        let before = guest.vm().wait_report("size", first, LONG, pages).unwrap();
        // Slow enough for memory to grow during the migration; pre-copy needs the higher downtime
        // limit then.
        let slowly = ["--bandwidth", "60M", "--max-downtime", "5000"];
        let json_report = guest.migrate(&MigrationPlan::new(mode).migrate_args(&slowly));
        let first = guest.vm().console().len();
        let after = guest.vm().wait_report("size", first, LONG, pages).unwrap();
        assert!(after > before, "memory did not grow: {before} {after}");
        assert!(json_report.pages.zero > 0);
    }
}
