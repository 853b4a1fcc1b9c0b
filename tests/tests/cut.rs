//! Links that break at every step. Up to commit the source's guest runs on, and can be moved
//! later; from commit on nobody runs it unless everything has arrived, and both sides say so.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_tests::{
    Guest, Harm, Kind, Moment, Scene, Trip, Via, busy, eventually, goes_on_as_advised,
    harmed_at_each, tell,
};

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

/// The source has said *commit*, or would at once: nobody can tell which side may run it, so
/// nobody does. What the messages advise brings it back.
fn cut_at_commit(mode: &'static str) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    // Not right after *Ready*: the commit may slip through before the cut.
    let moment = Moment::before(Commit);
    let (ends, arrived) = guest.set_out(&Trip::by(mode).cut(moment)).wait();
    ends.assert_destination(3, &["has never run here", "nothing of it is lost"]);
    ends.assert_source(3, &["nothing of it is lost", "'cont'"]);
    goes_on_as_advised(&guest, &arrived, &format!("{mode}, cut {moment}"));
    guest.travel(&Trip::by(mode));
}

#[test]
fn at_commit_in_precopy() {
    cut_at_commit("precopy");
}

#[test]
fn at_commit_in_hybrid() {
    cut_at_commit("hybrid");
}

#[test]
fn at_commit_in_postcopy() {
    cut_at_commit("postcopy");
}

/// The commit has arrived: the destination has the guest, and the source never runs it again.
fn cut_after_commit(mode: &'static str, moment: Moment) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let (ends, arrived) = guest.set_out(&Trip::by(mode).cut(moment)).wait();
    assert_ne!(guest.vm().status().unwrap(), "running");
    match ends.codes() {
        [Some(0), Some(0)] => {
            guest.arrive(&ends, arrived, "running");
        }
        // All of it has arrived: the destination runs it, and only the source cannot know.
        [Some(3), Some(0)] => {
            ends.assert_source(3, &["nothing of it is lost"]);
            ends.assert_destination(0, &["the source could not be told"]);
            tell(format!("{mode}, cut {moment}: it runs at the destination"));
            guest.is_now_in(arrived.destination);
            guest.is_sound();
        }
        _ => {
            assert_ne!(mode, "precopy", "everything had arrived: {ends:?}");
            ends.assert_source(3, &["nothing of it is lost"]);
            ends.assert_destination(
                3,
                &["has run here and stands still now", "nothing of it is lost"],
            );
            // QEMU itself may want a missing page before it is through with `cont`.
            let said = &ends.receive.said;
            assert!(
                said.contains("the guest runs here now")
                    || said.contains("resuming the guest at the destination"),
                "{ends:?}"
            );
            tell(format!(
                "{mode}, cut {moment}: nobody runs it, and both say so"
            ));
            // Whatever waits for its answer need not any longer.
            arrived.destination.kill();
        }
    }
}

#[test]
fn after_commit_in_precopy() {
    cut_after_commit("precopy", Moment::after(Commit));
}

#[test]
fn after_commit_in_hybrid() {
    cut_after_commit("hybrid", Moment::after(Commit));
}

#[test]
fn after_commit_in_postcopy() {
    cut_after_commit("postcopy", Moment::after(Commit));
}

#[test]
fn before_the_source_hears_that_the_guest_runs() {
    cut_after_commit("postcopy", Moment::before(Resumed));
}

#[test]
fn in_the_middle_of_postcopy() {
    cut_after_commit("postcopy", Moment::after(Pages).nth(500));
}

/// All pages are there, and the last word is lost: nothing is, and the guest runs.
#[test]
fn before_the_last_word() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let trip = Trip::by("hybrid").cut(Moment::before(Goodbye));
    let (ends, arrived) = guest.set_out(&trip).wait();
    guest.arrive(&ends, arrived, "running");
    let (ends, arrived) = guest
        .set_out(&Trip::by("postcopy").cut(Moment::before(Complete)))
        .wait();
    // The source cannot know; the destination does.
    ends.assert_source(3, &["nothing of it is lost"]);
    ends.assert_destination(0, &[]);
    eventually("it runs there", || {
        let status = arrived.destination.status().unwrap();
        (status == "running").then_some(()).ok_or(status)
    });
    assert_ne!(guest.vm().status().unwrap(), "running");
    guest.is_now_in(arrived.destination);
    guest.is_sound();
}
