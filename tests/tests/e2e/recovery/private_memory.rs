//! Broken links, killed engines and a killed source QEMU, where the guest's memory is not a named
//! file: private memory, which ends with QEMU, and memfds, which the engine and its guard hold
//! open.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::{Commit, GuestResumed, Pages};
use hikkoshi_lab::{HugePageSize, Ram, RamBackend, VmConfig};
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, Migration, MigrationPlan, TestEnv, Transport, busy_guest,
    eventually,
};

const PRIVATE: RamBackend = RamBackend::Default;

/// What is killed while messages are held. The links are cut afterwards.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Links,
    Source,
    Destination,
    Both,
    SourceAndQemu,
}

fn guest_with(backend: RamBackend) -> VmConfig {
    busy_guest().ram(Ram::new(backend, 256))
}

fn both(backend: RamBackend) -> [Ram; 2] {
    [(); 2].map(|()| Ram::new(backend, 256))
}

fn plan(mode: &'static str) -> MigrationPlan {
    MigrationPlan::new(mode).transport(Transport::Tcp)
}

/// Interrupts a migration, and resumes it with new engines.
fn interrupted(guest: &mut Guest<'_>, plan: MigrationPlan, victim: Victim, at: Breakpoint) {
    let mode = plan.mode();
    let mut migration = guest.start_migration(&plan.hold_at(at));
    migration.wait_held();
    if matches!(
        victim,
        Victim::Source | Victim::Both | Victim::SourceAndQemu
    ) {
        migration.migrate.kill();
    }
    if matches!(victim, Victim::Destination | Victim::Both) {
        migration.receive.kill();
    }
    if victim == Victim::SourceAndQemu {
        kill_source_qemu(guest);
    }
    migration.relay().cut();
    migration.receive.wait();
    migration.migrate.wait();
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    let what = format!("{mode}, {victim:?} interrupted {at}");
    guest.complete_resumed_migration(&exits, finished, &what);
}

fn kill_source_qemu(guest: &Guest<'_>) {
    guest.vm().kill();
    guest.vm().wait_exit(LONG).unwrap();
}

/// Interrupts migrations to and fro between machines with these kinds of memory.
fn all_interruptions(memory: [Ram; 2]) {
    let env = TestEnv::new();
    let machines = memory.map(|ram| busy_guest().ram(ram));
    let mut guest = Guest::boot(&env, machines[0].clone());
    for (number, (mode, victim, at)) in interruptions().into_iter().enumerate() {
        let there = machines[(number + 1) % 2].clone();
        let plan = plan(mode).destination_config(there);
        interrupted(&mut guest, plan, victim, at);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

fn interruptions() -> [(&'static str, Victim, Breakpoint); 9] {
    [
        (
            "postcopy",
            Victim::Destination,
            Breakpoint::after(Pages).nth(400),
        ),
        (
            "postcopy",
            Victim::Source,
            Breakpoint::after(Pages).nth(300),
        ),
        ("postcopy", Victim::Both, Breakpoint::after(Pages).nth(600)),
        ("postcopy", Victim::Links, Breakpoint::after(Pages).nth(500)),
        ("postcopy", Victim::Both, Breakpoint::before(Commit)),
        ("hybrid", Victim::Destination, Breakpoint::before(Commit)),
        ("hybrid", Victim::Both, Breakpoint::after(Commit)),
        ("hybrid", Victim::Source, Breakpoint::before(GuestResumed)),
        ("precopy", Victim::Both, Breakpoint::before(Commit)),
    ]
}

#[test]
fn engines_killed_with_private_memory() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, guest_with(PRIVATE));
    for (victim, at) in [
        (Victim::Destination, Breakpoint::after(Pages).nth(400)),
        (Victim::Both, Breakpoint::after(Pages).nth(600)),
    ] {
        interrupted(&mut guest, plan("postcopy"), victim, at);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_with_private_memory() {
    all_interruptions(both(PRIVATE));
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_with_a_memfd() {
    all_interruptions(both(RamBackend::MEMFD));
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_with_a_private_file() {
    all_interruptions(both(RamBackend::File { share: false }));
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_with_private_huge_pages() {
    let size = HugePageSize::Mib2;
    all_interruptions(both(RamBackend::Hugetlbfs { size, share: false }));
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_with_a_memfd_of_huge_pages() {
    all_interruptions(both(RamBackend::Memfd {
        share: true,
        seal: true,
        huge: Some(HugePageSize::Mib2),
    }));
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_with_a_dimm() {
    let ram = Ram::new(RamBackend::Anonymous, 192).dimm(128);
    all_interruptions([ram.clone(), ram]);
}

#[test]
#[ignore = "long: make drills"]
fn every_interruption_between_a_memfd_and_private_memory() {
    let memfd = Ram::new(RamBackend::MEMFD, 256).default_name();
    all_interruptions([memfd, Ram::new(PRIVATE, 256)]);
}

/// Each time from the file, which takes the guest back by pre-copy.
#[test]
#[ignore = "long: make drills"]
fn every_interruption_from_a_file_on_a_disk() {
    let env = TestEnv::new();
    let on_disk = Ram::new(RamBackend::DiskFile { share: true }, 256).default_name();
    let [on_disk, private] = [on_disk, Ram::new(PRIVATE, 256)].map(|ram| busy_guest().ram(ram));
    let mut guest = Guest::boot(&env, on_disk.clone());
    for (mode, victim, at) in interruptions() {
        interrupted(
            &mut guest,
            plan(mode).destination_config(private.clone()),
            victim,
            at,
        );
        guest.migrate(&MigrationPlan::new("precopy").destination_config(on_disk.clone()));
    }
}

/// No other process has an unsent page: both sides report that, and the guest waits for it. It
/// never reads zeros in its place.
fn source_qemu_with_private_memory(with_engine: bool) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, guest_with(PRIVATE));
    let plan = plan("postcopy");
    // A new engine connects to the one that waits there.
    let plan = match with_engine {
        true => plan.receive_args(&["--retry-for", "1h"]),
        false => plan,
    };
    let mut migration = guest.start_migration(&plan.hold_at(Breakpoint::after(Pages).nth(400)));
    migration.wait_held();
    migration
        .migrate
        .wait_stderr("MiB of the guest's memory are private to its process here");
    if with_engine {
        migration.migrate.kill();
    }
    kill_source_qemu(&guest);
    if with_engine {
        migration.relay().cut();
        migration.resume_migrate(&[]);
    } else {
        migration.relay().release();
    }
    let lost = ["its private memory (RAM block", "pc.ram", "are lost"];
    migration.migrate.wait().assert(
        4,
        &[&lost[..], &["the guest is lost", "--give-up"]].concat(),
    );
    migration.receive.wait().assert(
        4,
        &[
            &lost[..],
            &[
                "it waits here for those pages",
                "--give-up --other-side-is-lost",
            ],
        ]
        .concat(),
    );
    let unregistered = migration.receive.stderr_count("stays registered");
    assert_eq!(unregistered, 0, "post-copy's registration is left alone");
    assert_eq!(migration.journals().len(), 1, "that of the destination");
    assert_eq!(migration.destination.exit_status(), None);
    assert_no_wrong_page(&guest);
    // Nothing brings the pages back, and nothing claims to.
    migration.start_receive_resume(&["--give-up", "--other-side-is-lost"]);
    migration
        .receive
        .wait()
        .assert(4, &["the guest has ended here"]);
    migration.destination.wait_exit(LONG).unwrap();
    assert!(migration.journals().is_empty());
    assert_no_wrong_page(&guest);
}

/// No page that the guest has read was wrong.
fn assert_no_wrong_page(guest: &Guest<'_>) {
    for line in guest.vm().console().lines() {
        let wrong = matches!(
            line.report,
            hikkoshi_lab::GuestReport::Bad(_) | hikkoshi_lab::GuestReport::Failed(_)
        );
        assert!(!wrong, "{}: {}", line.vm, line.text);
    }
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_killed_with_private_memory() {
    source_qemu_with_private_memory(false);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_and_engine_killed_with_private_memory() {
    source_qemu_with_private_memory(true);
}

/// A memfd has no name. The engine holds it open, and when it is killed, its guard.
fn source_qemu_with(backend: RamBackend) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, guest_with(backend));
    for with_engine in [false, true] {
        let at = Breakpoint::after(Pages).nth(400);
        if with_engine {
            interrupted(&mut guest, plan("postcopy"), Victim::SourceAndQemu, at);
            assert_no_guard(&env);
            continue;
        }
        let plan = plan("postcopy");
        let migration = guest.start_migration(&plan.hold_at(at));
        migration.wait_held();
        kill_source_qemu(&guest);
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_resumed_migration(&exits, finished, "source QEMU killed");
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// The guard that held the memory ends when the migration has.
fn assert_no_guard(env: &TestEnv) {
    let folder = env.folder().display().to_string();
    eventually("the guards to end", || {
        let commands = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let command = std::fs::read(entry.path().join("cmdline")).ok()?;
                let command = String::from_utf8_lossy(&command).replace('\0', " ");
                (command.contains(" guard ") && command.contains(&folder)).then_some(command)
            });
        let left: Vec<_> = commands.collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_killed_with_a_memfd() {
    source_qemu_with(RamBackend::MEMFD);
}

#[test]
#[ignore = "long: make drills"]
fn source_qemu_killed_with_shared_anonymous_memory() {
    source_qemu_with(RamBackend::SharedAnonymous);
}

/// Links that are reset are replaced by the engines themselves.
#[test]
#[ignore = "long: make drills"]
fn links_reset_with_private_memory() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, guest_with(PRIVATE));
    for at in [
        Breakpoint::before(Commit),
        Breakpoint::before(GuestResumed),
        Breakpoint::after(Pages).nth(300),
    ] {
        let plan = plan("postcopy");
        let plan = plan
            .reset_at(at)
            .migrate_args(&["--retry-for", "200"])
            .receive_args(&["--retry-for", "200"]);
        let migration: Migration = guest.start_migration(&plan);
        let (exits, finished) = migration.wait();
        guest.complete_resumed_migration(&exits, finished, &format!("links reset {at}"));
    }
}
