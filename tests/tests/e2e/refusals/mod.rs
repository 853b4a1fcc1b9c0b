//! What is refused: with a helpful message, with the correct exit code, and without changing the
//! guest.

#![allow(clippy::unwrap_used)] // a test's failure is the message

mod cpu_compatibility;
mod destinations;
mod kernels;
mod privileges;

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use hikkoshi_lab::{Mount, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, Program, QemuState, TestEnv, assert_refused,
    hikkoshi,
};
use serde_json::json;

/// What is said of the guest, whatever it does.
const UNCHANGED: &str = "nothing was changed";

fn light_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(5000).option("every_ms", 200))
}

/// Starts a machine without waiting for its guest.
fn start_guest(env: &TestEnv, config: VmConfig) -> Guest<'_> {
    Guest::start(env, config)
}

/// Asserts that `hikkoshi migrate` refuses this guest, and changes nothing.
fn source_refused(guest: &Guest<'_>, code: i32, parts: &[&str]) {
    let before = QemuState::of_vm(guest.vm());
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let mut parts = parts.to_vec();
    parts.push(UNCHANGED);
    assert_refused(&["migrate", "unix:/nowhere", "--qmp", qmp], code, &parts);
    before.assert_unchanged(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
}

#[test]
fn memory_on_an_unknown_file_system() {
    let env = TestEnv::new();
    let unknown = Mount::ramfs(env.lab(), "unknown").unwrap();
    let guest = start_guest(&env, light_guest().ram_directory(unknown.path()));
    source_refused(&guest, 1, &["which is not on tmpfs, hugetlbfs, ext4"]);
}

#[test]
fn a_device_of_another_process() {
    let env = TestEnv::new();
    let socket = env.folder().join("crypto");
    let chardev = format!("socket,id=c,path={},server=on,wait=off", socket.display());
    let device = [
        "-chardev",
        &chardev,
        "-object",
        "cryptodev-vhost-user,id=v,chardev=c",
    ];
    let guest = start_guest(&env, light_guest().arguments(device));
    source_refused(&guest, 1, &["cryptodev-vhost-user", "unplug it"]);
}

#[test]
fn a_block_job_that_is_running() {
    let env = TestEnv::new();
    let guest = start_guest(&env, light_guest());
    let qmp = guest.vm().qmp();
    for node in ["from", "to"] {
        let disk = json!({ "driver": "null-co", "node-name": node, "size": 1 << 30 });
        qmp.execute("blockdev-add", disk).unwrap();
    }
    let backup = json!({ "job-id": "bk", "device": "from", "target": "to", "sync": "full",
                         "speed": 1 });
    qmp.execute("blockdev-backup", backup).unwrap();
    source_refused(
        &guest,
        1,
        &["block job 'bk' (backup) is running", "wait for it"],
    );
}

#[test]
fn sockets_without_qmp_or_in_use() {
    let env = TestEnv::new();
    let path = |name: &str| env.folder().join(name).to_str().unwrap().to_owned();
    let both = |qmp: &str, parts: &[&str]| {
        assert_refused(&["migrate", "unix:/nowhere", "--qmp", qmp], 1, parts);
        assert_refused(
            &["receive", "--listen", &env.unused_socket(), "--qmp", qmp],
            1,
            parts,
        );
    };
    both(&path("nothing"), &["connecting to the QMP socket"]);

    let plain = path("plain");
    std::fs::write(&plain, "").unwrap();
    both(&plain, &["connecting to the QMP socket"]);

    let monitor = path("monitor");
    let listener = UnixListener::bind(&monitor).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"QEMU 10.0 monitor - type 'help'\n(qemu) ");
        }
    });
    both(&monitor, &["not a QMP socket"]);

    let guest = Guest::boot(&env, light_guest());
    let busy = guest.vm().qmp_path().to_str().unwrap();
    let holder = UnixStream::connect(busy).unwrap();
    assert_refused(
        &["migrate", "unix:/nowhere", "--qmp", busy],
        1,
        &["no greeting", "one client at a time", UNCHANGED],
    );
    drop(holder);
    guest.assert_healthy();
}

/// Unknown clients are rejected, and the expected source is accepted.
#[test]
fn unknown_clients_at_the_destination() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let plan = MigrationPlan::new("hybrid").hold_at(Breakpoint::before(MessageKind::HelloControl));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    let address = migration
        .listen_address()
        .strip_prefix("unix:")
        .unwrap()
        .to_owned();
    for words in [
        &b"GET / HTTP/1.1\r\nHost: nowhere.example.org\r\n\r\n"[..],
        &[0; 200],
        b"x",
    ] {
        let mut stranger = UnixStream::connect(&address).unwrap();
        stranger.write_all(words).unwrap();
    }
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}

/// A second `hikkoshi migrate` for a guest that is being migrated.
#[test]
fn two_sources_at_once() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let migration = guest.start_migration(
        &MigrationPlan::new("precopy").hold_at(Breakpoint::after(MessageKind::Pages).nth(10)),
    );
    migration.wait_held();
    // The second one finds QMP in use, and changes nothing.
    let mut second = Command::new(hikkoshi());
    second.args(["migrate", "unix:/nowhere", "--qmp"]);
    second.arg(guest.vm().qmp_path());
    let ended = Program::start("second", second).wait();
    ended.assert(1, &["one client at a time", UNCHANGED]);
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}
