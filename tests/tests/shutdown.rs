//! A guest that shuts itself down while it is moved is not lost: it has ended by its own will, and
//! both sides say so.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Attempt, Guest, Kind, LONG, Moment, Scene, Trip, Via};

/// It runs at the destination, and nothing comes to it that it does not ask for.
fn hardly_there(guest: &mut Guest<'_>, hold: Option<Moment>) -> Attempt {
    let mut trip = Trip::by("postcopy").via(Via::Tcp).with(&[
        "--background-delay",
        "3600000",
        "--read-ahead=off",
    ]);
    if let Some(moment) = hold {
        trip = trip.hold(moment);
    }
    let attempt = guest.set_out(&trip);
    attempt.receive.wait_said("the guest runs here now");
    attempt
}

fn small() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(100).option("every_ms", 200))
}

#[test]
fn a_guest_that_powers_off_in_postcopy() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, small());
    let mut attempt = hardly_there(&mut guest, None);
    // The workload's end is the guest's: it powers off.
    attempt.destination.send("stop").unwrap();
    attempt.destination.wait_exit(LONG).unwrap();
    let migrate = attempt.migrate.wait();
    migrate.assert(0, &[]);
    let ended = "the guest has shut itself down at the destination";
    assert!(migrate.printed.contains(ended), "{migrate:?}");
    let receive = attempt.receive.wait();
    receive.assert(0, &["the guest has shut itself down here"]);
    for said in [&migrate.said, &receive.said] {
        assert!(!said.contains("lost"), "{said}");
    }
    let journals = attempt.journals();
    assert!(journals.is_empty(), "{journals:?}");
    assert_eq!(guest.vm().status().unwrap(), "postmigrate");
}

/// The same, but the source does not hear it: an engine that is started when QEMU has ended long
/// since tells it.
#[test]
fn a_guest_that_powers_off_while_its_source_is_gone() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, small());
    let mut attempt = hardly_there(&mut guest, Some(Moment::before(Kind::ShutDown)));
    attempt.destination.send("stop").unwrap();
    attempt.wait_held();
    attempt.destination.wait_exit(LONG).unwrap();
    attempt.migrate.kill();
    attempt.relay().cut();
    let receive = attempt.receive.wait();
    receive.assert(0, &["the source could not be told so"]);
    attempt.resume_receive(&[]);
    attempt.resume_migrate(&[]);
    attempt.migrate.wait().assert(0, &[]);
    attempt.receive.wait().assert(0, &[]);
    let journals = attempt.journals();
    assert!(journals.is_empty(), "{journals:?}");
    assert_eq!(guest.vm().status().unwrap(), "postmigrate");
}
