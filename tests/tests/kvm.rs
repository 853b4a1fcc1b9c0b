//! Moves under KVM, of the nano guest: one processor that writes and checks its memory in ring 3.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{QemuVersion, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, kvm_present};

/// Migrates a guest by each mode in turn. The guest checks every page after each move, and
/// [`Guest`] that QEMU uses KVM.
fn all_modes(version: QemuVersion, machine: &str, source: Ram, destination: Ram) {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let config = VmConfig::new()
        .version(version)
        .machine(machine)
        .kvm()
        .nano()
        .ram(source)
        .workload(workload);
    let there = config.clone().ram(destination);
    let mut guest = Guest::boot_without_extra_disk(&env, config.clone());
    for (number, mode) in ["hybrid", "postcopy", "precopy"].into_iter().enumerate() {
        let to = if number % 2 == 0 { &there } else { &config };
        let plan = MigrationPlan::new(mode).destination_config(to.clone());
        let (exits, finished) = guest.start_migration(&plan).wait_for_source_first();
        let report = guest.complete_migration(&exits, finished, "running");
        assert_eq!(report.postcopy, mode != "precopy");
    }
}

const Q35: &str = "pc-q35-7.2";

/// QEMU's name for the memory, so that it can move between kinds.
fn ram(backend: RamBackend) -> Ram {
    Ram::new(backend, 128).default_name()
}

fn file() -> Ram {
    ram(RamBackend::File { share: true })
}

/// `-m` alone.
fn private() -> Ram {
    ram(RamBackend::Default)
}

#[test]
fn private_memory() {
    all_modes(QemuVersion::V10_0, Q35, private(), private());
}

#[test]
fn shared_memory() {
    all_modes(QemuVersion::V10_0, Q35, file(), file());
}

#[test]
fn between_memfd_and_private_memory() {
    let memfd = ram(RamBackend::MEMFD);
    all_modes(QemuVersion::V10_0, "pc-i440fx-7.2", memfd, private());
}

#[test]
fn qemu_7_2() {
    all_modes(QemuVersion::V7_2, Q35, private(), file());
}
