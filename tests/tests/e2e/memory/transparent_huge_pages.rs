//! Private memory arrives in pages of 4 KiB and regains huge pages: by `--collapse`, or by the
//! kernel's own thread.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{
    FastKhugepaged, Ram, RamBackend, VmConfig, Workload, has_transparent_huge_pages,
};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, eventually, free_huge_pages, log};

/// What the kernel's thread must rebuild, of some 100 MiB that the guest uses.
const REBUILT: u64 = 4 << 20;
/// The blocks that have room for a huge page: the guest's memory, and 2 MiB for ACPI tables.
const BLOCKS: [&str; 2] = ["pc.ram", "/rom@etc/acpi/tables"];

/// Bytes of them that QEMU maps as huge pages.
fn huge_bytes(guest: &Guest<'_>) -> u64 {
    let of = |name| guest.vm().ram_block(name).unwrap().huge_bytes().unwrap();
    BLOCKS.into_iter().map(of).sum()
}

#[test]
#[ignore = "long: make matrix"]
fn private_memory_regains_huge_pages() {
    if !has_transparent_huge_pages() {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "the host has transparent huge pages switched off");
        return log("NOT TESTED: the host has transparent huge pages switched off");
    }
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(5000).option("every_ms", 200);
    let ram = Ram::new(RamBackend::Default, 256);
    let config = VmConfig::new().ram(ram).workload(workload);
    let mut guest = Guest::boot_without_extra_disk(&env, config);
    for mode in ["postcopy", "precopy"] {
        let plan = MigrationPlan::new(mode).receive_args(&["--collapse=2G"]);
        let before = free_huge_pages();
        let (exits, finished) = guest.start_migration(&plan).wait();
        let collapse = exits.json_reports[1].as_ref().unwrap().collapse.clone();
        guest.complete_migration(&exits, finished, "running");
        let (collapse, huge) = (collapse.unwrap(), huge_bytes(&guest));
        log(format!("{mode}: {collapse:?}, {} MiB huge", huge >> 20));
        assert!(collapse.tried >= 16, "{collapse:?}");
        hikkoshi_tests::assert_rebuilt(&collapse, before);
        assert!(huge >> 21 >= collapse.rebuilt, "{huge} bytes: {collapse:?}");
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
    // Memory that the guest uses for the first time may be huge.
    let before = huge_bytes(&guest);
    let _fast = FastKhugepaged::start().unwrap();
    eventually("the kernel to rebuild huge pages", || {
        let now = huge_bytes(&guest);
        let change = format!("{} MiB huge before, {} MiB now", before >> 20, now >> 20);
        if now < before + REBUILT {
            return Err(change);
        }
        log(change);
        Ok(())
    });
}
