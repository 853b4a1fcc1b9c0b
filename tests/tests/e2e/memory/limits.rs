//! Destinations whose cgroup limits their memory: which guests are refused, to whom the guest's
//! memory is charged, and what is reported of a QEMU that the kernel has killed.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{LabError, MemoryLimit, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{
    Guest, MigrationPlan, QemuState, TestEnv, assert_not_running, assert_refused, log,
};

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
    let cause = format!(
        "the kernel has killed a process of its cgroup {} for lack of memory",
        too_little.folder().display()
    );
    exits.assert_source(4, &["the guest has ended at the destination", &cause]);
    exits.assert_destination(4, &[&cause, "the guest is lost"]);
    assert_not_running(guest.vm());
}
