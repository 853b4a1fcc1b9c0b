//! `hikkoshi check`: whether a guest can be moved, without changing anything.

#![allow(clippy::unwrap_used)] // a test's failure is the message

mod copied_disks;
mod in_progress;
mod obstacles;
mod privileges;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hikkoshi_lab::{Device, QemuVersion, Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Guest, JsonSchema, KernelFeature, Program, QemuState, TestEnv, assert_refused, hikkoshi,
    kvm_present, unique_address,
};
use serde_json::{Value, json};

fn light_guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(5000).option("every_ms", 200))
}

/// One whose processors do not run: nothing has to be booted.
fn idle_guest() -> VmConfig {
    light_guest().arguments(["-S"])
}

/// What `check` could change in QEMU, and must not.
#[derive(Debug, PartialEq)]
struct Unchanged {
    state: QemuState,
    objects: Value,
    descriptors: Value,
    run_state: String,
    /// Mappings of files and shared memory; others come and go with QEMU's heap. Without the
    /// modules of accelerators, which QEMU 11.1 loads when it is asked which it has.
    mappings: Vec<String>,
}

impl Unchanged {
    fn of_vm(vm: &Vm) -> Self {
        let query = |command, arguments| vm.qmp().execute(command, arguments).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", vm.pid())).unwrap();
        let of_files = |line: &&str| {
            (line.contains('/') || line.contains("rw-s")) && !line.contains("/qemu/accel-")
        };
        Self {
            state: QemuState::of_vm(vm),
            objects: query("qom-list", json!({ "path": "/objects" })),
            descriptors: query("query-fdsets", json!({})),
            run_state: vm.status().unwrap(),
            mappings: maps.lines().filter(of_files).map(str::to_owned).collect(),
        }
    }

    fn assert(&self, vm: &Vm) {
        self.state.assert_unchanged(vm);
        assert_eq!(*self, Self::of_vm(vm));
    }
}

/// Runs `hikkoshi check` on this QMP socket: its standard output. It must exit with `code`.
fn run(qmp: &Path, code: i32, more: &[&str]) -> String {
    let mut command = Command::new(hikkoshi());
    command.args(["check", "--qmp"]).arg(qmp).args(more);
    let exit = Program::start("check", command).wait();
    assert_eq!(exit.code, Some(code), "{exit:?}");
    exit.stdout
}

/// Its JSON, which must be as published.
fn json_of(qmp: &Path, code: i32) -> Value {
    let object = run(qmp, code, &["--json", "-"]);
    JsonSchema::published().assert("check", object.trim())
}

/// Checks a guest that must stay unchanged: the JSON, and the text.
fn check(vm: &Vm, code: i32) -> (Value, String) {
    let before = Unchanged::of_vm(vm);
    // Nothing can be injected into QEMU.
    let found = KernelFeature::Tracing.run_without(|| {
        let qmp = vm.qmp_path();
        (json_of(qmp, code), run(qmp, code, &[]))
    });
    before.assert(vm);
    found
}

/// A receiver for the guest of this machine, and its invitation.
fn waiting_receiver(env: &TestEnv, there: &Vm) -> (Program, String) {
    let mut receive = Command::new(hikkoshi());
    receive.args(["receive", "--listen", &unique_address(), "--invite"]);
    receive.arg("--journal").arg(env.folder().join("journal"));
    receive.arg("--qmp").arg(there.qmp_path());
    let receive = Program::start("receive", receive);
    let invitation = receive.wait_stdout("hikkoshi1:");
    (receive, invitation)
}

/// The texts of all obstacles.
fn obstacles(found: &Value) -> String {
    let obstacles = found["obstacles"].as_array().unwrap().iter();
    let texts = obstacles.map(|obstacle| obstacle["text"].as_str().unwrap());
    texts.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_guest_that_can_be_moved_and_a_destination_that_is_asked() {
    let env = TestEnv::new();
    let devices = "-device pcie-root-port,id=port1,chassis=1 -device virtio-rng-pci,bus=port1,id=rng \
                   -device virtio-balloon-pci -device qemu-xhci -device usb-tablet \
                   -netdev user,id=n -device e1000e,netdev=n,id=nic -device virtio-vga";
    let config = light_guest().arguments(devices.split_whitespace());
    let mut guest = Guest::boot(&env, config);
    let vm = guest.vm().clone();
    let (found, text) = check(&vm, 0);
    assert_eq!(found["modes"], json!(["precopy", "postcopy", "hybrid"]));
    assert_eq!(found["obstacles"], json!([]));
    assert_eq!(found["destination"], Value::Null);
    assert!(!found["disks"].as_array().unwrap().is_empty(), "{found}");
    let devices = found["devices"].as_array().unwrap();
    let rng = json!({ "name": "/machine/peripheral/rng", "kind": "virtio-rng-pci",
                      "verdict": "moves" });
    assert!(devices.contains(&rng), "{found}");
    // With the disk, and the serial port of `-serial`.
    assert_eq!(devices.len(), 9, "{found}");
    assert_eq!(
        found["cards"],
        json!([{ "name": "nic", "backend": "user", "interface": null }])
    );
    assert_eq!(found["guest"]["processor"], "qemu64");
    assert_eq!(found["privileges"]["trace"], true);
    let memory = found["memory"].as_array().unwrap();
    let main = &memory[0];
    assert_eq!(main["held"], "shared_file", "{found}");
    assert_eq!(main["path"], vm.ram_files()[0].to_str().unwrap());
    let video = memory
        .iter()
        .find(|block| block["id"].as_str().unwrap().contains("vga.vram"));
    assert_eq!(video.unwrap()["held"], "private", "{found}");
    for part in [
        "the guest can be moved: precopy, postcopy, hybrid",
        "memory ram: 256 MiB, pages of 4 KiB, memory-backend-file: shared file",
        "device /machine/peripheral/rng (virtio-rng-pci): every mode",
        "connections through a network backend of the type user end",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }

    let there = guest
        .config()
        .clone()
        .console(guest.vm().console().clone())
        .incoming()
        .start(env.lab(), "asked")
        .unwrap();
    let (receive, invitation) = waiting_receiver(&env, &there);
    // It is not used up, however often it is asked.
    let text = run(vm.qmp_path(), 0, &["--to", &invitation]);
    assert!(
        text.contains("destination: it would accept the guest"),
        "{text}"
    );
    let object = run(vm.qmp_path(), 0, &["--to", &invitation, "--json", "-"]);
    let found = JsonSchema::published().assert("check", object.trim());
    assert_eq!(found["destination"]["obstacles"], json!([]));
    receive.wait_stderr("which can be moved here");
    let mut migrate = Command::new(hikkoshi());
    migrate.args(["migrate", "--to", &invitation, "--qmp"]);
    migrate.arg(guest.vm().qmp_path());
    migrate.arg("--journal").arg(env.folder().join("journal"));
    Program::start("migrate", migrate).wait().assert(0, &[]);
    guest.set_vm(Arc::new(there));
    guest.assert_healthy();
    // The guest that is left at the source must not be moved again.
    let text = run(vm.qmp_path(), 1, &[]);
    assert!(text.contains("never resume it here"), "{text}");
}

/// Two swtpms cannot use one state directory, so each side needs its own.
#[test]
fn a_guest_with_a_tpm_needs_an_emulator_of_its_own_at_the_destination() {
    let env = TestEnv::new();
    let guest = Guest::start(&env, idle_guest().device(Device::Tpm));
    let (found, text) = check(guest.vm(), 0);
    let note = "the guest has a TPM, whose state moves with it: at the destination it needs an swtpm \
                for its TPM, with an empty state directory of its own, which no other swtpm uses";
    assert!(text.contains(note), "{text}");
    assert!(
        found["notes"].as_array().unwrap().contains(&json!(note)),
        "{found}"
    );
}

/// The destination lists everything that differs, and in which modes it matters; `migrate` gives
/// the same reasons.
#[test]
fn a_destination_that_would_refuse() {
    let env = TestEnv::new();
    let guest = Guest::start(&env, idle_guest());
    // A page that is absent from a private mapping of a file on a disk is the file's.
    let ram = Ram::new(RamBackend::File { share: false }, 128);
    let config = guest.config().clone().cpus(2).ram(ram);
    let there = config
        .console(guest.vm().console().clone())
        .ram_directory(env!("CARGO_TARGET_TMPDIR"))
        .incoming()
        .start(env.lab(), "asked")
        .unwrap();
    let (receive, invitation) = waiting_receiver(&env, &there);
    let qmp = guest.vm().qmp_path();
    let text = run(qmp, 1, &["--to", &invitation]);
    assert!(text.contains("the guest cannot be moved"), "{text}");
    let object = run(qmp, 1, &["--to", &invitation, "--json", "-"]);
    let found = JsonSchema::published().assert("check", object.trim());
    assert_eq!(found["obstacles"], json!([]), "nothing here");
    assert_eq!(found["modes"], json!([]));
    let obstacles = found["destination"]["obstacles"].as_array().unwrap();
    let with = |part: &str| {
        let mut all = obstacles.iter();
        let found = all.find(|obstacle| obstacle["text"].as_str().unwrap().contains(part));
        found.unwrap_or_else(|| panic!("{part:?} is not in {obstacles:?}"))
    };
    let all_modes = json!(["precopy", "postcopy", "hybrid"]);
    let cpus = with("the number of virtual CPUs is \"1\" at the source but \"2\"");
    assert_eq!(cpus["modes"], all_modes);
    let memory = with("the block \"ram\" has 256 MiB at the source but 128 MiB");
    assert_eq!(memory["modes"], all_modes);
    let on_disk = with("is a file that is neither on tmpfs nor on hugetlbfs");
    assert_eq!(on_disk["modes"], json!(["postcopy", "hybrid"]));
    let of_ram = obstacles
        .iter()
        .filter(|obstacle| obstacle["text"].as_str().unwrap().contains("\"ram\""));
    assert_eq!(of_ram.count(), 2, "{obstacles:?}");
    receive.wait_stderr("which cannot be moved here");
    let path = qmp.to_str().unwrap();
    let migrate = ["migrate", "--to", &invitation, "--qmp", path];
    let parts = ["reasons: (1)", "number of virtual CPUs", "256 MiB"];
    let refused = assert_refused(&migrate, 1, &parts);
    assert!(refused.stderr.contains("neither on tmpfs"), "{refused:?}");
    let precopy = [
        &migrate[..],
        &["--mode", "precopy", "--when-stalled", "continue"],
    ]
    .concat();
    let refused = assert_refused(&precopy, 1, &parts);
    assert!(!refused.stderr.contains("neither on tmpfs"), "{refused:?}");
}

#[test]
fn what_holds_the_memory() {
    for (backend, held, part) in [
        (RamBackend::Anonymous, "private", "it ends with QEMU"),
        (
            RamBackend::MEMFD,
            "unnamed_file",
            "as long as a process has it open",
        ),
        (
            RamBackend::File { share: false },
            "private_file",
            "ends with QEMU",
        ),
    ] {
        let env = TestEnv::new();
        let guest = Guest::start(&env, idle_guest().ram(Ram::new(backend, 128)));
        let qmp = guest.vm().qmp_path();
        // Whether it can be moved is not the question.
        let mut command = Command::new(hikkoshi());
        command.args(["check", "--json", "-", "--qmp"]).arg(qmp);
        let exit = Program::start("check", command).wait();
        let found = JsonSchema::published().assert("check", exit.stdout.trim());
        assert_eq!(found["memory"][0]["held"], held, "{found}");
        let text = run(qmp, exit.code.unwrap(), &[]);
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// Whether the guest can have asynchronous page faults, and how it gets them.
#[test]
fn asynchronous_page_faults() {
    let env = TestEnv::new();
    let found_with = |version, kvm: bool, model: &str| {
        let config = idle_guest().version(version).arguments(["-cpu", model]);
        let config = if kvm { config.kvm() } else { config };
        let guest = Guest::start(&env, config);
        let (found, text) = check(guest.vm(), 0);
        let line = text.lines().find(|line| line.contains("asynchronous"));
        (
            found["guest"]["asynchronous_faults"].clone(),
            line.unwrap().trim().to_owned(),
        )
    };
    let (found, text) = found_with(QemuVersion::V10_0, false, "max");
    assert_eq!(found, "no_kvm");
    let none = "asynchronous page faults: none: the guest is emulated, and only KVM has them";
    assert_eq!(text, none);
    if !kvm_present() {
        return;
    }
    for version in QemuVersion::OLDEST_AND_NEWEST {
        for model in ["host,arch-capabilities=off", "qemu64,kvm-asyncpf-int=on"] {
            let (found, text) = found_with(version, true, model);
            assert_eq!(found, "on", "{version}, {model}");
            assert!(text.ends_with("only known when it is moved"), "{text}");
        }
        let (found, text) = found_with(version, true, "qemu64");
        assert_eq!(found, "off", "{version}");
        let advice = "add kvm-asyncpf-int=on to -cpu in the command lines of both QEMUs";
        assert!(text.contains(advice), "{text}");
    }
}

/// QEMU is looked at several times.
#[test]
fn a_warning_comes_once() {
    let env = TestEnv::new();
    let guest = Guest::start(&env, idle_guest());
    let file = &guest.vm().ram_files()[0];
    for folder in file.ancestors().skip(1) {
        let mode = folder.metadata().unwrap().permissions().mode();
        if mode & 0o001 == 0 {
            std::fs::set_permissions(folder, Permissions::from_mode(mode | 0o001)).unwrap();
        }
    }
    let warning = format!(
        "other users of this host can read the guest's memory: its file {}",
        file.display()
    );
    let times = |text: &str| text.matches(&warning).count();
    let qmp = guest.vm().qmp_path();
    let text = run(qmp, 0, &[]);
    assert_eq!(times(&text), 1, "{text}");
    let mut migrate = Command::new(hikkoshi());
    migrate
        .args(["migrate", &unique_address(), "--qmp"])
        .arg(qmp);
    migrate.arg("--journal").arg(env.folder().join("journal"));
    let exit = Program::start("migrate", migrate).wait();
    exit.assert(1, &["connecting to"]);
    assert_eq!(times(&exit.stderr), 1, "{exit:?}");
}
