//! Asynchronous page faults: while a page of the nano guest is on its way, another of its tasks
//! runs.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::{AsynchronousFaults, FaultKind, ThreadFaults};
use hikkoshi_lab::{GuestReport, Ram, RamBackend, Scanned, Totals, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Guest, LONG, MessageKind, Migration, MigrationPlan, TestEnv, eventually, kvm_present, log,
};
use std::time::Duration;

const TASKS: u32 = 8;
const MIB: u64 = 1;
const PAGES: u64 = MIB * 256;

/// Faults whose times the guest notes: fewer than there are.
const NOTED: usize = 50;

/// A processor model with KVM's asynchronous page faults. (`host` has them, too, but KVM that is
/// virtualised in software does not accept all of its registers. The tests in `kvm` use the default
/// model, which has none.)
const PROCESSOR: [&str; 2] = ["-cpu", "qemu64,kvm-asyncpf-int=on"];

/// Tasks that read their own memory from start to end, once, after the command `scan`.
fn guest(workload: Workload) -> VmConfig {
    VmConfig::new()
        .kvm()
        .nano()
        .ram(Ram::new(RamBackend::Default, 64))
        .workload(workload)
        .arguments(PROCESSOR)
}

fn scan() -> Workload {
    let scan = Workload::scan(MIB).threads(TASKS).option("every_ms", 200);
    // Between two interrupts of the timer, a task without asynchronous faults blocks all others.
    scan.option("slice_us", 50_000)
}

/// Post-copy that sends nothing but requested pages, each after `delay`.
fn only_requests(delay: Duration) -> MigrationPlan {
    MigrationPlan::new("postcopy")
        .delay(MessageKind::Request, delay)
        .migrate_args(&["--read-ahead", "off"])
        .migrate_args(&["--background-delay", "3600000"])
        .receive_args(&["--retry-for", "1h"])
}

/// A new source engine pushes the remaining pages.
fn push_the_rest(migration: &mut Migration) {
    migration.migrate.kill();
    migration.resume_migrate(&["--background-delay", "0"]);
}

fn wait_scanned(vm: &Vm) -> Scanned {
    vm.wait_report("the end of the scan", 0, LONG, |report| match report {
        GuestReport::Scanned(scanned) => Some(*scanned),
        _ => None,
    })
    .unwrap()
}

/// Scans the memory at the destination of a post-copy, where it is missing.
fn scan_missing_pages(guest: &mut Guest<'_>) -> Totals {
    let mut migration = guest.start_migration(&only_requests(Duration::from_millis(2)));
    migration.receive.wait_stderr("the guest runs here now");
    let there = migration.destination.clone();
    there.send("scan").unwrap();
    let scanned = wait_scanned(&there);
    let totals = there.totals(LONG).unwrap();
    log(format!("{scanned:?} {totals:?}"));
    assert!(scanned.ok && scanned.pages == PAGES, "{scanned:?}");
    assert_eq!(totals.waiting, 0, "{totals:?}");
    push_the_rest(&mut migration);
    let (exits, finished) = migration.wait();
    guest.complete_resumed_migration(&exits, finished, "scanned");
    totals
}

#[test]
fn other_tasks_run_while_a_page_is_missing() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let noting = scan().option("fault_times", NOTED);
    let mut with = Guest::boot_without_extra_disk(&env, guest(noting));
    let totals = scan_missing_pages(&mut with);
    assert!(
        totals.async_faults && totals.not_present > PAGES / 2,
        "{totals:?}"
    );
    let noted = with.vm().faults(LONG).unwrap();
    assert_eq!(noted.len(), NOTED, "{totals:?}");
    for fault in noted {
        let times = [fault.not_present, fault.other, fault.ready, fault.resumed];
        assert!(times.is_sorted() && times[0] > 0, "{fault:?}");
    }
    drop(with);

    let env = env.another();
    let workload = scan().option("async_pf", "off");
    let mut without = Guest::boot_without_extra_disk(&env, guest(workload));
    let totals = scan_missing_pages(&mut without);
    assert!(
        !totals.async_faults && totals.not_present == 0,
        "{totals:?}"
    );
    assert!(totals.synchronous > PAGES / 2, "{totals:?}");
}

/// The guest is paused while every task waits for a page, and moved on to a third QEMU, which knows
/// nothing of these faults: each task must try its access again.
#[test]
fn tasks_that_wait_while_the_guest_is_moved_on_are_woken() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let mut guest = Guest::boot_without_extra_disk(&env, guest(scan()).cpus(2));
    let plan = only_requests(Duration::from_millis(50));
    let mut migration = guest.start_migration(&plan);
    migration.receive.wait_stderr("the guest runs here now");
    let there = migration.destination.clone();
    there.send("scan").unwrap();
    eventually("every task to wait", || {
        let totals = there.totals(LONG).unwrap();
        match totals.waiting == u64::from(TASKS) {
            true => Ok(()),
            false => Err(format!("{totals:?}")),
        }
    });
    there.stop().unwrap();
    push_the_rest(&mut migration);
    let (exits, finished) = migration.wait();
    exits.assert_source(0, &[]);
    exits.assert_destination(0, &[]);
    guest.set_vm(finished.destination);

    let (exits, finished) = guest.start_migration(&MigrationPlan::new("precopy")).wait();
    guest.complete_migration(&exits, finished, "paused");
    guest.vm().cont().unwrap();
    let scanned = wait_scanned(guest.vm());
    let totals = guest.vm().totals(LONG).unwrap();
    // Every other task got its own event.
    let woken_by_broadcast = totals.not_present - (totals.ready - totals.broadcasts);
    log(format!("{woken_by_broadcast} tasks waited; {totals:?}"));
    assert!(scanned.ok && scanned.pages == PAGES, "{scanned:?}");
    assert_eq!(totals.waiting, 0, "{totals:?}");
    assert!(woken_by_broadcast > 0, "{totals:?}");
    guest.assert_healthy();
}

/// Four processors with two tasks each, which write. Every page is checked after each move.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn tasks_of_several_processors_write_during_moves() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let workload = Workload::verify(16).threads(TASKS).rate(20_000);
    let config = guest(workload.option("every_ms", 200)).cpus(4);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    for mode in ["postcopy", "hybrid", "precopy"] {
        let report = guest.migrate(&MigrationPlan::new(mode));
        assert_eq!(report.asynchronous_faults, Some(AsynchronousFaults::Used));
        let of_workers = |faults: &&ThreadFaults| faults.kind == FaultKind::Asynchronous;
        let handled = report.requests.faults.iter().find(of_workers);
        // After pre-copy all pages may have arrived before a task needs one.
        match mode {
            "postcopy" => assert!(handled.is_some(), "{:?}", report.requests.faults),
            "precopy" => assert!(handled.is_none(), "{:?}", report.requests.faults),
            _ => {}
        }
        let totals = guest.vm().totals(LONG).unwrap();
        log(format!("{mode}: {totals:?}"));
        assert!(totals.not_present > 0, "{totals:?}");
    }
}
