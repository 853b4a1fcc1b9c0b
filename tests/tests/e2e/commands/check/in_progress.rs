//! A guest whose migration is in progress, or has ended.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hikkoshi_lab::Vm;
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, MigrationPlan, Program, TestEnv, assert_refused, hikkoshi,
};
use serde_json::{Value, json};

use super::{json_of, light_guest, obstacles, run};

/// Another monitor of the same QEMU, while a migration is in progress, and while QEMU itself
/// migrates.
#[test]
#[ignore = "as the same of the crate: make test-control"]
fn a_migration_in_progress() {
    let env = TestEnv::new();
    let second = env.folder().join("second");
    let monitor = format!("unix:{},server=on,wait=off", second.display());
    let mut guest = Guest::boot(&env, light_guest().arguments(["-qmp", &monitor]));
    let there = light_guest().disk(guest.config().disks()[0].clone());
    let plan = MigrationPlan::new("precopy").destination_config(there);
    let migration =
        guest.start_migration(&plan.hold_at(Breakpoint::after(MessageKind::Pages).nth(10)));
    migration.wait_held();
    let found = json_of(&second, 1);
    let texts = obstacles(&found);
    assert!(
        texts.contains("another hikkoshi process is migrating this guest"),
        "{texts}"
    );
    assert!(!found["notes"].to_string().contains("killed"), "{found}");
    // Nor can it be measured now.
    let measure = ["dirty-rate", "--qmp", second.to_str().unwrap()];
    assert_refused(
        &measure,
        1,
        &["another hikkoshi process is migrating this guest"],
    );
    let journals = &migration.journal_folders()[0];
    let unfinished = |folder: &Path| {
        let more = ["--json", "-", "--journal", folder.to_str().unwrap()];
        let found = serde_json::from_str::<Value>(&run(&second, 1, &more)).unwrap();
        obstacles(&found).contains("handed over by an earlier migration, which is not finished")
    };
    assert!(!unfinished(journals), "it was not handed over");
    // Copies of its journal, as if it had been.
    let handed_over = copied_journal(journals, &env.folder().join("handed-over"), "handed_over");
    assert!(unfinished(handed_over.parent().unwrap()));
    let done = copied_journal(journals, &env.folder().join("done"), "done");
    // Its own monitor is in use.
    let path = guest.vm().qmp_path().to_str().unwrap();
    assert_refused(&["check", "--qmp", path], 1, &["one client at a time"]);
    migration.relay().release();
    let source = Arc::clone(guest.vm());
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
    only_the_source_is_left(&source, &done);

    let qmp = guest.vm().qmp();
    // Bytes per second, of which QEMU takes a tenth, rounded down; 0 is no limit.
    let slow = json!({ "max-bandwidth": 100_000 });
    qmp.execute("migrate-set-parameters", slow).unwrap();
    qmp.execute("migrate", json!({ "uri": "exec:cat >/dev/null" }))
        .unwrap();
    let found = json_of(guest.vm().qmp_path(), 1);
    assert!(
        obstacles(&found).contains("QEMU already has a migration"),
        "{found}"
    );
}

/// A copy of the source's journal in `folder` that says that the migration is at this stage.
fn copied_journal(folder: &Path, to: &Path, stage: &str) -> PathBuf {
    let mut files = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let is_journal = |name: &str| name.starts_with("source-") && name.ends_with(".json");
    let found = files.find(|file| is_journal(file.file_name().to_str().unwrap()));
    let found = found.unwrap();
    let mut journal: Value = serde_json::from_slice(&std::fs::read(found.path()).unwrap()).unwrap();
    journal["engine"]["stage"] = stage.into();
    std::fs::create_dir(to).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = to.join(found.file_name());
    std::fs::write(&path, journal.to_string()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// An engine with `--quit-source` that was killed when every page had arrived: its guard says that
/// only the source's QEMU is left, and resuming ends that.
fn only_the_source_is_left(source: &Vm, journal: &Path) {
    let mut guard = Command::new(hikkoshi());
    guard.args(["guard", "--journal"]).arg(journal);
    // The end of its input is that of the engine.
    let exit = Program::start_with_input("guard", guard, "").wait();
    exit.assert(0, &["with all of its pages", "hikkoshi migrate --resume="]);
    assert!(!exit.stderr.contains("receive"), "{exit:?}");
    assert!(source.exit_status().is_none());
    let mut resume = Command::new(hikkoshi());
    resume
        .arg("migrate")
        .arg(format!("--resume={}", journal.display()));
    resume.arg("--quit-source");
    let exit = Program::start("migrate --resume", resume).wait();
    exit.assert(0, &[]);
    source.wait_exit(LONG).unwrap();
    assert!(!journal.exists());
}
