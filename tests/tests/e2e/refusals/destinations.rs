//! Destinations that do not listen, or that the guest does not fit into.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::Command;

use hikkoshi_lab::{Mount, Ram, VmConfig};
use hikkoshi_tests::{
    Guest, MigrationPlan, QemuState, TestEnv, assert_command_refused, assert_refused, copy_hikkoshi,
};

use super::{light_guest, start_guest};

/// A TCP port of this machine on which no socket listens as long as the returned socket exists.
fn closed_port() -> (OwnedFd, String) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address.to_string())
}

#[test]
fn a_destination_that_does_not_listen() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let qmp = guest.vm().qmp_path().to_str().unwrap().to_owned();
    let before = QemuState::of_vm(guest.vm());
    // Bound, so that no other process can use the port.
    let (_bound, port) = closed_port();
    let why = [
        "there is no such socket: does 'hikkoshi receive' run there?",
        "runs at the source",
    ];
    assert_refused(&["migrate", &env.unused_socket(), "--qmp", &qmp], 1, &why);
    let closed = [
        &port,
        "Connection refused",
        "does 'hikkoshi receive' run there, and listen on this port?",
        "runs at the source",
    ];
    assert_refused(&["migrate", &port, "--qmp", &qmp], 1, &closed);
    // The program's file has been replaced by an upgrade; the guard process is started
    // nevertheless.
    let copy = env.folder().join("hikkoshi");
    copy_hikkoshi(&copy);
    let program = std::fs::File::open(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let mut replaced = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    replaced.args(["migrate", &env.unused_socket(), "--qmp", &qmp]);
    assert_command_refused(replaced, 1, &why);
    // Too long for a host name, so it is refused without a network query.
    let unknown = format!("{}.invalid:7000", "a".repeat(64));
    assert_refused(
        &["migrate", &unknown, "--qmp", &qmp],
        2,
        &["cannot look up the host", "getent hosts aaaa"],
    );
    before.assert_unchanged(guest.vm());

    // Another server listens there.
    let path = env.folder().join("web");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(&[b'x'; 100]);
        }
    });
    let address = format!("unix:{}", path.display());
    assert_refused(
        &["migrate", &address, "--qmp", &qmp],
        1,
        &["another program answers there", "runs at the source"],
    );
    before.assert_unchanged(guest.vm());
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
fn destinations_that_do_not_fit() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, light_guest());
    let cases: [(&str, VmConfig, &[&str]); 6] = [
        (
            "smaller",
            light_guest().ram(Ram::shared(192)),
            &["256 MiB", "192 MiB"],
        ),
        (
            "layout",
            light_guest().ram(Ram::shared(0).numa(&[128, 128])),
            &["\"ram\""],
        ),
        (
            "machine",
            light_guest().machine("pc-i440fx-7.2"),
            &["pc-q35-7.2", "pc-i440fx-7.2"],
        ),
        (
            "processors",
            light_guest().cpus(2),
            &["number of virtual CPUs", "1", "2"],
        ),
        (
            "device",
            light_guest().arguments(["-device", "virtio-rng-pci,addr=9"]),
            &["pcie.0/09.0", "the source has nothing", "virtio-rng-pci"],
        ),
        (
            "processor",
            light_guest().arguments(["-cpu", "Nehalem"]),
            &["the model-id is", "Nehalem"],
        ),
    ];
    for (what, config, parts) in cases {
        let mut migration =
            guest.start_migration(&MigrationPlan::new("hybrid").destination_config(config));
        let ended = migration.migrate.wait();
        ended.assert(1, parts);
        ended.assert(
            1,
            &["the destination refuses the guest", "runs at the source"],
        );
        // The destination continues to wait for a guest that fits.
        migration.receive.wait_stderr("refused a guest");
        migration.receive.interrupt();
        let (exits, finished) = migration.wait();
        exits.assert_destination(1, parts);
        guest.assert_stayed(finished, &format!("another {what}"));
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
fn a_destination_without_enough_memory() {
    let env = TestEnv::new();
    let small = Mount::tmpfs(env.lab(), "small", 64).unwrap();
    let vm = light_guest()
        .ram_directory(small.path())
        .incoming()
        .start(env.lab(), "narrow")
        .unwrap();
    let qmp = vm.qmp_path().to_str().unwrap();
    let receive = ["receive", "--listen", &env.unused_socket(), "--qmp", qmp];
    let before = QemuState::of_vm(&vm);
    assert_refused(&receive, 1, &["bytes free", "enlarge it"]);
    before.assert_unchanged(&vm);
}

#[test]
fn a_destination_that_does_not_wait_for_a_guest() {
    let env = TestEnv::new();
    let guest = start_guest(&env, light_guest());
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let receive = ["receive", "--listen", &env.unused_socket(), "--qmp", qmp];
    let before = QemuState::of_vm(guest.vm());
    assert_refused(&receive, 2, &["-incoming defer"]);
    before.assert_unchanged(guest.vm());
    assert_eq!(guest.vm().status().unwrap(), "running");
    // A QEMU that waits for a guest is not a source.
    let waiting = light_guest()
        .incoming()
        .start(env.lab(), "waiting")
        .unwrap();
    let qmp = waiting.qmp_path().to_str().unwrap();
    assert_refused(
        &["migrate", "unix:/nowhere", "--qmp", qmp],
        1,
        &["still waits for an incoming migration"],
    );
    // The address is in use.
    let path = env.folder().join("taken");
    let _listener = UnixListener::bind(&path).unwrap();
    let taken = format!("unix:{}", path.display());
    assert_refused(
        &["receive", "--listen", &taken, "--qmp", qmp],
        2,
        &["listening at", "in use"],
    );
}
