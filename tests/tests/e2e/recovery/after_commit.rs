//! From commit on nothing is lost: cut links and killed engines are replaced, and the guest has all
//! of its pages in the end.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_lab::GuestReport;
use hikkoshi_tests::{
    Breakpoint, Guest, JsonSchema, LONG, MessageKind, Migration, MigrationPlan, Program, TestEnv,
    Transport, Victim, assert_command_refused, assert_not_running, busy_guest, eventually,
    hikkoshi,
};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Interrupts a migration at each of these breakpoints, moving the guest to and fro.
fn each(
    mode: &'static str,
    transport: Transport,
    steps: impl IntoIterator<Item = (Victim, Breakpoint)>,
) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for (victim, at) in steps {
        let plan = MigrationPlan::new(mode).transport(transport.clone());
        victim.interrupt(&mut guest, plan, at);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
fn links_cut_in_postcopy() {
    let steps = [
        (Victim::Links, Breakpoint::before(Commit)),
        (Victim::Links, Breakpoint::after(Commit)),
        (Victim::Links, Breakpoint::after(Pages).nth(500)),
    ];
    each("postcopy", Transport::Unix, steps);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn links_cut_in_hybrid() {
    let steps = [
        (Victim::Links, Breakpoint::before(Commit)),
        (Victim::Links, Breakpoint::after(Commit)),
        (Victim::Links, Breakpoint::before(GuestResumed)),
    ];
    each("hybrid", Transport::Tcp, steps);
}

#[test]
fn engines_killed_in_postcopy() {
    let steps = [
        (Victim::Destination, Breakpoint::after(Pages).nth(400)),
        (Victim::Source, Breakpoint::after(Pages).nth(300)),
        (Victim::Both, Breakpoint::after(Pages).nth(600)),
    ];
    each("postcopy", Transport::Tcp, steps);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn engines_killed_at_commit() {
    let steps = [
        (Victim::Destination, Breakpoint::before(Commit)),
        (Victim::Source, Breakpoint::before(Commit)),
        (Victim::Both, Breakpoint::before(Commit)),
        (Victim::Both, Breakpoint::after(Commit)),
    ];
    each("hybrid", Transport::Unix, steps);
}

/// All pages have arrived at commit; only the ownership of the guest is open.
#[test]
#[ignore = "part of `make drills`"]
fn precopy_interrupted_at_commit() {
    let steps = [
        (Victim::Links, Breakpoint::before(Commit)),
        (Victim::Both, Breakpoint::before(Commit)),
    ];
    each("precopy", Transport::Unix, steps);
}

/// The source's engine and its QEMU are killed: the RAM file is sufficient, even if the source had
/// not been notified yet that the guest runs at the destination.
#[test]
#[ignore = "part of `make drills`"]
fn source_engine_and_qemu_killed() {
    let steps = [
        (Victim::SourceAndQemu, Breakpoint::after(Commit)),
        (Victim::SourceAndQemu, Breakpoint::before(GuestResumed)),
        (Victim::SourceAndQemu, Breakpoint::after(Pages).nth(400)),
    ];
    each("postcopy", Transport::Tcp, steps);
}

/// A QEMU that would discard its RAM file when it quits must not do so as long as the migration can
/// be resumed from that file, even if no engine runs when it quits.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_quits_after_both_engines() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let discard = json!({ "path": "/objects/ram", "property": "discard-data", "value": true });
    guest.vm().qmp().execute("qom-set", discard).unwrap();
    // Background pages are sent slowly.
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&["--bandwidth", "16M"])
        .hold_at(Breakpoint::after(Pages).nth(400));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.relay().cut();
    let [migrate, _] = migration.wait_for_interrupted_engines();
    let runs_there = ["the guest runs at the destination: never continue it"];
    migrate.assert(3, &runs_there);
    // A further engine that finds no destination does not cause the file to be discarded either.
    migration.resume_migrate(&[]);
    migration.migrate.wait().assert(3, &runs_there);
    let held = || {
        std::fs::metadata(&guest.vm().ram_files()[0])
            .unwrap()
            .blocks()
    };
    let before = held();
    // QEMU may end before it answers.
    let _ = guest.vm().qmp().execute("quit", json!({}));
    let ended = guest.vm().wait_exit(LONG).unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(held(), before, "blocks of the RAM file");
    migration.resume_receive(&[]);
    migration.resume_migrate(&["--bandwidth", "1G"]);
    let (exits, finished) = migration.wait();
    let json_report = exits.json_reports[0].as_ref().unwrap();
    assert!(json_report.pages.background > 0, "{json_report:?}");
    for json_report in exits.json_reports.iter().flatten() {
        let steps = &json_report.switchover;
        assert_eq!(steps, &[], "another engine switched over: {json_report:?}");
    }
    guest.complete_resumed_migration(&exits, finished, "source QEMU has quit after both engines");
    guest.migrate(&MigrationPlan::new("precopy"));
}

/// The links are reset repeatedly, and both engines reconnect by themselves.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn reset_links_are_reestablished() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for at in [
        Breakpoint::before(Commit),
        Breakpoint::after(Commit),
        Breakpoint::before(GuestResumed),
        Breakpoint::after(Pages).nth(300),
    ] {
        let plan = MigrationPlan::new("postcopy")
            .transport(Transport::Tcp)
            .reset_at(at);
        // Without `--retry-for`, too.
        let plan = if at == Breakpoint::after(Commit) {
            plan.default_retry()
        } else {
            plan.migrate_args(&["--retry-for", "200"])
                .receive_args(&["--retry-for", "200"])
        };
        let migration = guest.start_migration(&plan);
        let (exits, finished) = migration.wait();
        exits.assert_source(0, &["othing is lost"]);
        exits.assert_destination(0, &["nothing is lost"]);
        guest.complete_resumed_migration(&exits, finished, &format!("interrupted {at}"));
    }
}

/// A line is silent for some seconds before its loss is noticed, and the guest waits for pages
/// meanwhile: the longest request takes as long as the guest's longest access, which both engines
/// report, and the destination's outage begins with the last byte. (The relay acknowledges what the
/// source sends, so that the source sees signs of life for longer.)
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_wait_over_an_outage_is_reported_in_full() {
    const SILENT: Duration = Duration::from_secs(4);
    /// How often `busy_guest` reports.
    const REPORTS_MS: u64 = 200;
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&["--bandwidth", "20M"])
        .default_retry()
        .hold_at(Breakpoint::after(Pages).nth(100));
    let before = guest.vm().console().len();
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    thread::sleep(SILENT);
    migration.relay().reset_links();
    let (exits, finished) = migration.wait();
    for ended in [&exits.migrate, &exits.receive] {
        assert!(ended.stdout.contains("\n  outages      1, "), "{ended:?}");
        assert!(!ended.stdout.contains("not counted"), "{ended:?}");
    }
    let reports = exits.json_reports.clone().map(Option::unwrap);
    guest.complete_resumed_migration(&exits, finished, "a line was silent");
    // By the guest's clock: one access of the workload, or a longer time than usual between two of
    // its reports, if the page was the kernel's.
    let lines = guest.vm().console().since(before).into_iter();
    let waits = lines.filter_map(|line| match line.report {
        GuestReport::Verify(verify) => {
            let late = verify.span_ms.saturating_sub(REPORTS_MS);
            Some(verify.latency.max_us.max(late as f64 * 1e3))
        }
        _ => None,
    });
    let longest = waits.fold(0.0, f64::max);
    let silent = SILENT.as_secs_f64();
    assert!(longest >= silent * 0.9e6, "it did not wait: {longest} µs");
    let [here, there] = reports;
    for report in [&here, &there] {
        // By two clocks. The guest's longest time may have more than this wait in it.
        let measured = report.requests.request_latency_us.max;
        assert!(
            measured >= silent * 0.9e6 && measured <= longest * 1.1,
            "{measured} µs where the guest waited for {longest} µs: {report:?}"
        );
        assert_eq!(report.requests.unmeasured_requests, 0, "{report:?}");
        assert_eq!(report.outages.len(), 1, "{report:?}");
    }
    let outage = there.outages[0];
    let lasted = outage.to_ms.unwrap() - outage.from_ms;
    assert!(
        Duration::from_millis(lasted) >= SILENT.mul_f64(0.9),
        "from the last byte: {there:?}"
    );
}

/// Both engines were killed: `status` lists what is not finished, with the command that resumes it.
/// What the next engines report at the end is the downtime and the total time of the migration.
#[test]
fn killed_engines_are_listed_and_the_next_ones_report_the_whole_migration() {
    const GAP: Duration = Duration::from_secs(2);
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .hold_at(Breakpoint::after(Pages).nth(100));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    let folder = migration.journal_folders()[0].clone();
    let status = |arguments: &[&str]| {
        let mut status = Command::new(hikkoshi());
        status.arg("status").arg("--journal").arg(&folder);
        let output = status.args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    };
    eventually("a source that knows that the guest runs", || {
        let (code, text) = status(&["--json"]);
        match text.contains(r#""stage":"handed_over""#) {
            true => Ok(()),
            false => Err(format!("{code:?} {text}")),
        }
    });
    migration.migrate.kill();
    migration.receive.kill();
    migration.relay().cut();
    thread::sleep(GAP);
    let sides = [
        ("source", "migrate", "handed_over", "may lack pages"),
        (
            "destination",
            "receive",
            "running",
            "runs here and lacks pages",
        ),
    ];
    // The guard looks at the journal for a moment.
    eventually("two journals without an engine", || {
        let (code, text) = status(&["--json"]);
        match (code, text.lines().count()) {
            (Some(3), 2) => Ok(()),
            _ => Err(format!("{code:?} {text}")),
        }
    });
    let (code, text) = status(&[]);
    assert_eq!(code, Some(3), "{text}");
    let (_, lines) = status(&["--json"]);
    let schema = JsonSchema::of_status();
    let seen = lines
        .lines()
        .map(|line| schema.assert("migration_status", line));
    let seen: Vec<_> = seen.collect();
    for (side, command, stage, message) in sides {
        let resume = format!("Resume it: hikkoshi {command} --resume=");
        for part in ["NOT FINISHED", message, &resume] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let of_side = |seen: &&serde_json::Value| seen["migration"]["side"] == side;
        let seen = seen.iter().find(of_side).unwrap();
        assert_eq!(seen["unfinished"]["stage"], stage);
        assert_eq!(seen["running"], false);
        // Its recording may be older than its journal.
        let state = &seen["state"];
        assert!(state.is_null() || state["stage"] == stage, "{state}");
    }
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    for (ended, report) in [&exits.migrate, &exits.receive]
        .into_iter()
        .zip(exits.json_reports.iter().flatten())
    {
        let downtime = report.downtime_ms.unwrap();
        assert!(downtime > 0.0, "{report:?}");
        assert!(report.total_ms >= GAP.as_secs_f64() * 1e3, "{report:?}");
        assert!(report.total_ms > downtime, "{report:?}");
        assert!(ended.stdout.contains("\n  resumed      "), "{ended:?}");
        // From what the killed engine has seen last.
        let outage = report.outages[0];
        assert!(Duration::from_millis(outage.before_ms) >= GAP, "{report:?}");
        assert!(outage.lasted_ms() >= Some(outage.before_ms), "{report:?}");
        assert!(
            ended.stdout.contains(" before this engine's start\n"),
            "{ended:?}"
        );
    }
    let there = exits.json_reports[1].as_ref().unwrap();
    let longest = there.requests.request_latency_us.max;
    assert!(longest >= GAP.as_secs_f64() * 1e6, "{there:?}");
    let likely = exits.json_reports[0].as_ref().unwrap().likely_downtime_ms;
    assert!(likely.is_some(), "{exits:?}");
    guest.complete_resumed_migration(&exits, finished, "both engines killed, and listed");
}

/// The suggested commands resume the migration as they are: address and options are in the
/// journals.
#[test]
fn suggested_commands_resume_the_migration() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for transport in [Transport::Unix, Transport::Tcp] {
        let plan = MigrationPlan::new("postcopy")
            .transport(transport)
            .migrate_args(&["--bandwidth", "200M", "--links", "2"])
            .receive_args(&["--fault-threads", "2"])
            .reset_at(Breakpoint::after(Pages).nth(300));
        let mut migration = guest.start_migration(&plan);
        let [receive, migrate] = [migration.receive.wait(), migration.migrate.wait()];
        for ended in [&receive, &migrate] {
            ended.assert(3, &["o data is lost"]);
        }
        resume_in_other_pid_namespace(&migration);
        let receive = receive.suggested_command("hikkoshi receive --resume=", env.folder());
        migration.receive = Program::start("receive --resume as suggested", receive);
        migration.receive.wait_stderr("waiting for its source at ");
        let migrate = migrate.suggested_command("hikkoshi migrate --resume=", env.folder());
        migration.migrate = Program::start("migrate --resume as suggested", migrate);
        let (exits, finished) = migration.wait();
        guest.complete_resumed_migration(&exits, finished, "resumed by the suggested commands");
    }
}

/// In another PID namespace, QEMU's process is not visible. It is not taken for ended, and the
/// journals stay.
fn resume_in_other_pid_namespace(migration: &Migration) {
    for side in ["receive", "migrate"] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]);
        command
            .arg(hikkoshi())
            .args([side, "--resume", "--journal"]);
        command.arg(&migration.journal_folders()[0]);
        let parts = [
            "another PID namespace",
            "the journal is unchanged",
            "--resume=",
        ];
        assert_command_refused(command, 3, &parts);
    }
    assert_eq!(migration.journals().len(), 2);
}

/// Both engines have exited, and each side is given up by an operator who knows that the other one
/// is lost: the guest at the destination ends, and the one at the source continues.
#[test]
fn each_side_is_given_up() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for at in [
        Breakpoint::before(Commit),
        Breakpoint::after(Pages).nth(300),
    ] {
        let mut migration = guest.start_migration(
            &MigrationPlan::new("postcopy")
                .transport(Transport::Tcp)
                .hold_at(at),
        );
        migration.wait_held();
        migration.migrate.kill();
        migration.receive.kill();
        migration.relay().cut();
        let ran = at != Breakpoint::before(Commit);
        if ran {
            migration.start_receive_resume(&["--give-up"]);
            migration
                .receive
                .wait()
                .assert(3, &["would be ended", "--other-side-is-lost"]);
            migration.start_receive_resume(&["--give-up", "--other-side-is-lost"]);
            migration
                .receive
                .wait()
                .assert(4, &["the guest has ended here"]);
            migration.destination.wait_exit(LONG).unwrap();
        } else {
            migration.start_receive_resume(&["--give-up"]);
            migration.receive.wait().assert(1, &["never will"]);
            assert_not_running(&migration.destination);
        }
        migration.resume_migrate(&["--give-up"]);
        migration.migrate.wait().assert(
            3,
            &[
                "otherwise two copies of the guest run",
                "--other-side-is-lost",
            ],
        );
        assert_not_running(guest.vm());
        migration.resume_migrate(&["--give-up", "--other-side-is-lost"]);
        migration.migrate.wait().assert(1, &["runs at the source"]);
        guest.assert_healthy();
        migration.destination.kill();
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}
