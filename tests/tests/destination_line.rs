//! `hikkoshi check --print-destination`, and `migrate --quit-source`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{QemuVersion, Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, MigrationPlan, Program, TestEnv, Transport, address_in,
    busy_guest, eventually, hikkoshi,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The command line for a destination of this guest, without its comments, and the comments.
fn printed(vm: &Vm) -> (String, String) {
    let mut command = Command::new(hikkoshi());
    command.args(["check", "--print-destination", "--qmp"]);
    command.arg(vm.qmp_path());
    let exit = Program::start("check", command).wait();
    exit.assert(0, &[]);
    let (notes, line): (Vec<_>, Vec<_>) =
        exit.stdout.lines().partition(|line| line.starts_with('#'));
    (line.join("\n"), notes.join("\n"))
}

/// The destination's QEMU, started by a shell. It ends with the test.
struct Destination {
    child: Child,
    console: UnixListener,
    _harness: UnixListener,
}

impl Drop for Destination {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Destination {
    /// Runs the line, with the libraries of the source's QEMU. `folder` is where its sockets are.
    fn start(line: &str, source: &Vm, folder: &Path) -> Self {
        // QEMU connects to these.
        let listen = |name| UnixListener::bind(folder.join(format!("host1.{name}"))).unwrap();
        let (console, harness) = (listen("console"), listen("harness"));
        let environment = fs::read(format!("/proc/{}/environ", source.pid())).unwrap();
        let mut shell = Command::new("sh");
        for pair in environment.split(|byte| *byte == 0) {
            if let Some((name, value)) = String::from_utf8_lossy(pair).split_once('=') {
                shell.env(name, value);
            }
        }
        // The shell becomes QEMU.
        shell.args(["-c", &format!("exec {line}")]);
        let child = shell.stdin(Stdio::null()).spawn().unwrap();
        let mut there = Self {
            child,
            console,
            _harness: harness,
        };
        eventually("the destination's monitor", || {
            assert!(there.child.try_wait().unwrap().is_none(), "{line}");
            UnixStream::connect(folder.join("host1.qmp"))
                .map(drop)
                .map_err(|error| error.to_string())
        });
        there
    }

    /// Waits until the guest reports progress there.
    fn wait_for_the_guest(&self) {
        let (console, _) = self.console.accept().unwrap();
        console.set_read_timeout(Some(LONG)).unwrap();
        let lines = BufReader::new(console).lines().map(Result::unwrap);
        let mut reports = lines.filter(|line| line.contains("verify"));
        assert!(reports.next().is_some(), "the guest's console has ended");
    }
}

/// Processors, memory, a disk and network cards that are plugged in while the guest runs.
fn plug(env: &TestEnv, vm: &Vm) {
    vm.plug_dimm().unwrap();
    vm.plug_processors().unwrap();
    let qmp = vm.qmp();
    let execute = |command, arguments: Value| qmp.execute(command, arguments).unwrap();
    let disk = env.folder().join("plugged, later.raw");
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    execute(
        "blockdev-add",
        json!({ "driver": "raw", "node-name": "disk9",
                "file": { "driver": "file", "node-name": "file9", "filename": disk } }),
    );
    execute("netdev_add", json!({ "type": "user", "id": "n9" }));
    for device in [
        json!({ "driver": "virtio-blk-pci", "id": "plugged-disk", "drive": "disk9", "bus": "port1" }),
        json!({ "driver": "virtio-net-pci", "id": "plugged-nic", "netdev": "n9", "bus": "port2",
                "mac": "52:54:00:99:00:01" }),
    ] {
        execute("device_add", device);
    }
}

/// The printed line, adapted as its comments say, starts a QEMU into which the guest moves.
#[test]
fn the_printed_command_line_starts_a_destination() {
    for version in QemuVersion::ALL {
        let env = TestEnv::new();
        let ports = "-device pcie-root-port,id=port1,chassis=1 \
                     -device pcie-root-port,id=port2,chassis=2";
        let config = VmConfig::new()
            .version(version)
            .workload(Workload::verify(16).rate(5000).option("every_ms", 200))
            .ram(Ram::shared(256).hot_dimm(128))
            .hot_cpus(1)
            .arguments(ports.split_whitespace());
        let guest = Guest::boot(&env, config);
        plug(&env, guest.vm());
        let (line, notes) = printed(guest.vm());
        for part in [
            "-device pc-dimm,",
            "socket-id=0",
            "plugged,, later.raw",
            "-netdev user,id=n9",
            "mac=52:54:00:99:00:01",
            "-incoming defer",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        for part in ["never the same file", "other properties"] {
            assert!(notes.contains(part), "{part:?} is not in {notes}");
        }
        // Sockets and RAM of its own, by other names.
        let line = line.replace("host0", "host1");
        let there = Destination::start(&line, guest.vm(), env.folder());
        let socket = env.unused_socket();
        let mut receive = Command::new(hikkoshi());
        receive.args(["receive", "--listen", &socket, "--qmp"]);
        receive.arg(env.folder().join("host1.qmp"));
        receive.arg("--journal").arg(env.folder().join("journal"));
        let mut receive = Program::start("receive", receive);
        let listening = receive.wait_stderr("waiting for a guest at ");
        let mut migrate = Command::new(hikkoshi());
        migrate.args(["migrate", address_in(&listening), "--quit-source", "--qmp"]);
        migrate.arg(guest.vm().qmp_path());
        migrate.arg("--journal").arg(env.folder().join("journal"));
        let moved = Program::start("migrate", migrate).wait();
        moved.assert(0, &[]);
        assert!(moved.stdout.contains("the guest runs at the destination"));
        assert!(!moved.stdout.contains("end the source's QEMU"), "{moved:?}");
        receive.wait().assert(0, &[]);
        guest.vm().wait_exit(LONG).unwrap();
        there.wait_for_the_guest();
        drop(there);
        // It has no machine any more whose disks could be checked.
        std::mem::forget(guest);
    }
}

/// What QEMU made itself, and a device that was unplugged.
#[test]
fn a_machine_by_short_options() {
    let env = TestEnv::new();
    let qmp = env.folder().join("host0.qmp");
    let run = QemuVersion::V10_0.runner().unwrap();
    let monitor = format!("unix:{},server=on,wait=off", qmp.display());
    let line = "-M pc -m 64 -smp 2 -cpu max -display none -accel tcg -S -nic user,model=e1000 \
                -device virtio-rng-pci,id=gone -device virtio-rng-pci,id=stays";
    let child = Command::new(run)
        .args(line.split_whitespace())
        .args(["-qmp", &monitor])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    struct Ended(Child);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let _child = Ended(child);
    eventually("the monitor", || {
        UnixStream::connect(&qmp)
            .map(drop)
            .map_err(|error| error.to_string())
    });
    let mut command = Command::new(hikkoshi());
    command
        .args(["check", "--print-destination", "--qmp"])
        .arg(&qmp);
    let exit = Program::start("check", command).wait();
    exit.assert(0, &[]);
    for part in [
        "-M pc-i440fx-10.0",
        "-cpu max",
        "-smp 2",
        "-incoming defer",
        "id=stays",
    ] {
        assert!(exit.stdout.contains(part), "{part:?} is not in {exit:?}");
    }
    assert!(!exit.stdout.contains(" -S"), "{exit:?}");
    assert!(
        exit.stdout.contains("# -cpu max: gives other features"),
        "{exit:?}"
    );
    assert!(exit.stdout.contains("same host"), "{exit:?}");
}

/// QEMU is ended only when the guest is at the destination with all of its pages: not after a
/// failure, not while the migration is paused; but when it has been resumed.
#[test]
fn the_source_is_ended_only_after_success() {
    let env = TestEnv::new();
    // Private memory ends with QEMU: not before every page has arrived.
    let private = Ram::new(RamBackend::Default, 256);
    let mut guest = Guest::boot(&env, busy_guest().ram(private));
    let refusing = VmConfig::new().cpus(2);
    let plan = MigrationPlan::new("hybrid").migrate_args(&["--quit-source"]);
    let mut migration = guest.start_migration(&plan.clone().destination_config(refusing));
    migration.migrate.wait().assert(1, &["refuses the guest"]);
    migration.receive.interrupt();
    let (_, finished) = migration.wait();
    assert!(guest.vm().exit_status().is_none());
    guest.assert_stayed(finished, "refused");

    let plan = plan.with_mode("postcopy").transport(Transport::Tcp);
    let at = Breakpoint::after(MessageKind::Pages).nth(300);
    let mut migration = guest.start_migration(&plan.hold_at(at));
    migration.wait_held();
    migration.receive.kill();
    migration.relay().cut();
    migration.migrate.wait().assert(3, &["o data is lost"]);
    assert!(guest.vm().exit_status().is_none());
    assert_eq!(guest.vm().status().unwrap(), "paused");
    migration.resume_receive(&[]);
    // Not said again: the journal knows it.
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    exits.assert_source(0, &[]);
    exits.assert_destination(0, &[]);
    guest.vm().wait_exit(LONG).unwrap();
    guest.set_vm(finished.destination);
    guest.assert_healthy();
}
