//! Guests whose memory does not fit into the host's: pages are swapped, at both sides.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{LabError, MemoryLimit, Ram, RamBackend, Vm, VmConfig, Workload, ZramSwap};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, log};

/// The guest's memory, of which it uses most, MiB.
const RAM_MIB: u64 = 256;
/// What each machine may use, with QEMU itself, MiB.
const LIMIT_MIB: u64 = 160;
/// Far less than what has to be swapped, MiB.
const SWAPPED_MIB: u64 = 8;

/// The memory of QEMU that is swapped, MiB.
fn swapped_mib(vm: &Vm) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", vm.pid())).unwrap();
    let line = smaps.lines().find_map(|line| line.strip_prefix("Swap:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() >> 10
}

/// Swap space, or `None` where the host does not support it. Then nothing can be tested, and a run
/// of CI fails.
fn swap() -> Option<ZramSwap> {
    match ZramSwap::new(1024) {
        Err(error @ LabError::NoSwap { .. }) => {
            let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "{error}");
            log(format!("NOT TESTED: {error}"));
            None
        }
        other => Some(other.unwrap()),
    }
}

fn migrate_by_all_modes(backend: RamBackend) {
    let Some(_swap) = swap() else { return };
    let env = TestEnv::new();
    // Slow enough to make progress while its pages are read from swap.
    let workload = Workload::verify(160).rate(1000).option("every_ms", 200);
    let limited = |limit: &MemoryLimit| {
        let ram = Ram::new(backend, RAM_MIB);
        let config = VmConfig::new().ram(ram).workload(workload.clone());
        config.memory_limit(limit)
    };
    let limit = || MemoryLimit::new(env.lab(), LIMIT_MIB).unwrap();
    let mut guest = Guest::boot(&env, limited(&limit()));
    for mode in ["hybrid", "precopy", "postcopy"] {
        let before = swapped_mib(guest.vm());
        let plan = MigrationPlan::new(mode).destination_config(limited(&limit()));
        guest.migrate(&plan);
        let after = swapped_mib(guest.vm());
        log(format!(
            "{mode}: {before} MiB swapped before, {after} MiB after"
        ));
        assert!(before >= SWAPPED_MIB && after >= SWAPPED_MIB, "not swapped");
    }
}

#[test]
#[ignore = "long: make matrix"]
fn a_swapped_file() {
    migrate_by_all_modes(RamBackend::File { share: true });
}

#[test]
#[ignore = "long: make matrix"]
fn swapped_private_memory() {
    migrate_by_all_modes(RamBackend::Anonymous);
}
