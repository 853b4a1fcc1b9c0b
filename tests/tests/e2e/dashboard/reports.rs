//! Reports of real migrations: `--report` at both engines, and `hikkoshi report`, read in a
//! browser.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hikkoshi_account::Side;
use hikkoshi_dashboard::recordings_in;
use hikkoshi_status::{Recording, StatusEntry, StatusEntryKind, StatusFolder};
use hikkoshi_tests::{
    Breakpoint, Exit, Guest, JsonReport, LONG, MessageKind, MigrationPlan, Program, ShownPage,
    TestEnv, busy_guest, count, eventually, hikkoshi,
};

use super::run_folder;

/// How late the source is told that the guest runs.
const LATE: Duration = Duration::from_millis(500);

/// Runs `hikkoshi report` to its end.
pub(crate) fn report(run_folder: &Path, output: &Path, files: &[&Path]) -> Exit {
    let mut command = Command::new(hikkoshi());
    command.arg("report").args(files);
    command.arg("--output").arg(output);
    command.arg("--journal").arg(run_folder);
    Program::start("report", command).wait()
}

/// A plan whose engines write reports, and the files: the source's, the destination's.
fn plan_with_reports(
    env: &TestEnv,
    mode: &'static str,
    name: &str,
) -> (MigrationPlan, [PathBuf; 2]) {
    let run_folder = run_folder(env);
    let files =
        ["source", "destination"].map(|side| env.folder().join(format!("{name}-{side}.html")));
    let plan = MigrationPlan::new(mode)
        .journals_at(&run_folder, &run_folder)
        .migrate_args(&["--report", files[0].to_str().unwrap()])
        .receive_args(&["--report", files[1].to_str().unwrap()]);
    (plan, files)
}

/// The recordings in a report.
fn recordings(file: &Path) -> Vec<Recording> {
    let page =
        std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(recordings_in(&page).unwrap()).unwrap()
}

/// The sides in a report with their exit statuses, the source first.
fn sides(file: &Path) -> Vec<(Side, Option<u8>)> {
    let recordings = recordings(file);
    let id = &recordings[0].migration.id;
    assert!(recordings.iter().all(|of| of.migration.id == *id));
    let of = |side: Side| {
        let mut found = recordings.iter();
        let found = found.find(|of| of.migration.side == side)?;
        Some((side, found.end.as_ref().map(|end| end.exit_status)))
    };
    let sides: Vec<_> = [Side::Source, Side::Destination]
        .into_iter()
        .filter_map(of)
        .collect();
    assert_eq!(sides.len(), recordings.len(), "each side once");
    sides
}

/// The engine has said where its report is.
fn assert_said(exit: &Exit, file: &Path) {
    let said = format!("the report is in {}", file.display());
    assert!(exit.stderr.contains(&said), "no {said:?} in {exit:?}");
}

fn open(shown: &ShownPage, file: &Path) {
    shown.open(&format!("file://{}", file.display()));
    shown.wait("the views", "document.querySelector('article h2')");
}

/// The cells of a row behind its name.
fn row(rows: &[Vec<String>], name: &str) -> Vec<String> {
    let row = rows.iter().find(|row| row[0] == name);
    row.unwrap_or_else(|| panic!("no row {name}: {rows:?}"))[1..].to_vec()
}

/// A number as the page writes it: `what` is a function of `web/js/format.js`.
fn shown_as(shown: &ShownPage, what: &str, value: f64) -> String {
    let text = shown.evaluate(&format!("hikkoshi.format.{what}({value})"));
    text.as_str().unwrap().to_owned()
}

/// Waits until the status folder has this many running migrations with a file.
fn wait_for_running(run_folder: &Path, number: usize) {
    let folder = StatusFolder::in_run_folder(run_folder);
    eventually("the files of running migrations", || {
        let entries = folder.entries().map_err(|error| error.to_string())?;
        let has = |name: &str, kind| {
            let mut entries = entries.iter();
            entries.any(|entry: &StatusEntry| entry.kind == kind && entry.name == name)
        };
        let running = entries.iter().filter(|entry| {
            entry.kind == StatusEntryKind::Socket && has(&entry.name, StatusEntryKind::File)
        });
        match running.count() == number {
            true => Ok(()),
            false => Err(format!("{entries:?}")),
        }
    });
}

/// The source was told late that the guest runs, and when that was. Links without TCP have no round
/// trip to add.
fn assert_likely_downtime(here: &JsonReport, there: &JsonReport) {
    let likely = here.likely_downtime_ms.unwrap();
    let resume_time = there.step_ms("guest runs") - there.step_ms("commit received");
    let runs = here.step_ms("committed") + resume_time;
    assert!((likely - runs).abs() < 0.01, "{runs}: {here:?} {there:?}");
    assert!(
        here.downtime_ms.unwrap() >= LATE.as_secs_f64() * 1e3,
        "{here:?}"
    );
    assert!(likely < here.downtime_ms.unwrap(), "{here:?}");
    assert_eq!(there.likely_downtime_ms, None);
}

/// A migration is cancelled, and the guest is moved afterwards. Both engines write a report each
/// time, and `hikkoshi report` makes one of what has ended, of files, and of nothing else.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_cancelled_migration_and_a_move_are_reported() {
    let env = TestEnv::new();
    let run_folder = run_folder(&env);
    let last = env.folder().join("last.html");
    let mut guest = Guest::boot(&env, busy_guest());

    let (plan, cancelled) = plan_with_reports(&env, "precopy", "cancelled");
    let mut migration =
        guest.start_migration(&plan.hold_at(Breakpoint::after(MessageKind::Pages).nth(20)));
    migration.wait_held();
    // A migration that runs has a file, too, and has not ended.
    wait_for_running(&run_folder, 2);
    let exit = report(&run_folder, &last, &[]);
    exit.assert(2, &["no migration has ended on this host"]);
    assert!(!last.exists());
    migration.migrate.interrupt();
    migration.migrate.wait();
    migration.relay().release();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["cancelled", "runs at the source"]);
    guest.assert_stayed(finished, "cancelled with a report");
    assert_said(&exits.migrate, &cancelled[0]);
    assert_said(&exits.receive, &cancelled[1]);
    // Each has its own side, and the other one if that had ended before.
    let both = [(Side::Source, Some(1)), (Side::Destination, Some(1))];
    assert!(sides(&cancelled[0]).contains(&both[0]));
    assert!(sides(&cancelled[1]).contains(&both[1]));
    report(&run_folder, &last, &[]).assert(0, &[]);
    assert_eq!(sides(&last), both);

    // The destination ends when the source has ended: its report has both sides.
    let (plan, moved) = plan_with_reports(&env, "hybrid", "moved");
    let plan = plan.delay(MessageKind::GuestResumed, LATE);
    let mut migration =
        guest.start_migration(&plan.hold_at(Breakpoint::before(MessageKind::Goodbye)));
    migration.wait_held();
    migration.migrate.wait();
    migration.relay().release();
    let (exits, finished) = migration.wait();
    let here = guest.complete_migration(&exits, finished, "running");
    let there = exits.json_reports[1].as_ref().unwrap();
    assert_likely_downtime(&here, there);
    assert_said(&exits.migrate, &moved[0]);
    assert_said(&exits.receive, &moved[1]);
    let both = [(Side::Source, Some(0)), (Side::Destination, Some(0))];
    assert_eq!(sides(&moved[0]), both[..1]);
    assert_eq!(sides(&moved[1]), both);
    let exit = report(&run_folder, &last, &[]);
    exit.assert(0, &[]);
    assert!(exit.stdout.contains("the report is in "), "{exit:?}");
    assert_eq!(sides(&last), both);
    assert_eq!(
        recordings(&last)[0].migration.id,
        here.engine().migration_id
    );

    // What is shown is what `--json` says.
    let shown = ShownPage::start();
    for file in [&moved[1], &last] {
        open(&shown, file);
        assert_eq!(shown.browser.text(".phase").unwrap(), "✓ Moved");
        assert_eq!(row(&shown.table("Result"), "Result"), ["moved"]);
        let rows = shown.table("Pages and page requests");
        for (name, value) in [
            ("Pages sent in pre-copy", here.pages.precopy),
            ("Pages sent as zero", here.pages.zero),
            ("Urgent pages", here.pages.urgent),
            ("Background pages", here.pages.background),
        ] {
            assert_eq!(row(&rows, name), [count(value)], "{name}");
        }
        let requests = &there.requests.request_latency_us;
        assert_eq!(row(&rows, "Page requests"), [count(requests.count)]);
        let rows = shown.table("Time and data");
        let bytes = &here.bytes;
        let bytes = bytes.precopy + bytes.urgent + bytes.background + bytes.device_state;
        let bytes = shown_as(&shown, "bytes", bytes as f64);
        assert_eq!(row(&rows, "Bytes sent"), [bytes]);
        let [likely, most] = [here.likely_downtime_ms.unwrap(), here.downtime_ms.unwrap()]
            .map(|ms| shown_as(&shown, "duration", ms));
        let downtime = format!("about {likely}, at most {most}");
        assert_eq!(row(&rows, "Guest paused for")[..], [&*downtime]);
        assert!(shown.fact("Paused for").starts_with(&downtime));
        shown.assert_clean();
    }

    // Two migrations, of a report and of a result.
    let compared = env.folder().join("compared.html");
    let result = env.folder().join("migrate.json2");
    report(&run_folder, &compared, &[&cancelled[0], &result]).assert(0, &[]);
    open(&shown, &compared);
    assert_eq!(shown.evaluate("document.title"), "2 migrations");
    let rows = shown.table("Migrations");
    assert_eq!(row(&rows, "Result"), ["stays at the source", "moved"]);
    assert!(
        row(&rows, "What happened")[0].contains("cancelled"),
        "{rows:?}"
    );
    assert_eq!(row(&rows, "Urgent pages")[1], count(here.pages.urgent));
    shown.assert_clean();

    refuses(&run_folder, env.folder(), &last);
    received_nothing(&env, &guest);
}

/// What `hikkoshi report` refuses, by its exit status; `good` is a report.
fn refuses(run_folder: &Path, folder: &Path, good: &Path) {
    let [output, other, missing] =
        ["refused.html", "other.html", "missing.html"].map(|name| folder.join(name));
    std::fs::write(&other, "<!doctype html>\n").unwrap();
    let exit = report(run_folder, &output, &[good, &missing]);
    exit.assert(2, &["missing.html"]);
    let exit = report(run_folder, &output, &[&other, good]);
    exit.assert(2, &["a page without recordings"]);
    assert!(!output.exists());
    let exit = report(run_folder, &folder.join("none/a.html"), &[good]);
    exit.assert(2, &["writing the report to"]);
    // On standard output there is only the page.
    let exit = report(run_folder, "-".as_ref(), &[good]);
    exit.assert(0, &[]);
    assert!(exit.stdout.starts_with("<!doctype html>"));
    assert!(exit.stdout.trim_end().ends_with("</html>"));
}

/// A destination to which no source has connected has nothing to report, and says so.
fn received_nothing(env: &TestEnv, guest: &Guest<'_>) {
    let there = guest.config().clone().incoming();
    let there = there.start(env.lab(), "nobody").unwrap();
    let file = env.folder().join("nothing.html");
    let mut command = Command::new(hikkoshi());
    let listen = format!("unix:{}", env.folder().join("nobody.sock").display());
    command.args(["receive", "--listen", &listen, "--qmp"]);
    command.arg(there.qmp_path()).arg("--report").arg(&file);
    command.arg("--journal").arg(run_folder(env));
    let mut receive = Program::start("receive", command);
    receive.wait_stderr("waiting for a guest at ");
    receive.interrupt();
    receive
        .wait()
        .assert(1, &["no report was written to", "no migration had begun"]);
    assert!(!file.exists());
}

/// The destination's QEMU ends in post-copy: the reports say that the guest is lost. And a source
/// that reaches nobody has a report, too.
#[test]
#[ignore = "a guest is lost: make drills"]
fn a_lost_guest_and_a_source_that_reaches_nobody_are_reported() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let file = env.folder().join("nobody.html");
    let nobody = format!("unix:{}", env.folder().join("nobody.sock").display());
    let mut command = Command::new(hikkoshi());
    command
        .args(["migrate", &nobody, "--qmp"])
        .arg(guest.vm().qmp_path());
    command.arg("--journal").arg(run_folder(&env));
    command.arg("--report").arg(&file);
    let exit = Program::start("migrate", command).wait();
    exit.assert(1, &["the guest still runs at the source"]);
    assert_said(&exit, &file);
    assert_eq!(sides(&file), [(Side::Source, Some(1))]);
    guest.assert_healthy();

    let (plan, lost) = plan_with_reports(&env, "postcopy", "lost");
    let mut migration =
        guest.start_migration(&plan.hold_at(Breakpoint::after(MessageKind::Request).nth(20)));
    migration.wait_held();
    migration.destination.kill();
    migration.destination.wait_exit(LONG).unwrap();
    migration.relay().release();
    let migrate = migration.migrate.wait();
    migrate.assert(4, &["the guest is lost"]);
    let receive = migration.receive.wait();
    receive.assert(4, &["the guest is lost"]);
    assert_said(&migrate, &lost[0]);
    assert_said(&receive, &lost[1]);
    assert!(sides(&lost[0]).contains(&(Side::Source, Some(4))));
    assert!(sides(&lost[1]).contains(&(Side::Destination, Some(4))));
    let shown = ShownPage::start();
    for file in &lost {
        open(&shown, file);
        assert_eq!(shown.browser.text(".phase").unwrap(), "✕ Guest lost");
        assert_eq!(row(&shown.table("Result"), "Result"), ["guest lost"]);
        shown.assert_clean();
    }
}
