//! A guest that its owner has paused stays paused, and is whole when it goes on.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, Kind, Moment, Scene, Trip};

#[test]
fn a_paused_guest_stays_paused() {
    let scene = Scene::new();
    let workload = Workload::verify(32).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    for mode in ["precopy", "hybrid", "postcopy"] {
        guest.vm().stop().unwrap();
        let (ends, arrived) = guest.set_out(&Trip::by(mode)).wait();
        let account = guest.arrive(&ends, arrived, "paused");
        assert!(account.downtime_ms == 0.0, "its owner stopped it, not we");
        guest.vm().cont().unwrap();
        guest.is_sound();
    }
}

#[test]
fn a_paused_guest_that_does_not_get_away_stays_paused_too() {
    let scene = Scene::new();
    let workload = Workload::verify(32).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    guest.vm().stop().unwrap();
    // Before its device state has been saved it stays paused, and can be tried again.
    let early = Trip::by("hybrid").cut(Moment::before(Kind::Discarded));
    let (ends, arrived) = guest.set_out(&early).wait();
    ends.assert_source(1, &[]);
    assert_eq!(guest.vm().status().unwrap(), "paused");
    arrived.destination.kill();
    // After that QEMU has a state of its own for it, which only `cont` leaves.
    let late = Trip::by("precopy").cut(Moment::after(Kind::Switch));
    let (ends, arrived) = guest.set_out(&late).wait();
    ends.assert_source(1, &[]);
    assert_eq!(guest.vm().status().unwrap(), "postmigrate");
    arrived.destination.kill();
    guest.vm().cont().unwrap();
    guest.is_sound();
    guest.travel(&Trip::by("hybrid"));
}
