//! A guest returns memory to the host while it moves, by a balloon with free page reporting. With
//! `init_on_free` it relies on the zeros that it has written before, which are in no page.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{Device, HugePageSize, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, eventually, log};

use super::disk_files::is_on_disk;

/// The guest's memory, MiB.
const MIB: u64 = 256;
/// What it frees: so much of its memory that most of that is used again.
const RETURNED_MIB: u64 = 96;
/// The share that the balloon has to return, percent: it does not return pieces below 4 MiB.
const SHARE: u64 = 75;
const PAGES_PER_MIB: u64 = 256;

/// Pages with content that are copied before the memory is freed: more than the guest has without
/// this memory by far, and less than it has.
const COPIED: u64 = 36_000;
/// So slowly that the first round has not ended by then.
const SLOWLY: [&str; 2] = ["--bandwidth", "20MB"];
/// Pages are held for as long as the guest and its balloon need.
const PATIENTLY: [&str; 2] = ["--stall-timeout", "1h"];

/// The name of the memory, if the machine has no other.
const BLOCK: &str = "pc.ram";

fn config(backend: RamBackend) -> VmConfig {
    let workload = Workload::verify(32)
        .rate(20_000)
        .option("every_ms", 200)
        .with_returned_memory(RETURNED_MIB);
    VmConfig::new()
        .ram(Ram::new(backend, MIB).default_name())
        .workload(workload)
        .device(Device::ReportingBalloon)
        .kernel_option("init_on_free=1")
}

fn move_while_memory_is_returned(from: RamBackend, to: RamBackend) {
    let env = TestEnv::new();
    let mut guest = Guest::boot_without_extra_disk(&env, config(from));
    let evicted = matches!(from, RamBackend::DiskFile { .. });
    if evicted && !is_on_disk(guest.vm()) {
        return;
    }
    let plan = MigrationPlan::new("precopy")
        .destination_config(config(to))
        .migrate_args(&SLOWLY)
        .migrate_args(&PATIENTLY)
        .receive_args(&PATIENTLY)
        .with_relay();
    let migration = guest.start_migration(&plan);
    let pages = RETURNED_MIB * PAGES_PER_MIB;
    let sent = migration.relay().sent_pages();
    eventually("most of the memory to be copied", || {
        match sent.first_with_content() {
            copied if copied >= COPIED => Ok(()),
            copied => Err(format!("{copied} pages are there")),
        }
    });
    migration.relay().hold_pages();
    let block = guest.vm().ram_block(BLOCK).unwrap();
    let before = block.present_pages().unwrap();
    assert_eq!(guest.vm().free(LONG).unwrap(), pages);
    eventually("the balloon to return the memory", || {
        let after = block.present_pages().unwrap();
        let returned = before.saturating_sub(after) as u64;
        let change = format!("{before} pages before, {after} now");
        if returned * 100 < pages * SHARE {
            return Err(change);
        }
        log(format!("{from}: {change}"));
        Ok(())
    });
    if evicted {
        guest.vm().evict_ram().unwrap();
    }
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
    let used = guest.vm().use_again(LONG).unwrap();
    assert_eq!(used.bad, 0, "NEVER RETRIED: wrong pages, of {from} to {to}");
    assert_eq!(used.pages, pages, "of {from} to {to}");
    guest.assert_healthy();
}

#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn private_memory() {
    move_while_memory_is_returned(RamBackend::Default, RamBackend::Default);
}

#[test]
#[ignore = "part of `make matrix`"]
fn a_memfd() {
    move_while_memory_is_returned(RamBackend::MEMFD, RamBackend::MEMFD);
}

/// What is left in the file is evicted, too.
#[test]
#[ignore = "part of `make matrix`"]
fn a_file_on_a_disk() {
    let from = RamBackend::DiskFile { share: true };
    move_while_memory_is_returned(from, RamBackend::Default);
}

/// No kernel reports what is left of such pages: the dirty log looks for it.
#[test]
#[ignore = "one of its kind runs in CI: make matrix"]
fn huge_pages() {
    let (size, share) = (HugePageSize::Mib2, true);
    let huge = RamBackend::Hugetlbfs { size, share };
    move_while_memory_is_returned(huge, huge);
}
