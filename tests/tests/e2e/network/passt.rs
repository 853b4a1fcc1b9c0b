//! Guests with a real passt as their network: as another process that gets frames, and as one that
//! writes the guest's memory.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Device, PasstMode, QemuVersion, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, assert_refused};

fn config(version: QemuVersion, mode: PasstMode) -> VmConfig {
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    VmConfig::new()
        .version(version)
        .ram(Ram::new(RamBackend::MEMFD, 256))
        .workload(workload)
        .device(Device::Passt(mode))
}

fn moves_in_every_mode(version: QemuVersion, mode: PasstMode) {
    let env = TestEnv::new();
    let mut guest = Guest::boot_without_extra_disk(&env, config(version, mode));
    for mode in ["precopy", "hybrid", "postcopy"] {
        guest.migrate(&MigrationPlan::new(mode));
    }
}

#[test]
#[ignore = "part of `make matrix`"]
fn one_that_gets_frames_from_qemu() {
    moves_in_every_mode(QemuVersion::V11_1, PasstMode::Stream);
}

#[test]
#[ignore = "part of `make matrix`"]
fn one_that_qemu_has_not_started() {
    moves_in_every_mode(QemuVersion::V10_0, PasstMode::Socket);
}

/// On both sides, also if the user allows it: its writes would be lost.
#[test]
#[ignore = "part of `make matrix`"]
fn one_that_writes_the_guest_s_memory_is_refused() {
    let env = TestEnv::new();
    let config = config(QemuVersion::V11_1, PasstMode::VhostUser);
    let vms = [config.clone(), config.incoming()];
    let [source, destination] = [0, 1].map(|number| {
        let vm = vms[number].start(env.lab(), &format!("host{number}"));
        vm.unwrap()
    });
    let listen = env.unused_socket();
    for (vm, words) in [
        (&source, ["migrate", "unix:/nowhere"].as_slice()),
        (&destination, &["receive", "--listen", &listen]),
    ] {
        let qmp = vm.qmp_path().to_str().unwrap();
        let mut words = words.to_vec();
        words.extend(["--qmp", qmp, "--allow-device", "passt"]);
        let parts = [
            "passt network backend",
            "another process",
            "(process ",
            "unplug it",
        ];
        assert_refused(&words, 1, &parts);
    }
}
