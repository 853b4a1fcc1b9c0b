//! Destinations whose cgroup limits their memory: which guests are refused, to whom the guest's
//! memory is charged, and what is reported of a QEMU that the kernel has killed.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{LabError, MemoryLimit, Ram, RamBackend, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, MigrationPlan, QemuState, TestEnv, assert_not_running,
    assert_refused, log,
};
use std::process::Command;

/// The guest's memory, MiB.
const RAM_MIB: u64 = 256;
/// What the guest uses of it, at least, MiB.
const USED_MIB: u64 = 160;
/// Less than QEMU needs besides the guest's memory, MiB.
const TOO_LITTLE_MIB: u64 = RAM_MIB + 16;
/// Enough for any QEMU with this guest, MiB.
const ENOUGH_MIB: u64 = 2 * RAM_MIB;
/// Enough for `hikkoshi receive`, and less than the guest uses, MiB.
const RECEIVER_MIB: u64 = 100;

fn guest_with(backend: RamBackend) -> VmConfig {
    VmConfig::new().ram(Ram::new(backend, RAM_MIB)).workload(
        Workload::verify(USED_MIB)
            .rate(1000)
            .option("every_ms", 200),
    )
}

/// `None` where the host does not support limits. Then nothing can be tested, and a run of CI
/// fails.
fn limit(env: &TestEnv, mib: u64) -> Option<MemoryLimit> {
    match MemoryLimit::without_swap(env.lab(), mib) {
        Err(error @ LabError::NoSwap { .. }) => {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "{error}");
            log(format!("NOT TESTED: {error}"));
            None
        }
        other => Some(other.unwrap()),
    }
}

/// Shared memory as well as private memory.
#[test]
fn a_guest_that_does_not_fit_into_the_limit_is_refused() {
    let env = TestEnv::new();
    let kinds = [
        RamBackend::MEMFD,
        RamBackend::File { share: true },
        RamBackend::Anonymous,
    ];
    for (number, backend) in kinds.into_iter().enumerate() {
        let Some(too_little) = limit(&env, TOO_LITTLE_MIB) else {
            return;
        };
        let there = guest_with(backend).memory_limit(&too_little).incoming();
        let there = there.start(env.lab(), &format!("limited{number}")).unwrap();
        let before = QemuState::of_vm(&there);
        let qmp = there.qmp_path().to_str().unwrap();
        let listen = format!("unix:{}", env.folder().join("listen").display());
        let folder = too_little.folder().display().to_string();
        assert_refused(
            &["receive", "--listen", &listen, "--qmp", qmp],
            1,
            &[&folder, "with what QEMU itself needs", "--allow-overcommit"],
        );
        before.assert_unchanged(&there);
    }
}

/// The receiver may use less memory than the guest has: it pays for none of it.
#[test]
#[ignore = "one of its kind runs in CI: make test-rates"]
fn shared_memory_is_charged_to_qemu() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, guest_with(RamBackend::MEMFD));
    for mode in ["precopy", "hybrid"] {
        let (Some(qemu), Some(receiver)) = (limit(&env, ENOUGH_MIB), limit(&env, RECEIVER_MIB))
        else {
            return;
        };
        let enter = format!(
            "echo $$ >{} && exec \"$0\" \"$@\"",
            receiver.processes().display()
        );
        let there = guest_with(RamBackend::MEMFD).memory_limit(&qemu);
        let plan = MigrationPlan::new(mode)
            .destination_config(there)
            .receive_launcher(&["sh", "-c", &enter]);
        guest.migrate(&plan);
        let used = qemu.used_mib().unwrap();
        log(format!("{mode}: {used} MiB are charged to QEMU"));
        assert!(used >= USED_MIB, "{mode}: {used} MiB");
    }
}

fn killed_in(limit: &MemoryLimit) -> String {
    format!(
        "the kernel has killed a process of its cgroup {} for lack of memory",
        limit.folder().display()
    )
}

/// With `--allow-overcommit` the guest may be lost; then both sides say to what.
#[test]
fn a_qemu_that_the_kernel_kills_at_its_limit() {
    let env = TestEnv::new();
    let Some(too_little) = limit(&env, USED_MIB) else {
        return;
    };
    let mut guest = Guest::boot(&env, guest_with(RamBackend::MEMFD));
    let there = guest_with(RamBackend::MEMFD).memory_limit(&too_little);
    let plan = MigrationPlan::new("postcopy")
        .destination_config(there)
        .receive_args(&["--allow-overcommit"]);
    let migration = guest.start_migration(&plan);
    let (exits, _) = migration.wait();
    let cause = killed_in(&too_little);
    exits.assert_source(4, &["the guest has ended at the destination", &cause]);
    exits.assert_destination(4, &[&cause, "the guest is lost"]);
    assert_not_running(guest.vm());
}

/// The kernel kills QEMU while no engine is there: the next one compares with what the first one
/// has counted.
#[test]
#[ignore = "one of its kind runs in CI: make test-rates"]
fn a_qemu_that_the_kernel_kills_between_two_engines() {
    let env = TestEnv::new();
    let Some(limit) = limit(&env, USED_MIB) else {
        return;
    };
    let mut guest = Guest::boot(&env, guest_with(RamBackend::MEMFD));
    let there = guest_with(RamBackend::MEMFD).memory_limit(&limit);
    let plan = MigrationPlan::new("postcopy")
        .destination_config(there)
        .receive_args(&["--allow-overcommit"])
        .hold_at(Breakpoint::after(MessageKind::GuestResumed));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.receive.kill();
    migration.migrate.kill();
    migration.relay().cut();
    use_up(&limit, USED_MIB, &migration.destination);
    migration.start_receive_resume(&[]);
    let (exits, _) = migration.wait();
    exits.assert_destination(4, &[&killed_in(&limit), "the guest is lost"]);
    assert_not_running(guest.vm());
}

/// The source says so, too.
#[test]
#[ignore = "one of its kind runs in CI: make test-rates"]
fn a_source_that_the_kernel_kills_at_its_limit() {
    let env = TestEnv::new();
    let Some(limit) = limit(&env, ENOUGH_MIB) else {
        return;
    };
    let config = guest_with(RamBackend::MEMFD).memory_limit(&limit);
    let mut guest = Guest::boot(&env, config);
    let plan = MigrationPlan::new("precopy")
        .destination_config(guest_with(RamBackend::MEMFD))
        .hold_at(Breakpoint::after(MessageKind::Pages).nth(10));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    use_up(&limit, ENOUGH_MIB, guest.vm());
    migration.relay().release();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["the guest with it: ", &killed_in(&limit)]);
    assert_not_running(&finished.destination);
}

/// Uses more memory than the limit allows. The kernel kills the machine first.
fn use_up(limit: &MemoryLimit, mib: u64, vm: &Vm) {
    std::fs::write(format!("/proc/{}/oom_score_adj", vm.pid()), "1000").unwrap();
    let bytes = (2 * mib) << 20;
    let script = format!(
        "echo $$ >{} && head -c {bytes} /dev/zero | tail -c {bytes} >/dev/null",
        limit.processes().display()
    );
    // It is killed as well.
    Command::new("sh").args(["-c", &script]).status().unwrap();
    vm.wait_exit(LONG).unwrap();
}
