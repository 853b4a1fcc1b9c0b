//! The three modes, with one, two and four processors, busy, idle and growing guests.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Report, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, Transport};

const MODES: [&str; 3] = ["hybrid", "postcopy", "precopy"];

/// Moves a guest by each mode in turn.
fn all_modes(cpus: u32, workload: Workload) {
    let env = TestEnv::new();
    let workload = workload.option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().cpus(cpus).workload(workload));
    for (mode, transport) in
        MODES
            .into_iter()
            .zip([Transport::Tcp, Transport::Unix, Transport::Tcp])
    {
        let account = guest.migrate(&MigrationPlan::new(mode).transport(transport));
        assert_eq!(account.postcopy, mode != "precopy");
        assert_eq!(account.rounds > 0, mode != "postcopy");
    }
}

#[test]
fn one_processor_writing_as_fast_as_it_can() {
    all_modes(1, Workload::verify(32));
}

#[test]
fn two_processors_writing_as_fast_as_they_can() {
    all_modes(2, Workload::verify(48).threads(2));
}

#[test]
fn four_processors_writing_as_fast_as_they_can() {
    all_modes(4, Workload::verify(64).threads(4));
}

#[test]
fn counted_writes_none_of_which_may_be_lost() {
    all_modes(2, Workload::dirty(64).threads(2));
}

#[test]
fn an_idle_guest() {
    all_modes(1, Workload::idle());
}

#[test]
fn a_guest_that_mostly_reads() {
    all_modes(1, Workload::verify(64).rate(5000).write_percent(5));
}

/// Half of the pages turn to zeros and back; others are touched for the first time while the
/// guest is moved.
#[test]
fn memory_first_touched_on_the_way_and_zeros() {
    let env = TestEnv::new();
    // A MiB a second is seen in any of the moves, and the end is far however long they take.
    let workload = Workload::verify(16)
        .rate(20_000)
        .grow(1, 144)
        .option("zero", 50)
        .option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for mode in MODES {
        let pages = |report: &Report| match report {
            Report::Verify(verify) => Some(verify.pages),
            _ => None,
        };
        let first = guest.vm().console().len();
        let before = guest.vm().wait_report("size", first, LONG, pages).unwrap();
        // Slow enough for something to happen on the way; pre-copy needs the downtime then.
        let slowly = ["--bandwidth", "60M", "--max-downtime", "5000"];
        let account = guest.migrate(&MigrationPlan::new(mode).migrate_args(&slowly));
        let first = guest.vm().console().len();
        let after = guest.vm().wait_report("size", first, LONG, pages).unwrap();
        assert!(after > before, "it did not grow: {before} {after}");
        assert!(account.pages.zero > 0);
    }
}
