//! `hikkoshi check --print-destination`, and `migrate --quit-source`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{QemuVersion, Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, JsonSchema, LONG, MessageKind, MigrationPlan, Program, TestEnv, Transport,
    address_in, busy_guest, eventually, hikkoshi,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
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

/// The environment of a process: where QEMU's libraries are.
fn environment(pid: u32) -> Vec<(String, String)> {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
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
        let mut shell = Command::new("sh");
        shell.envs(environment(source.pid()));
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
    move_by_the_printed_line(QemuVersion::V11_1);
}

#[test]
#[ignore = "as above, with the other versions: make matrix"]
fn the_printed_command_line_starts_a_destination_of_an_older_qemu() {
    move_by_the_printed_line(QemuVersion::V7_2);
    move_by_the_printed_line(QemuVersion::V10_0);
}

fn move_by_the_printed_line(version: QemuVersion) {
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
    assert!(notes.contains("other properties"), "{notes}");
    // Such as the monitors, which are objects from QEMU 11.1 on.
    assert!(!notes.contains("add an -object option"), "{notes}");
    // Main memory's file, and that of the memory that was plugged in.
    assert_eq!(notes.matches("never the same file").count(), 2, "{notes}");
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
    let result = env.folder().join("result.json");
    migrate.arg("--json").arg(&result);
    let moved = Program::start("migrate", migrate).wait();
    moved.assert(0, &[]);
    let result = fs::read_to_string(result).unwrap();
    let result = JsonSchema::published().assert("file", result.trim());
    assert_eq!(result["source_quit"], true);
    assert_eq!(result.get("source_quit_error"), None);
    assert!(moved.stdout.contains("the guest runs at the destination"));
    assert!(!moved.stdout.contains("end the source's QEMU"), "{moved:?}");
    receive.wait().assert(0, &[]);
    guest.vm().wait_exit(LONG).unwrap();
    there.wait_for_the_guest();
    drop(there);
    // It has no machine any more whose disks could be checked.
    std::mem::forget(guest);
}

/// A QEMU that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QMP session that lasts as long as this.
struct Session(BufReader<UnixStream>);

impl Session {
    fn open(path: &Path) -> Self {
        let mut found = None;
        eventually("the monitor", || {
            let stream = UnixStream::connect(path).map_err(|error| error.to_string())?;
            found = Some(stream);
            Ok(())
        });
        let mut session = Self(BufReader::new(found.unwrap()));
        session.line();
        session.execute("qmp_capabilities", json!({}));
        session
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// The answer. Events are skipped.
    fn execute(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}").unwrap();
        loop {
            let mut line = self.line();
            if line.get("event").is_none() {
                assert!(line.get("error").is_none(), "{command}: {line}");
                return line["return"].take();
            }
        }
    }

    /// The files of the disks, by the ids of the devices.
    fn images(&mut self) -> Vec<(String, String)> {
        let rows = self.execute("query-block", json!({}));
        let rows = rows.as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let row = |row: &Value| {
            (
                text(&row["qdev"]),
                text(&row["inserted"]["image"]["filename"]),
            )
        };
        let images = rows.map(row).filter(|(_, file)| !file.is_empty());
        images.collect()
    }
}

/// What QEMU made itself, a device that was unplugged, and disks that were changed since.
#[test]
fn a_machine_by_short_options_that_has_changed() {
    let env = TestEnv::new();
    let qmp = env.folder().join("host0.qmp");
    let run = QemuVersion::V10_0.runner().unwrap();
    let file = |name: &str| env.folder().join(name).to_str().unwrap().to_owned();
    for name in ["a.raw", "b.raw"] {
        fs::File::create(file(name))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
    }
    let monitor = format!("unix:{},server=on,wait=off", qmp.display());
    let line = format!(
        "-M pc -m 64 -smp 2 -cpu max -display none -accel tcg -S -nic user,model=e1000 \
         -device qemu-xhci,id=xhci -device usb-tablet,id=gone -device virtio-rng-pci,id=stays \
         -drive file={},format=raw,if=none,id=d0 -device virtio-blk-pci,id=disk0,drive=d0 \
         -blockdev driver=file,node-name=f1,filename={} -blockdev driver=raw,node-name=n1,file=f1 \
         -device virtio-blk-pci,id=disk1,drive=n1",
        file("a.raw"),
        file("b.raw")
    );
    let child = Command::new(run)
        .args(line.split_whitespace())
        .args(["-qmp", &monitor])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let source = Ended(child);
    let mut session = Session::open(&qmp);
    session.execute("device_del", json!({ "id": "gone" }));
    for (disk, snapshot) in [
        (json!({ "device": "d0" }), "a.qcow2"),
        (
            json!({ "node-name": "n1", "snapshot-node-name": "top1" }),
            "b.qcow2",
        ),
    ] {
        let mut arguments = disk;
        arguments["snapshot-file"] = file(snapshot).into();
        arguments["format"] = "qcow2".into();
        session.execute("blockdev-snapshot-sync", arguments);
    }
    let now = session.images();
    // A monitor serves one client at a time.
    drop(session);
    // What QEMU made itself is listed, without the board.
    let mut command = Command::new(hikkoshi());
    command.args(["check", "--json", "-", "--qmp"]).arg(&qmp);
    let exit = Program::start("check", command).wait();
    let found = JsonSchema::published().assert("check", exit.stdout.trim());
    let devices = found["devices"].as_array().unwrap().iter();
    let made = devices.filter(|device| {
        let name = device["name"].as_str().unwrap();
        name.starts_with("/machine/unattached/")
    });
    let mut made: Vec<_> = made
        .map(|device| (device["kind"].as_str().unwrap(), &device["verdict"]))
        .collect();
    made.sort_by_key(|(kind, _)| *kind);
    let moves = json!("moves");
    let expected = [
        "VGA",
        "e1000",
        "floppy",
        "ide-cd",
        "isa-parallel",
        "isa-serial",
    ];
    assert_eq!(made, expected.map(|kind| (kind, &moves)), "{found}");
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
        "-device virtio-rng-pci,id=stays,addr=",
        "# left out, because it was unplugged: -device usb-tablet,id=gone",
        "# the disk d0 was changed to",
        "a.qcow2,format=qcow2,if=none,id=d0",
        "# the disk disk1 was changed to",
        "backing=n1",
        "drive=top1",
        "mac=: -nic user,model=e1000",
    ] {
        assert!(exit.stdout.contains(part), "{part:?} is not in {exit:?}");
    }
    let options = exit.stdout.lines().filter(|line| !line.starts_with('#'));
    let options: Vec<_> = options.collect();
    assert!(
        !options.iter().any(|line| line.contains("gone")),
        "{options:?}"
    );
    assert!(!exit.stdout.contains(" -S"), "{exit:?}");
    assert!(
        exit.stdout.contains("# -cpu max: gives other features"),
        "{exit:?}"
    );
    assert!(exit.stdout.contains("same host"), "{exit:?}");
    // A QEMU with the printed line opens the images that the disks have now.
    let there = options.join("\n").replace("host0", "host1");
    let child = Command::new("sh")
        .args(["-c", &format!("exec {there}")])
        .envs(environment(source.0.id()))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let _there = Ended(child);
    let mut session = Session::open(&env.folder().join("host1.qmp"));
    assert_eq!(session.images(), now);
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
