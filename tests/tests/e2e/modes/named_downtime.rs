//! Pre-copy that does not converge names a downtime that would suffice: how often it does. For
//! docs/control.md.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hikkoshi_lab::{HostPair, Pattern, Ram, RateLimit, VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, Program, TestEnv, Transport, hikkoshi, log};

/// How long pre-copy may take after the limit was set: more than ten rounds of each case.
const PATIENCE: Duration = Duration::from_secs(100);

/// Rounds until it is said not to converge.
const ROUNDS: &str = "6";

/// Guests that write more than the lines carry, each in another way.
fn guests() -> [(&'static str, VmConfig); 5] {
    let dirty = |rate| Workload::dirty(40).rate(rate);
    let guest = |workload: Workload| {
        let workload = workload.option("every_ms", 200);
        VmConfig::new().ram(Ram::shared(160)).workload(workload)
    };
    [
        ("at random", guest(dirty(12_000))),
        (
            "in sequence",
            guest(dirty(15_000).pattern(Pattern::Sequential)),
        ),
        ("hot spot", guest(dirty(40_000).pattern(Pattern::Hotspot))),
        ("bursts", guest(dirty(15_000).option("burst_ms", 500))),
        (
            "with two processors",
            guest(dirty(15_000).threads(2)).cpus(2),
        ),
    ]
}

/// The rate of the line in Mbit/s, and `--bandwidth`.
const LINES: [(u64, &str); 4] = [
    (120, "none"),
    (240, "none"),
    (1000, "100Mbit"),
    (1000, "200Mbit"),
];

fn line(mbit: u64) -> HostPair {
    let limit = RateLimit {
        rate_bits: mbit * 1_000_000,
        burst_bytes: 512 * 1024,
        latency: Duration::from_millis(50),
    };
    HostPair::new(Some(limit)).unwrap()
}

/// The command that a message names, between backquotes.
fn named_command(message: &str) -> Vec<&str> {
    let (_, from) = message.split_once('`').unwrap();
    let (command, _) = from.split_once('`').unwrap();
    command.split(' ').collect()
}

/// What came of the downtime that was named.
#[derive(Debug, Default)]
struct Outcome {
    /// Pre-copy ended with it.
    converged: bool,
    /// And the guest was paused for no longer.
    kept: bool,
}

fn use_named_downtime(
    env: &TestEnv,
    guest: &mut Guest<'_>,
    (mbit, bandwidth): (u64, &str),
) -> Outcome {
    let line = line(mbit);
    let plan = MigrationPlan::new("precopy")
        .transport(Transport::Address(format!(
            "{}:7000",
            HostPair::DESTINATION
        )))
        .between_namespaces(line.source(), line.destination())
        .migrate_args(&["--max-downtime", "300", "--max-rounds", ROUNDS])
        .migrate_args(&["--bandwidth", bandwidth]);
    let mut migration = guest.start_migration(&plan);
    let message = migration
        .migrate
        .wait_stderr("pre-copy does not converge: after");
    let words = named_command(&message);
    let [program, arguments @ .., limit] = &words[..] else {
        panic!("{message}");
    };
    assert_eq!(*program, "hikkoshi", "{message}");
    let mut set = Command::new(hikkoshi());
    set.args(arguments).arg(limit).current_dir(env.folder());
    let set = Program::start("set", set).wait();
    assert_eq!(set.code, Some(0), "{set:?}");
    let begun = Instant::now();
    while !migration.migrate.has_exited() && begun.elapsed() < PATIENCE {
        sleep(Duration::from_millis(50));
    }
    let converged = migration.migrate.has_exited();
    if !converged {
        migration.migrate.interrupt();
    }
    let (exits, finished) = migration.wait();
    let what = format!("{mbit} Mbit/s, --bandwidth {bandwidth}: {limit} ms named");
    if !converged {
        guest.assert_stayed(finished, "does not converge");
        log(format!("{what}, which did not suffice: {message}"));
        return Outcome::default();
    }
    let report = guest.complete_migration(&exits, finished, "running");
    assert!(!report.postcopy, "{report:?}");
    let downtime = report.downtime_ms.unwrap();
    log(format!(
        "{what}, {downtime:.0} ms taken, after {} rounds",
        report.rounds
    ));
    Outcome {
        converged,
        kept: downtime <= limit.parse().unwrap(),
    }
}

/// 20 moves, each of which the command in the message lets converge. One may be an exception: the
/// value follows from rounds that are over, and the guest or the line may change. Whether the pause
/// was no longer than that is counted; a busy machine can make it longer.
#[test]
#[ignore = "takes ten minutes: make test-rates"]
fn the_named_downtime_suffices_in_19_of_20_moves() {
    let env = TestEnv::new();
    let (mut converged, mut kept, mut not) = (0, 0, Vec::new());
    for (name, config) in guests() {
        let mut guest = Guest::boot(&env, config);
        for line in LINES {
            log(format!("a guest that writes {name}:"));
            let outcome = use_named_downtime(&env, &mut guest, line);
            converged += u32::from(outcome.converged);
            kept += u32::from(outcome.kept);
            if !outcome.converged {
                not.push((name, line));
            }
        }
    }
    log(format!(
        "{converged} converged, {kept} of them within the downtime"
    ));
    assert!(not.len() <= 1, "it did not suffice: {not:?}");
}
