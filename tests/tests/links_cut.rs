//! Links that break at every step up to commit, and at the very end. Up to commit the source's guest
//! runs on, and can be moved later; what comes after it is described in `recovery.rs`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_tests::{Guest, Harm, Kind, Moment, Scene, Trip, Via, busy, harmed_at_each};

/// A destination that let a source in which then went away takes the next one.
#[test]
fn the_same_destination_takes_the_next_one() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let trip = Trip::by("hybrid").cut(Moment::before(Begin));
    let mut attempt = guest.set_out(&trip);
    attempt.migrate.wait().assert(1, &["runs on at the source"]);
    attempt.receive.wait_said("refused a guest");
    attempt.migrate_again(guest.vm());
    let (ends, arrived) = attempt.wait();
    guest.arrive(&ends, arrived, "running");
}

/// Cuts all links at each of `moments`, and moves the guest in the end.
fn cut_at_each(mode: &'static str, via: Via, moments: impl IntoIterator<Item = Moment>) {
    let steps = moments.into_iter().map(|moment| (mode, moment));
    harmed_at_each(Harm::LinksCut, via, steps);
}

/// A source that comes no further than its first words: the destination goes on waiting.
fn cut_early(mode: &'static str, via: Via) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let early = [
        Moment::before(HelloControl),
        Moment::after(HelloControl),
        Moment::before(Greeting),
        Moment::before(Begin),
    ];
    for moment in early {
        let trip = Trip::by(mode).via(via.clone()).cut(moment);
        let mut attempt = guest.set_out(&trip);
        let ended = attempt.migrate.wait();
        ended.assert(1, &["the guest runs on at the source"]);
        assert!(!attempt.receive.has_ended(), "it goes on waiting");
        attempt.receive.interrupt();
        let (ends, arrived) = attempt.wait();
        ends.assert_destination(1, &["cancelled", "the guest stays at the source"]);
        guest.stay(arrived, &format!("{mode}, cut {moment}"));
    }
    guest.travel(&Trip::by(mode).via(via));
}

#[test]
fn before_the_guest_was_offered() {
    cut_early("hybrid", Via::Tcp);
}

#[test]
fn at_each_step_of_precopy() {
    let moments = [
        Moment::after(Begin),
        Moment::before(Accept),
        Moment::after(Accept),
        Moment::before(HelloBackground),
        Moment::after(HelloBackground),
        Moment::before(Pages),
        Moment::after(Pages),
        Moment::after(Pages).nth(40),
        Moment::before(Ack),
        Moment::after(Zeros),
        Moment::before(DeviceStateChunk),
        Moment::after(DeviceStateChunk),
        Moment::before(Switch),
        Moment::after(Switch),
        Moment::before(Ready),
    ];
    cut_at_each("precopy", Via::Unix, moments);
}

#[test]
fn at_each_step_of_postcopy() {
    let moments = [
        Moment::after(Begin),
        Moment::after(Accept),
        Moment::after(HelloBackground),
        Moment::before(HelloUrgent),
        Moment::after(HelloUrgent),
        Moment::before(Discard),
        Moment::after(Discard),
        Moment::before(DiscardEnd),
        Moment::after(DiscardEnd),
        Moment::before(Discarded),
        Moment::after(Discarded),
        Moment::before(DeviceStateChunk),
        Moment::after(DeviceStateChunk),
        Moment::before(Switch),
        Moment::after(Switch),
        Moment::before(Ready),
    ];
    cut_at_each("postcopy", Via::Tcp, moments);
}

#[test]
fn at_each_step_of_hybrid() {
    let moments = [
        Moment::after(HelloUrgent),
        Moment::after(Pages),
        Moment::before(Pages).nth(60),
        Moment::before(Discard),
        Moment::after(Discard),
        Moment::after(DiscardEnd),
        Moment::before(Discarded),
        Moment::after(DeviceStateChunk),
        Moment::before(Switch),
        Moment::after(Switch),
        Moment::before(Ready),
    ];
    cut_at_each("hybrid", Via::Unix, moments);
}

/// All pages are there, and the last word is lost: nothing is, and the guest runs.
#[test]
fn before_the_last_word() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let trip = Trip::by("hybrid").cut(Moment::before(Goodbye));
    let (ends, arrived) = guest.set_out(&trip).wait();
    guest.arrive(&ends, arrived, "running");
    let mut attempt = guest.set_out(&Trip::by("postcopy").cut(Moment::before(Complete)));
    // The source cannot know; the destination does.
    attempt.receive.wait().assert(0, &["could not be told so"]);
    let ended = attempt.migrate.wait();
    ended.assert(3, &["othing of it is lost", "hikkoshi migrate --resume="]);
    // It can be told later.
    attempt.resume_receive(&[]);
    attempt.resume_migrate(&[]);
    let (ends, arrived) = attempt.wait();
    guest.arrive_after_all(&ends, arrived, "cut before Complete");
}
