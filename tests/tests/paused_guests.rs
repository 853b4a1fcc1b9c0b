//! A guest that its owner has paused stays paused, and is whole when it goes on.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::V7_2;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, Kind, Moment, Scene, Trip, refused, tell};

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
    let stays = ["the guest is paused at the source, as it was"];
    for (mode, moment) in [
        ("precopy", Moment::after(Kind::Pages)),
        ("hybrid", Moment::before(Kind::Discarded)),
        ("postcopy", Moment::after(Kind::DeviceStateChunk)),
        // Its device state has been saved, and it can be moved again all the same.
        ("precopy", Moment::after(Kind::Switch)),
        ("hybrid", Moment::before(Kind::Switch)),
        ("postcopy", Moment::before(Kind::Ready)),
    ] {
        let (ends, arrived) = guest.set_out(&Trip::by(mode).cut(moment)).wait();
        ends.assert_source(1, &stays);
        assert!(!ends.migrate.said.contains("runs on"), "{ends:?}");
        assert_eq!(guest.vm().status().unwrap(), "paused", "{mode}, {moment}");
        tell(format!("{mode}, cut {moment}: still paused"));
        arrived.destination.kill();
    }
    let (ends, arrived) = guest.set_out(&Trip::by("hybrid")).wait();
    guest.arrive(&ends, arrived, "paused");
    guest.vm().cont().unwrap();
    guest.is_sound();
    guest.travel(&Trip::by("postcopy"));
}

/// Its engine is killed: QEMU itself, or the guard, puts it back.
#[test]
fn a_paused_guest_whose_engine_is_killed_stays_paused() {
    let scene = Scene::new();
    let workload = Workload::verify(32).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    guest.vm().stop().unwrap();
    for moment in [
        Moment::before(Kind::DeviceStateChunk),
        Moment::before(Kind::Switch),
        Moment::before(Kind::Ready),
    ] {
        let mut attempt = guest.set_out(&Trip::by("hybrid").hold(moment));
        attempt.wait_held();
        attempt.migrate.kill();
        attempt.relay().cut();
        let (_, arrived) = attempt.wait_for_source_first();
        arrived.before.assert_same(guest.vm());
        assert_eq!(guest.vm().status().unwrap(), "paused", "{moment}");
        tell(format!("killed {moment}: still paused"));
    }
    guest.vm().cont().unwrap();
    guest.is_sound();
}

/// QEMU 7.2 has no way back from having saved a paused guest, and that is said.
#[test]
fn an_old_qemu_does_not_call_it_paused() {
    let scene = Scene::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let config = VmConfig::new().version(V7_2).workload(workload);
    let mut guest = Guest::boot(&scene, config);
    guest.vm().stop().unwrap();
    let late = Trip::by("precopy").cut(Moment::after(Kind::Switch));
    let (ends, arrived) = guest.set_out(&late).wait();
    ends.assert_source(
        1,
        &["paused at the source, as it was", "'postmigrate'", "'cont'"],
    );
    assert_eq!(guest.vm().status().unwrap(), "postmigrate");
    arrived.destination.kill();
    let qmp = guest.vm().qmp_path().to_str().unwrap().to_owned();
    refused(
        &["migrate", &scene.nowhere(), "--qmp", &qmp],
        3,
        &[
            "postmigrate",
            "never continue it here",
            "nothing was changed",
        ],
    );
    guest.vm().cont().unwrap();
    guest.is_sound();
    guest.travel(&Trip::by("hybrid"));
}
