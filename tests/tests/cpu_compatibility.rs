//! Guests whose processors would be others at the destination.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::V7_2;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, Scene, Trip};

/// A guest with two processors of that kind.
fn guest(cpu: &str) -> VmConfig {
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let config = VmConfig::new().cpus(2).workload(workload);
    config.arguments(["-cpu", cpu])
}

/// The destination refuses the guest before anything is touched, and says each of `parts`; the
/// guest runs on.
fn refused(guest: &mut Guest<'_>, trip: &Trip, parts: &[&str]) {
    let (ends, arrived) = guest.set_out(trip).wait_for_source_first();
    ends.assert_source(1, &["the destination refuses the guest"]);
    ends.assert_source(1, parts);
    guest.stay(arrived, parts[0]);
}

#[test]
fn other_processors_are_refused_and_named_unless_they_are_allowed() {
    let scene = Scene::new();
    let mut guest_on = Guest::boot(&scene, guest("max"));
    let to = |config: VmConfig| Trip::by("hybrid").to_like(config);
    refused(
        &mut guest_on,
        &to(guest("max,-sse4.2,-avx2")),
        &[
            "the destination's processors lack sse4.2, avx2;",
            "--allow-cpu-mismatch",
        ],
    );
    // A guest that asks again would find more than it did before.
    refused(
        &mut guest_on,
        &to(guest("max,phys-bits=42")),
        &["the phys-bits is 40 at the source but 42 at the destination"],
    );
    refused(
        &mut guest_on,
        &to(guest("max").arguments(["-smp", "2,sockets=2,cores=1,threads=1"])),
        &["the number of sockets is 1 at the source but 2 at the destination"],
    );
    // TCG of another version knows other features.
    refused(
        &mut guest_on,
        &to(guest("max").version(V7_2)),
        &["the destination's processors lack", "rdseed", "sha-ni"],
    );
    // Something that this guest never uses. (Without AVX2 its kernel panics as soon as it runs.)
    let allowed = to(guest("max,-sha-ni")).with(&["--allow-cpu-mismatch"]);
    let (ends, arrived) = guest_on.set_out(&allowed).wait();
    for end in [&ends.migrate, &ends.receive] {
        end.assert(0, &["the destination's processors lack sha-ni"]);
    }
    guest_on.arrive(&ends, arrived, "running");
    // From here on it has these: more is a difference, too.
    refused(
        &mut guest_on,
        &to(guest("max")),
        &["the destination's processors have sha-ni in addition;"],
    );
}
