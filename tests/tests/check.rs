//! `hikkoshi check`, the command line for a destination, and `migrate --quit-source`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{QemuVersion, VmConfig, Workload};
use hikkoshi_tests::{
    Guest, JsonSchema, Program, QemuState, TestEnv, address_in, assert_refused, eventually,
    hikkoshi, unique_address,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

fn light_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(5000).option("every_ms", 200))
}

/// Runs `hikkoshi check` with JSON, which must be as published, on a guest that stays unchanged.
fn check(guest: &Guest<'_>, code: i32, more: &[&str]) -> Value {
    let before = QemuState::of(guest.vm());
    let mut command = Command::new(hikkoshi());
    command.args(["check", "--json", "-", "--qmp"]);
    command.arg(guest.vm().qmp_path()).args(more);
    let exit = Program::start("check", command).wait();
    exit.assert(code, &[]);
    before.assert_unchanged(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
    JsonSchema::published().assert("check", exit.stdout.trim())
}

#[test]
fn a_guest_that_can_be_moved_and_a_destination_that_is_asked() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let found = check(&guest, 0, &[]);
    assert_eq!(found["modes"], json!(["precopy", "postcopy", "hybrid"]));
    assert_eq!(found["obstacles"], json!([]));
    assert_eq!(found["destination"], Value::Null);
    assert!(!found["disks"].as_array().unwrap().is_empty(), "{found}");

    let there = guest
        .config()
        .clone()
        .console(guest.vm().console().clone())
        .incoming()
        .start(env.lab(), "asked")
        .unwrap();
    let mut receive = Command::new(hikkoshi());
    receive.args(["receive", "--listen", &unique_address(), "--invite"]);
    receive.arg("--journal").arg(env.folder().join("journal"));
    receive.arg("--qmp").arg(there.qmp_path());
    let receive = Program::start("receive", receive);
    let invitation = receive.wait_stdout("hikkoshi1:");
    // It is not used up, however often it is asked.
    for _ in 0..2 {
        let found = check(&guest, 0, &["--to", &invitation]);
        assert_eq!(found["destination"]["compared"], true);
        assert_eq!(found["destination"]["obstacles"], json!([]));
        receive.wait_stderr("which can be moved here");
    }
    let mut migrate = Command::new(hikkoshi());
    migrate.args(["migrate", "--to", &invitation, "--qmp"]);
    migrate.arg(guest.vm().qmp_path());
    migrate.arg("--journal").arg(env.folder().join("journal"));
    Program::start("migrate", migrate).wait().assert(0, &[]);
    guest.set_vm(std::sync::Arc::new(there));
    guest.assert_healthy();
}

#[test]
fn every_obstacle_is_named_by_check_and_by_migrate() {
    let env = TestEnv::new();
    let socket = env.folder().join("crypto");
    let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
    let device = [
        "-chardev",
        &chardev,
        "-object",
        "cryptodev-vhost-user,id=v,chardev=c",
    ];
    let guest = Guest::start(
        &env,
        light_guest()
            .ram_directory(env!("CARGO_TARGET_TMPDIR"))
            .arguments(device),
    );
    let qmp = guest.vm().qmp();
    for node in ["from", "to"] {
        let disk = json!({ "driver": "null-co", "node-name": node, "size": 1 << 30 });
        qmp.execute("blockdev-add", disk).unwrap();
    }
    let backup = json!({ "job-id": "bk", "device": "from", "target": "to", "sync": "full",
                         "speed": 1 });
    qmp.execute("blockdev-backup", backup).unwrap();
    let parts = ["cryptodev-vhost-user", "block job 'bk'", "neither on tmpfs"];
    let found = check(&guest, 1, &[]);
    assert_eq!(found["can_be_moved"], false);
    let texts = found["obstacles"].to_string();
    for part in parts {
        assert!(texts.contains(part), "{part:?} is not in {texts}");
    }
    let path = guest.vm().qmp_path().to_str().unwrap();
    assert_refused(&["migrate", "unix:/nowhere", "--qmp", path], 1, &parts);
}

/// The printed line, adapted as its comments say, starts a QEMU into which the guest moves.
#[test]
fn the_printed_command_line_starts_a_destination() {
    for version in QemuVersion::ALL {
        let env = TestEnv::new();
        let guest = Guest::boot(&env, light_guest().version(version));
        let mut command = Command::new(hikkoshi());
        command.args(["check", "--print-destination", "--qmp"]);
        command.arg(guest.vm().qmp_path());
        let exit = Program::start("check", command).wait();
        exit.assert(0, &[]);
        let line = exit.stdout;
        assert!(line.contains("never the same file"), "{line}");
        assert!(line.contains("-machine pc-"), "{line}");
        // Sockets and RAM of its own, by other names.
        let line = line.replace("host0", "host1");
        let mut listeners = Vec::new();
        for name in ["console", "harness"] {
            let path = env.lab().folder().join(format!("host1.{name}"));
            listeners.push(UnixListener::bind(path).unwrap());
        }
        for file in guest.vm().ram_files() {
            let own = file.to_str().unwrap().replace("host0", "host1");
            assert_ne!(own, file.to_str().unwrap(), "the RAM file's name");
        }
        let mut there = Ended(start_line(&line, guest.vm().pid()));
        let qmp = env.lab().folder().join("host1.qmp");
        eventually("the destination's monitor", || {
            std::os::unix::net::UnixStream::connect(&qmp)
                .map(drop)
                .map_err(|error| format!("{error}; {line}"))
        });
        let socket = env.unused_socket();
        let mut receive = Command::new(hikkoshi());
        receive
            .args(["receive", "--listen", &socket, "--qmp"])
            .arg(&qmp);
        receive.arg("--journal").arg(env.folder().join("journal"));
        let mut receive = Program::start("receive", receive);
        let listening = receive.wait_stderr("waiting for a guest at ");
        let mut migrate = Command::new(hikkoshi());
        migrate.args(["migrate", address_in(&listening), "--quit-source", "--qmp"]);
        migrate.arg(guest.vm().qmp_path());
        migrate.arg("--journal").arg(env.folder().join("journal"));
        Program::start("migrate", migrate).wait().assert(0, &[]);
        receive.wait().assert(0, &["the guest runs here"]);
        assert!(there.0.try_wait().unwrap().is_none());
        eventually("the source's QEMU has ended", || {
            guest
                .vm()
                .exit_status()
                .map(drop)
                .ok_or("it runs".to_owned())
        });
        drop((there, listeners));
        std::mem::forget(guest);
    }
}

/// A QEMU that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the line with the libraries of the source's QEMU.
fn start_line(line: &str, source: u32) -> Child {
    let environment = fs::read(format!("/proc/{source}/environ")).unwrap();
    let mut shell = Command::new("sh");
    for pair in environment.split(|byte| *byte == 0) {
        if let Some((name, value)) = String::from_utf8_lossy(pair).split_once('=') {
            shell.env(name, value);
        }
    }
    // The shell becomes QEMU.
    let line = line.lines().filter(|line| !line.starts_with('#'));
    let script = format!("exec {}", line.collect::<Vec<_>>().join("\n"));
    shell.args(["-c", &script]).stdin(Stdio::null());
    shell.spawn().unwrap()
}
