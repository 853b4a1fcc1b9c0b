//! `--bandwidth`, `--max-downtime`, `--max-rounds` and `--when-stalled`.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv};

/// A rate can only be lower on a slow machine, so a ceiling can be asserted.
#[test]
fn bandwidth_limits_the_background_and_nothing_else() {
    let env = TestEnv::new();
    // It wants all of its 32 MiB, at once, over and over.
    let workload = Workload::verify(32).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    // So little that a slow and busy machine does it, too: the background keeps to it all the time.
    let limit = 5_000_000.0;
    let account =
        guest.migrate(&MigrationPlan::new("postcopy").migrate_args(&["--bandwidth", "5M"]));
    let seconds = account.total_ms / 1e3;
    let background = account.bytes.background as f64 / seconds;
    assert!(background <= limit * 1.1, "{background} B/s of background");
    // What the guest asks for comes on top. A machine that is too busy for the background itself
    // cannot show it.
    let all = (account.bytes.background + account.bytes.urgent) as f64 / seconds;
    assert!(
        all > limit * 1.05 || background < limit * 0.9,
        "{all} B/s in all: urgent pages were held back"
    );
    assert!(account.pages.urgent > 1000 && account.pages.background > 1000);

    let plan = MigrationPlan::new("precopy").migrate_args(&[
        "--bandwidth",
        "60M",
        "--max-downtime",
        "5000",
    ]);
    let account = guest.migrate(&plan);
    let rate = account.bytes.precopy as f64 / (account.total_ms / 1e3);
    assert!(rate <= 60e6 * 1.1, "{rate} B/s of pre-copy");
}

#[test]
fn precopy_that_does_not_converge_says_so_and_obeys() {
    let env = TestEnv::new();
    let workload = Workload::verify(48).threads(2).option("every_ms", 200);
    let config = VmConfig::new().cpus(2).workload(workload);
    let mut guest = Guest::boot(&env, config);
    let hopeless = |choice: &'static str| {
        MigrationPlan::new("precopy").migrate_args(&[
            "--max-downtime",
            "1",
            "--max-rounds",
            "3",
            // So little that the guest writes more in a round than goes in the downtime, however
            // seldom it has its turn.
            "--bandwidth",
            "60M",
            "--when-stalled",
            choice,
        ])
    };
    let says = "pre-copy does not converge: after 3 rounds ";

    let (exits, finished) = guest.start_migration(&hopeless("stop")).wait();
    exits.assert_source(1, &[says, "--max-downtime", "runs on at the source"]);
    exits.assert_destination(1, &["stays at the source"]);
    guest.assert_stayed(finished, "--when-stalled stop");

    let migration = guest.start_migration(&hopeless("go-on"));
    let line = migration.migrate.wait_stderr(says);
    assert!(line.contains("going on"), "{line}");
    migration.migrate.interrupt();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["cancelled", "runs on at the source"]);
    assert_eq!(exits.migrate.stderr.matches(says).count(), 1, "once");
    guest.assert_stayed(finished, "--when-stalled go-on, until Ctrl-C");

    let account = guest.migrate(&hopeless("switch"));
    assert!(account.postcopy);
    assert_eq!(account.rounds, 3);
    assert!(account.pages.precopy > 0);

    // With more downtime allowed it is no problem.
    let account =
        guest.migrate(&MigrationPlan::new("precopy").migrate_args(&["--max-downtime", "10000"]));
    assert!(!account.postcopy);
}

#[test]
fn hybrid_makes_as_many_rounds_as_asked() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for rounds in ["1", "4"] {
        let account =
            guest.migrate(&MigrationPlan::new("hybrid").migrate_args(&["--rounds", rounds]));
        assert_eq!(account.rounds.to_string(), rounds);
        assert!(account.postcopy);
    }
}
