//! Moves under KVM, of the nano guest. Each of its processors has a task, which writes and checks
//! memory in ring 3.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_account::AsynchronousFaults;
use hikkoshi_lab::{HugePageSize, QemuVersion, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, InjectedFault, MessageKind, MigrationPlan, TestEnv, Transport, Victim,
    kvm_present,
};

fn nano_guest() -> VmConfig {
    with_processors(1)
}

fn with_processors(cpus: u32) -> VmConfig {
    let workload = Workload::verify(32).threads(cpus).rate(20_000);
    let workload = workload.option("every_ms", 200);
    VmConfig::new().kvm().nano().cpus(cpus).workload(workload)
}

/// Migrates a guest by each mode in turn. The guest checks every page after each move, and
/// [`Guest`] that QEMU uses KVM.
fn all_modes(version: QemuVersion, machine: &str, source: Ram, destination: Ram) {
    let config = nano_guest().version(version).machine(machine);
    move_by_all_modes(config, source, destination);
}

fn move_by_all_modes(config: VmConfig, source: Ram, destination: Ram) {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let config = config.ram(source);
    let there = config.clone().ram(destination);
    let mut guest = Guest::boot_without_extra_disk(&env, config.clone());
    for (number, mode) in ["hybrid", "postcopy", "precopy"].into_iter().enumerate() {
        let to = if number % 2 == 0 { &there } else { &config };
        let plan = MigrationPlan::new(mode).destination_config(to.clone());
        let (exits, finished) = guest.start_migration(&plan).wait_for_source_first();
        let report = guest.complete_migration(&exits, finished, "running");
        assert_eq!(report.postcopy, mode != "precopy");
        // The default model does not have them.
        assert_eq!(report.asynchronous_faults, Some(AsynchronousFaults::Off));
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
    all_modes(QemuVersion::V11_1, Q35, private(), private());
}

#[test]
fn shared_memory() {
    all_modes(QemuVersion::V10_0, Q35, file(), file());
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn between_memfd_and_private_memory() {
    let memfd = ram(RamBackend::MEMFD);
    all_modes(QemuVersion::V10_0, "pc-i440fx-7.2", memfd, private());
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn qemu_7_2() {
    all_modes(QemuVersion::V7_2, Q35, private(), file());
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn two_processors() {
    move_by_all_modes(with_processors(2).machine(Q35), private(), file());
}

#[test]
fn four_processors() {
    move_by_all_modes(with_processors(4).machine(Q35), file(), private());
}

/// Pages of 2 MiB, requested in pieces.
#[test]
#[ignore = "others of its kind run in CI: make drills"]
fn huge_pages() {
    let huge = |share| {
        let size = HugePageSize::Mib2;
        ram(RamBackend::Hugetlbfs { size, share })
    };
    all_modes(QemuVersion::V10_0, Q35, huge(true), huge(false));
}

/// From commit on: new engines complete the migration.
#[test]
#[ignore = "part of `make drills`"]
fn interrupted_after_commit() {
    if !kvm_present() {
        return;
    }
    for (memory, transport) in [(file(), Transport::Tcp), (private(), Transport::Unix)] {
        let env = TestEnv::new();
        let config = nano_guest().machine(Q35).ram(memory);
        let mut guest = Guest::boot_without_extra_disk(&env, config);
        for (mode, victim, at) in [
            ("postcopy", Victim::Links, Breakpoint::after(Pages).nth(500)),
            ("hybrid", Victim::Links, Breakpoint::before(GuestResumed)),
            (
                "postcopy",
                Victim::Source,
                Breakpoint::after(Pages).nth(300),
            ),
            (
                "postcopy",
                Victim::Destination,
                Breakpoint::after(Pages).nth(400),
            ),
            ("hybrid", Victim::Both, Breakpoint::before(Commit)),
            ("precopy", Victim::Both, Breakpoint::before(Commit)),
        ] {
            let plan = MigrationPlan::new(mode).transport(transport.clone());
            victim.interrupt(&mut guest, plan, at);
        }
    }
}

/// A shared file holds the pages of a source whose QEMU is killed with its engine.
#[test]
fn source_engine_and_qemu_killed() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let config = nano_guest().machine(Q35).ram(file());
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    let plan = MigrationPlan::new("postcopy").transport(Transport::Tcp);
    Victim::SourceAndQemu.interrupt(&mut guest, plan, Breakpoint::after(Pages).nth(400));
}

/// Before commit the guest stays at the source, and can be moved later.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn interrupted_before_commit() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let config = nano_guest().machine(Q35).ram(private());
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    for (mode, fault, at) in [
        (
            "precopy",
            InjectedFault::LinksCut,
            Breakpoint::after(Pages).nth(20),
        ),
        (
            "hybrid",
            InjectedFault::SourceKilled,
            Breakpoint::before(Switch),
        ),
        (
            "postcopy",
            InjectedFault::DestinationKilled,
            Breakpoint::after(Switch),
        ),
        (
            "hybrid",
            InjectedFault::DestinationQemuKilled,
            Breakpoint::before(Discard),
        ),
        (
            "postcopy",
            InjectedFault::LinksCut,
            Breakpoint::before(Ready),
        ),
    ] {
        let plan = MigrationPlan::new(mode).transport(Transport::Unix);
        fault.interrupt(&mut guest, plan, at);
    }
    let (exits, finished) = guest.start_migration(&MigrationPlan::new("hybrid")).wait();
    guest.complete_migration(&exits, finished, "running");
}
