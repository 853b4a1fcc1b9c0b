//! A journal belongs to one QEMU process, and messages about a migration that has ended or was
//! interrupted are correct.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_lab::Vm;
use hikkoshi_tests::{
    Breakpoint, Exit, Guest, LONG, MessageKind, MigrationPlan, Program, TestEnv, Transport,
    busy_guest, hikkoshi, left_in,
};
use std::path::Path;
use std::process::Command;

/// Runs `hikkoshi` with these arguments, for that QEMU and with journals in that folder.
pub(crate) fn run(words: &[&str], qmp: &Path, journal: &Path) -> Exit {
    let mut command = Command::new(hikkoshi());
    command.args(words).arg("--qmp").arg(qmp);
    command.arg("--journal").arg(journal);
    Program::start(words[0], command).wait()
}

/// The child processes of a process.
pub(crate) fn children(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect()
}

fn is_running(vm: &Vm) {
    assert_eq!(vm.status().unwrap(), "running", "{}", vm.name());
}

/// A new `hikkoshi migrate` starts right after another one was killed in pre-copy: it waits for the
/// guard process of the other one, or undoes its changes itself if the guard was killed, too.
#[test]
fn a_migration_right_after_one_that_was_killed() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let journal = env.folder().join("journal");
    for guarded in [true, false, true, false] {
        let breakpoint = Breakpoint::after(Pages).nth(20);
        let mut migration =
            guest.start_migration(&MigrationPlan::new("precopy").hold_at(breakpoint));
        migration.wait_held();
        if !guarded {
            for child in children(migration.migrate.pid()) {
                let pid = rustix::process::Pid::from_raw(child).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        }
        migration.migrate.kill();
        // Its only error is that no destination listens at that address.
        let again = run(
            &["migrate", &env.unused_socket()],
            guest.vm().qmp_path(),
            &journal,
        );
        again.assert(1, &["connecting to the destination", "runs at the source"]);
        is_running(guest.vm());
        migration.relay().cut();
        let (_, finished) = migration.wait();
        finished.destination.kill();
        let left = left_in(&journal);
        assert!(
            left.is_empty(),
            "no journal, and no lock beside it: {left:?}"
        );
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// After a post-copy migration both QEMUs have ended. Other QEMUs use their sockets now, and the
/// journals do not apply to them.
#[test]
#[ignore = "others of its kind run in CI: make drills"]
fn other_qemus_at_the_same_sockets() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let breakpoint = Breakpoint::after(Pages).nth(300);
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .hold_at(breakpoint);
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.receive.kill();
    migration.migrate.kill();
    migration.relay().cut();
    let journal = env.folder().join("journal");
    for vm in [guest.vm(), &migration.destination] {
        vm.kill();
        vm.wait_exit(LONG).unwrap();
        // The lab's listening sockets; the next QEMU has the same name.
        for what in ["console", "harness"] {
            let path = env.folder().join(format!("{}.{what}", vm.name()));
            std::fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(migration.journals().len(), 2);
    let other = busy_guest().start(env.lab(), guest.vm().name()).unwrap();
    let empty = busy_guest()
        .incoming()
        .start(env.lab(), migration.destination.name());
    let empty = empty.unwrap();
    let resumed = run(&["migrate", "--resume"], other.qmp_path(), &journal);
    resumed.assert(
        1,
        &[
            "no journal of an unfinished migration",
            "the guest runs here",
        ],
    );
    is_running(&other);
    let resumed = run(&["receive", "--resume"], empty.qmp_path(), &journal);
    resumed.assert(1, &["waits for a guest", "none was handed over to it"]);
    // No message suggests to end a QEMU.
    for side in ["migrate", "receive"] {
        let dead = journal_of(&journal, side);
        let mut command = Command::new(hikkoshi());
        command
            .arg(side)
            .arg(format!("--resume={}", dead.display()));
        let ended = Program::start(side, command).wait();
        assert!(matches!(ended.code, Some(3 | 4)), "{ended:?}");
        for advice in ["end its QEMU", "end this QEMU", "end it"] {
            assert!(!ended.stderr.contains(advice), "{ended:?}");
        }
    }
    // The other guest is not mistaken for the one that has moved.
    let away = run(
        &["migrate", &env.unused_socket()],
        other.qmp_path(),
        &journal,
    );
    away.assert(1, &["connecting to the destination"]);
    is_running(&other);
}

fn journal_of(folder: &Path, side: &str) -> std::path::PathBuf {
    let prefix = match side {
        "migrate" => "source-",
        _ => "destination-",
    };
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let ours = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(prefix) && name.ends_with(".json")
    };
    files.into_iter().find(ours).unwrap()
}

/// `--resume` without an interrupted migration, for a guest that has not moved and for one that
/// has.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn nothing_to_resume() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let journal = env.folder().join("journal");
    std::fs::create_dir(&journal).unwrap();
    let source = std::sync::Arc::clone(guest.vm());
    let resumed = run(&["migrate", "--resume"], source.qmp_path(), &journal);
    resumed.assert(1, &["the guest runs here"]);
    source.stop().unwrap();
    let resumed = run(&["migrate", "--resume"], source.qmp_path(), &journal);
    resumed.assert(1, &["the guest is here (its state is paused)"]);
    source.cont().unwrap();
    guest.migrate(&MigrationPlan::new("hybrid"));
    let resumed = run(&["migrate", "--resume"], source.qmp_path(), &journal);
    let moved = "the guest has moved to its destination, which needs nothing more from here: there \
                 is nothing to resume. Never continue it here, and end this QEMU (QMP command \
                 'quit')";
    resumed.assert(0, &[moved]);
    let again = run(
        &["migrate", &env.unused_socket()],
        source.qmp_path(),
        &journal,
    );
    let moved = "the guest's state is moved away by hikkoshi, and only running or paused guests can \
                 be moved: it has moved to its destination, which needs nothing more from here";
    again.assert(2, &[moved, "never resume it here", "nothing was changed"]);
    let resumed = run(&["receive", "--resume"], guest.vm().qmp_path(), &journal);
    resumed.assert(0, &["the guest runs here, with all of its pages"]);
    // A QEMU that has a guest does not accept a second one.
    let second = run(
        &["receive", "--listen", &env.unused_socket()],
        guest.vm().qmp_path(),
        &journal,
    );
    second.assert(
        2,
        &[
            "its state is running",
            "leave it alone",
            "nothing was changed",
        ],
    );
    assert!(!second.stderr.contains("runs at the source"), "{second:?}");
    is_running(guest.vm());
}

/// A QEMU that has received nothing accepts a guest at the next attempt; one that has received part
/// of a guest does not. A source whose QEMU has ended has no guest.
#[test]
fn a_destination_after_a_try_that_failed() {
    let env = TestEnv::new();
    let vm = busy_guest().incoming().start(env.lab(), "there").unwrap();
    for _ in 0..2 {
        let mut receive = Command::new(hikkoshi());
        receive.args(["receive", "--listen", &env.unused_socket(), "--qmp"]);
        receive.arg(vm.qmp_path());
        let mut receive = Program::start("receive", receive);
        receive.wait_stderr("waiting for a guest at ");
        receive.interrupt();
        let what = ["the guest stays at the source", "can still receive a guest"];
        receive.wait().assert(1, &what);
    }
    let mut guest = Guest::boot(&env, busy_guest());
    let hold = MigrationPlan::new("precopy").hold_at(Breakpoint::after(Pages).nth(20));
    let migration = guest.start_migration(&hold);
    migration.wait_held();
    guest.vm().kill();
    guest.vm().wait_exit(LONG).unwrap();
    migration.relay().release();
    let (exits, _) = migration.wait();
    exits.assert_source(1, &["the source's QEMU has ended, and the guest with it"]);
    exits.assert_destination(1, &["the source reports where it is", "restart this QEMU"]);
    assert!(
        !exits.receive.stderr.contains("stays at the source"),
        "{exits:?}"
    );
}
