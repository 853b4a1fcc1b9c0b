//! Memory in several files, as NUMA nodes or as a DIMM, and in huge pages.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Ram, VmConfig, Workload};
use hikkoshi_tests::{Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Transport};
use serde_json::json;

fn migrate_by_all_modes(ram: Ram, workload: Workload) {
    let env = TestEnv::new();
    let config = VmConfig::new()
        .cpus(2)
        .ram(ram)
        .workload(workload.option("every_ms", 200));
    let mut guest = Guest::boot(&env, config);
    guest.migrate(&MigrationPlan::new("precopy").transport(Transport::Tcp));
    for mode in ["hybrid", "postcopy"] {
        let at = Breakpoint::before(MessageKind::Switch);
        let migration = guest.start_migration(
            &MigrationPlan::new(mode)
                .transport(Transport::Tcp)
                .hold_at(at),
        );
        migration.wait_held();
        // The stale pages have been dropped. A process reads the destination's memory, which fills
        // it with zeros, before it is registered with userfaultfd.
        let look = json!({ "val": 0, "size": 100 << 20, "filename": "/dev/null" });
        let qmp = migration.destination.qmp();
        qmp.execute("pmemsave", look).unwrap();
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
    }
}

/// More than one node holds, so both nodes are written.
fn large() -> Workload {
    Workload::verify(128).threads(2).rate(40_000)
}

#[test]
fn numa_nodes() {
    migrate_by_all_modes(Ram::shared(0).numa(&[128, 192]), large());
}

#[test]
fn a_dimm() {
    migrate_by_all_modes(Ram::shared(192).dimm(128), large());
}

#[test]
fn huge_pages() {
    migrate_by_all_modes(
        Ram::huge_2m(256),
        Workload::verify(32).threads(2).rate(20_000).grow(4, 64),
    );
}

#[test]
fn huge_pages_written_as_fast_as_possible() {
    migrate_by_all_modes(Ram::huge_2m(256), Workload::verify(32).threads(2));
}
