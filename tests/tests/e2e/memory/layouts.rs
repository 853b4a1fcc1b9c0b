//! Memory in several files, as NUMA nodes or as a DIMM, and in huge pages.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::fs::File;
use std::path::Path;

use hikkoshi_lab::{Ram, VmConfig, Workload};
use hikkoshi_tests::{Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Transport};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

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
        // The stale pages have been dropped. Another process reads the destination's memory, which
        // fills it with zeros. QEMU's own reads would wait.
        for path in migration.destination.ram_files() {
            read_through_a_mapping(path, 100 << 20);
        }
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
    }
}

/// Reads each page of the first `most` bytes.
fn read_through_a_mapping(path: &Path, most: usize) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let map: MmapRegion = MmapRegion::from_file(FileOffset::new(file, 0), bytes).unwrap();
    for page in (0..bytes.min(most)).step_by(4096) {
        let _: u8 = map.as_volatile_slice().read_obj(page).unwrap();
    }
}

/// More than one node holds, so both nodes are written.
fn large() -> Workload {
    Workload::verify(128).threads(2).rate(40_000)
}

#[test]
#[ignore = "part of `make matrix`"]
fn numa_nodes() {
    migrate_by_all_modes(Ram::shared(0).numa(&[128, 192]), large());
}

#[test]
#[ignore = "part of `make matrix`"]
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
#[ignore = "one of its kind runs in CI: make matrix"]
fn huge_pages_written_as_fast_as_possible() {
    migrate_by_all_modes(Ram::huge_2m(256), Workload::verify(32).threads(2));
}
