//! Ctrl-C on either side: before commit the guest runs on at the source as if nothing had
//! happened; after it, nobody stops.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_tests::{Guest, Kind, Moment, Scene, Trip, Via, busy};

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Source,
    Destination,
}

fn cancelled_on(side: Side, via: Via) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let attempts = [
        ("precopy", Moment::after(Pages).nth(20)),
        ("precopy", Moment::before(DeviceStateChunk)),
        ("precopy", Moment::before(Ready)),
        ("hybrid", Moment::after(Pages).nth(20)),
        ("hybrid", Moment::before(Discarded)),
        ("hybrid", Moment::before(Switch)),
        ("postcopy", Moment::before(Discarded)),
        ("postcopy", Moment::before(Ready)),
    ];
    for (mode, moment) in attempts {
        let mut attempt = guest.set_out(&Trip::by(mode).via(via.clone()).hold(moment));
        attempt.wait_held();
        match side {
            Side::Source => attempt.migrate.interrupt(),
            Side::Destination => attempt.receive.interrupt(),
        }
        if side == Side::Destination && moment.kind == Ready {
            // It has said that it is ready: only the source can call it off, and is asked to.
            while attempt.relay().seen(Cancel) == 0 && attempt.relay().seen(Commit) == 0 {
                // The held message is before the question; whichever comes first decides.
                attempt.relay().let_go();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let (ends, arrived) = attempt.wait();
            match ends.codes() {
                [Some(0), Some(0)] => {
                    guest.arrive(&ends, arrived, "running");
                }
                _ => {
                    ends.assert_source(1, &["cancelled", "runs on at the source"]);
                    guest.stay(arrived, "cancelled between ready and commit");
                }
            }
            continue;
        }
        // It ends by itself, and the other one hears of it.
        match side {
            Side::Source => attempt.migrate.wait(),
            Side::Destination => attempt.receive.wait(),
        };
        attempt.relay().let_go();
        let (ends, arrived) = attempt.wait();
        ends.assert_source(1, &["cancelled", "the guest runs on at the source"]);
        match side {
            Side::Source => ends.assert_destination(1, &["stays at the source"]),
            Side::Destination => ends.assert_destination(1, &["cancelled", "stays at the source"]),
        }
        guest.stay(arrived, &format!("{mode}, cancelled {moment}"));
    }
    guest.travel(&Trip::by("hybrid").via(via));
}

#[test]
fn at_the_source() {
    cancelled_on(Side::Source, Via::Tcp);
}

#[test]
fn at_the_destination() {
    cancelled_on(Side::Destination, Via::Unix);
}

/// Without any relay: in the middle of a long pre-copy, by every signal that asks to stop.
#[test]
fn by_any_signal_while_pages_flow() {
    use rustix::process::Signal;
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // It never comes to its end: one round alone takes minutes.
        let endless = ["--bandwidth", "1M", "--max-downtime", "1"];
        let trip = Trip::by("precopy")
            .with(&endless)
            .with(&["--progress", "json"]);
        let attempt = guest.set_out(&trip);
        attempt.migrate.wait_said("\"done_pages\"");
        attempt.migrate.signal(signal);
        let (ends, arrived) = attempt.wait();
        ends.assert_source(1, &["cancelled", "the guest runs on at the source"]);
        ends.assert_destination(1, &["called off", "stays at the source"]);
        guest.stay(arrived, &format!("precopy, {signal:?}"));
    }
    guest.travel(&Trip::by("precopy"));
}

/// The guest runs at the destination and needs its pages: both stay until it has them.
#[test]
fn after_commit_nobody_stops() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    // The source has told the destination to run it, and does not know yet whether it does.
    let attempt = guest.set_out(&Trip::by("precopy").hold(Moment::before(Resumed)));
    attempt.wait_held();
    attempt.migrate.interrupt();
    let word = attempt.migrate.wait_said("not stopping before");
    assert!(word.contains("has been told to run the guest"), "{word}");
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    guest.arrive(&ends, arrived, "running");

    let attempt = guest.set_out(&Trip::by("postcopy").hold(Moment::after(Pages).nth(50)));
    attempt.wait_held();
    attempt.migrate.interrupt();
    attempt.receive.interrupt();
    let needs = "the guest runs at the destination already and needs";
    attempt.migrate.wait_said(needs);
    attempt.receive.wait_said("not stopping before");
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    guest.arrive(&ends, arrived, "running");
}

/// Nobody came: the destination is sent home.
#[test]
fn a_destination_that_waits() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let mut attempt = guest.set_out(&Trip::by("precopy").hold(Moment::before(HelloControl)));
    attempt.wait_held();
    attempt.receive.interrupt();
    let ended = attempt.receive.wait();
    ended.assert(1, &["cancelled", "stays at the source"]);
    attempt.relay().cut();
    let (ends, arrived) = attempt.wait();
    ends.assert_source(1, &["runs on at the source"]);
    guest.stay(arrived, "the destination was sent home");
}
