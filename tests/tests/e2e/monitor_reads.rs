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
fn a_monitor_that_reads_before_the_switch_waits_for_the_pages() {
    let env = TestEnv::new();
    let workload = Workload::verify(64).rate(20_000).option("every_ms", 200);
    let config = VmConfig::new()
        .ram(Ram::new(RamBackend::Default, 192))
        .workload(workload);
    let mut guest = Guest::boot(&env, config);
    for mode in ["hybrid", "postcopy"] {
        let at = Breakpoint::before(MessageKind::Discarded);
        let plan = MigrationPlan::new(mode).transport(Transport::Tcp);
        let migration = guest.start_migration(&plan.hold_at(at));
        migration.wait_held();
        let qmp = migration.destination.qmp();
        let read = json!({ "val": 100 << 20, "size": 4 << 20, "filename": "/dev/null" });
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
