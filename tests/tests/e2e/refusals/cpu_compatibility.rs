//! Guests whose virtual processors differ at the destination.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::V7_2;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv};

/// A guest with two processors of that model.
fn guest(cpu: &str) -> VmConfig {
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let config = VmConfig::new().cpus(2).workload(workload);
    config.arguments(["-cpu", cpu])
}

/// The destination refuses the guest before anything is changed, and prints each of `parts`; the
/// guest continues to run.
fn assert_refused(guest: &mut Guest<'_>, plan: &MigrationPlan, parts: &[&str]) {
    let (exits, finished) = guest.start_migration(plan).wait_for_source_first();
    exits.assert_source(1, &["the destination refuses the guest"]);
    exits.assert_source(1, parts);
    guest.assert_stayed(finished, parts[0]);
}

#[test]
fn different_processors_are_refused_unless_allowed() {
    let env = TestEnv::new();
    let mut test_guest = Guest::boot(&env, guest("max"));
    let to = |config: VmConfig| MigrationPlan::new("hybrid").destination_config(config);
    assert_refused(
        &mut test_guest,
        &to(guest("max,-sse4.2,-avx2")),
        &[
            "the destination's processors lack sse4.2, avx2;",
            "--allow-cpu-mismatch",
        ],
    );
    // A guest that reads CPUID again would get a different value.
    assert_refused(
        &mut test_guest,
        &to(guest("max,phys-bits=42")),
        &["the phys-bits is 40 at the source but 42 at the destination"],
    );
    assert_refused(
        &mut test_guest,
        &to(guest("max").arguments(["-smp", "2,sockets=2,cores=1,threads=1"])),
        &["the number of sockets is 1 at the source but 2 at the destination"],
    );
    // TCG of another version supports other features.
    assert_refused(
        &mut test_guest,
        &to(guest("max").version(V7_2)),
        &["the destination's processors lack", "rdseed", "sha-ni"],
    );
    // A feature that this guest does not use. (Without AVX2 its kernel panics as soon as it runs.)
    let allowed = to(guest("max,-sha-ni")).migrate_args(&["--allow-cpu-mismatch"]);
    let (exits, finished) = test_guest.start_migration(&allowed).wait();
    for end in [&exits.migrate, &exits.receive] {
        end.assert(0, &["the destination's processors lack sha-ni"]);
    }
    test_guest.complete_migration(&exits, finished, "running");
    // Now the guest has these features; additional ones are a difference, too.
    assert_refused(
        &mut test_guest,
        &to(guest("max")),
        &["the destination's processors have sha-ni in addition;"],
    );
}
