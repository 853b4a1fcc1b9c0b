//! Both QEMU versions, and from one to the other.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::{V7_2, V10_0};
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, Scene, Trip, Via};

#[test]
fn the_older_one_in_every_mode() {
    let scene = Scene::new();
    let workload = Workload::verify(48).threads(2).option("every_ms", 200);
    let config = VmConfig::new().version(V7_2).cpus(2).workload(workload);
    let mut guest = Guest::boot(&scene, config);
    for mode in ["precopy", "hybrid", "postcopy"] {
        guest.travel(&Trip::by(mode).via(Via::Tcp));
    }
}

#[test]
fn from_the_older_to_the_newer_and_back() {
    let scene = Scene::new();
    let workload = Workload::verify(32).rate(20_000).option("every_ms", 200);
    let config = VmConfig::new().version(V7_2).workload(workload);
    let mut guest = Guest::boot(&scene, config);
    for (version, mode) in [
        (V10_0, "hybrid"),
        (V7_2, "precopy"),
        (V10_0, "postcopy"),
        (V7_2, "hybrid"),
        (V10_0, "precopy"),
    ] {
        guest.travel(&Trip::by(mode).to(version));
    }
}
