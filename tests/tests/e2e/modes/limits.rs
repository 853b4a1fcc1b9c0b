//! `--bandwidth`, `--max-downtime`, `--max-rounds` and `--when-stalled`.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv};

/// A rate can only be lower on a slow machine, so an upper limit can be asserted.
#[test]
#[ignore = "part of `make test-rates`"]
fn bandwidth_limits_only_the_background() {
    let env = TestEnv::new();
    // The guest accesses all of its 32 MiB in a fraction of the migration.
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    // A rate that a slow and busy machine reaches, too, so the background is at the limit all the
    // time.
    let limit = 5_000_000.0;
    let json_report =
        guest.migrate(&MigrationPlan::new("postcopy").migrate_args(&["--bandwidth", "5M"]));
    let seconds = json_report.total_ms / 1e3;
    let background = json_report.bytes.background as f64 / seconds;
    assert!(background <= limit * 1.1, "{background} B/s of background");
    // Requested pages are sent in addition. A machine that is too busy to reach the limit cannot
    // show it.
    let all = (json_report.bytes.background + json_report.bytes.urgent) as f64 / seconds;
    assert!(
        all > limit * 1.05 || background < limit * 0.9,
        "{all} B/s in all: urgent pages were limited"
    );
    assert!(json_report.pages.urgent > 1000 && json_report.pages.background > 1000);

    let plan = MigrationPlan::new("precopy").migrate_args(&[
        "--bandwidth",
        "60M",
        "--max-downtime",
        "5000",
    ]);
    let json_report = guest.migrate(&plan);
    let rate = json_report.bytes.precopy as f64 / (json_report.total_ms / 1e3);
    assert!(rate <= 60e6 * 1.1, "{rate} B/s of pre-copy");
}

#[test]
#[ignore = "one of its kind runs in CI: make test-rates"]
fn precopy_that_does_not_converge_follows_when_stalled() {
    let env = TestEnv::new();
    let workload = Workload::verify(48)
        .threads(2)
        .rate(20_000)
        .option("every_ms", 200);
    let config = VmConfig::new().cpus(2).workload(workload);
    let mut guest = Guest::boot(&env, config);
    let stalling = |choice: &'static str| {
        MigrationPlan::new("precopy").migrate_args(&[
            "--max-downtime",
            "1",
            "--max-rounds",
            "3",
            // A rate so low that the guest writes more in a round than can be sent in the downtime,
            // however rarely it runs.
            "--bandwidth",
            "60M",
            "--when-stalled",
            choice,
        ])
    };
    let says = "pre-copy does not converge: after 3 rounds ";

    let (exits, finished) = guest.start_migration(&stalling("stop")).wait();
    exits.assert_source(1, &[says, "--max-downtime", "runs at the source"]);
    exits.assert_destination(1, &["the source reports where it is"]);
    guest.assert_stayed(finished, "--when-stalled stop");

    let migration = guest.start_migration(&stalling("continue"));
    let line = migration.migrate.wait_stderr(says);
    assert!(line.contains("continuing"), "{line}");
    // The guest and the folder of the journal are named.
    assert!(line.contains("`hikkoshi set host"), "{line}");
    assert!(line.contains(" --journal /"), "{line}");
    assert!(line.contains(" --max-downtime "), "{line}");
    // Its progress says so, too.
    migration.migrate.wait_stderr(", does not converge");
    migration.migrate.interrupt();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["cancelled", "runs at the source"]);
    assert_eq!(exits.migrate.stderr.matches(says).count(), 1, "once");
    guest.assert_stayed(finished, "--when-stalled continue, until Ctrl-C");

    let json_report = guest.migrate(&stalling("switch"));
    assert!(json_report.postcopy);
    assert_eq!(json_report.rounds, 3);
    assert!(json_report.pages.precopy > 0);

    // Converges with a higher downtime limit.
    let json_report =
        guest.migrate(&MigrationPlan::new("precopy").migrate_args(&["--max-downtime", "10000"]));
    assert!(!json_report.postcopy);
}

#[test]
#[ignore = "part of `make test-rates`"]
fn hybrid_makes_the_requested_number_of_rounds() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for rounds in ["1", "4"] {
        let json_report =
            guest.migrate(&MigrationPlan::new("hybrid").migrate_args(&["--rounds", rounds]));
        assert_eq!(json_report.rounds.to_string(), rounds);
        assert!(json_report.postcopy);
    }
}
