//! A QEMU of a version that hikkoshi was not tested with: what it relies on is probed. It is a copy
//! of the newest QEMU that says that it is a later one.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload, unknown_qemu};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, assert_refused};

const NOTE: &str = "this is QEMU 12.0.";

/// A guest on it, with a disk with direct I/O, for which pre-copy has to drain. It does not have
/// the QMP commands `without`.
fn config(env: &TestEnv, without: &[&str]) -> VmConfig {
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let program = unknown_qemu(env.folder(), without).unwrap();
    VmConfig::new().program(program).workload(workload)
}

#[test]
#[ignore = "long: make matrix"]
fn it_is_probed_and_moves_in_every_mode() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, config(&env, &[]));
    for mode in ["precopy", "hybrid", "postcopy"] {
        let (exits, finished) = guest.start_migration(&MigrationPlan::new(mode)).wait();
        for side in [&exits.migrate, &exits.receive] {
            assert!(side.stderr.contains(NOTE), "{mode}: {side:?}");
        }
        guest.complete_migration(&exits, finished, "running");
    }
}

/// Asserts that a move by this mode is refused before anything is changed.
fn refused(guest: &Guest<'_>, mode: &str, parts: &[&str]) {
    let qmp = guest.vm().qmp_path().to_str().unwrap();
    let words = ["migrate", "unix:/nowhere", "--qmp", qmp, "--mode", mode];
    assert_refused(&words, 1, parts);
    guest.assert_healthy();
}

/// Only modes with rounds are refused.
#[test]
#[ignore = "part of `make matrix`"]
fn one_in_which_a_drain_cannot_be_tried_moves_by_post_copy() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, config(&env, &["blockdev-backup"]));
    for mode in ["precopy", "hybrid"] {
        let parts = [
            "QEMU 12.0.",
            "refused the command blockdev-backup",
            "--mode postcopy",
        ];
        refused(&guest, mode, &parts);
    }
    guest.migrate(&MigrationPlan::new("postcopy"));
}

#[test]
#[ignore = "part of `make matrix`"]
fn one_that_cannot_save_the_device_state_is_refused() {
    let env = TestEnv::new();
    let guest = Guest::boot(&env, config(&env, &["xen-save-devices-state"]));
    for mode in ["precopy", "hybrid", "postcopy"] {
        refused(&guest, mode, &["QEMU 12.0.", "xen-save-devices-state"]);
    }
}
