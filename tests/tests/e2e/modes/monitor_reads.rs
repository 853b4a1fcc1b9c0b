//! The destination's monitor reads the guest's memory during the switchover.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::thread;
use std::time::Duration;

use hikkoshi_lab::{Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Transport};
use serde_json::json;

/// The memory is registered before the pause, so QEMU's main thread waits. Meanwhile hikkoshi makes
/// QEMU drop pages, sends the device state, and QEMU loads it after the read.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn a_monitor_that_reads_before_the_switch_waits_for_the_pages() {
    let env = TestEnv::new();
    let workload = Workload::verify(192).rate(20_000).option("every_ms", 200);
    let config = VmConfig::new()
        .ram(Ram::new(RamBackend::Default, 288))
        .workload(workload);
    let mut guest = Guest::boot(&env, config);
    // By hybrid, only dirty pages are missing. All but 96 MiB of this guest are written all the
    // time, so a longer range has some. By post-copy, all pages are missing.
    for (mode, read_mib) in [("hybrid", 104_u64), ("postcopy", 4)] {
        let at = Breakpoint::before(MessageKind::Discarded);
        let plan = MigrationPlan::new(mode).transport(Transport::Tcp);
        let migration = guest.start_migration(&plan.hold_at(at));
        migration.wait_held();
        let qmp = migration.destination.qmp();
        let read = json!({ "val": 100 << 20, "size": read_mib << 20, "filename": "/dev/null" });
        thread::scope(|scope| {
            let read = scope.spawn(|| qmp.execute("pmemsave", read));
            thread::sleep(Duration::from_millis(100));
            assert!(!read.is_finished(), "{mode}: it reads missing pages");
            migration.relay().release();
            read.join().unwrap().unwrap();
        });
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
    }
}
