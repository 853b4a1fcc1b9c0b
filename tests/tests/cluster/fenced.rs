//! Nodes fail in each stage of a move, and are fenced: the table of docs/pacemaker.md.

use crate::laboratory::{Laboratory, Resource};
use crate::stages::{Held, Stage};
use hikkoshi_tests::{LONG, Program};
use rustix::process::{Pid, Signal, kill_process};

/// How a node fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// It loses its power.
    Power,
    /// It reaches no other node, until it is fenced.
    Cable,
}

impl Failure {
    fn of(self, laboratory: &Laboratory, node: &str) {
        match self {
            Self::Power => laboratory.node(node).power_off(),
            Self::Cable => laboratory.cluster.cut(node).unwrap(),
        }
    }
}

/// The node fails in that stage. The guest continues, or has started again once from its disk.
fn fails(stage: Stage, node: &str, failure: Failure) {
    let mut held = Held::in_stage(stage);
    failure.of(&held.laboratory, node);
    let laboratory = &held.laboratory;
    laboratory.wait("the node to be fenced", |status| {
        let seen = status.nodes.iter().find(|one| one.name == node);
        laboratory.cluster.power().fenced() == [node]
            && seen.is_some_and(|seen| !seen.online && !seen.unclean)
    });
    held.release();
    let laboratory = &held.laboratory;
    // The guest is lost with its source's memory, or with its destination. Before it is handed
    // over, its destination has nothing that it needs.
    let is_lost = node == "n1" || stage == Stage::Postcopy;
    let runs = if is_lost { 2 } else { 1 };
    if is_lost {
        laboratory.guest("web").wait_run(2, LONG).unwrap();
    }
    laboratory.wait("the guest to be well", |status| {
        let resource = status.resource("web");
        let is_well = resource
            .nodes
            .first()
            .is_some_and(|on| resource.runs_on(on));
        is_well && resource.pending.is_none() && resource.nodes != [node]
    });
    laboratory.assert_whole("web", runs);
    assert_eq!(laboratory.cluster.power().fenced(), [node]);
}

/// A node loses its power while nothing moves: its guest is started again, once.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_guest_of_a_lost_node_starts_again() {
    let laboratory = Laboratory::start(vec![Resource::new("web", 16)]);
    laboratory.wait_on("web", "n1");
    laboratory.move_to("web", "n2");
    laboratory.wait_on("web", "n2");
    laboratory.order("crm_resource --clear --resource web");
    laboratory.node("n2").power_off();
    laboratory.wait("the guest to be started again", |status| {
        let resource = status.resource("web");
        resource.role == "Started" && resource.nodes != ["n2"] && !resource.failed
    });
    laboratory.guest("web").wait_run(2, LONG).unwrap();
    assert_eq!(laboratory.cluster.power().fenced(), ["n2"]);
    laboratory.assert_whole("web", 2);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_loses_its_power_in_precopy() {
    fails(Stage::Precopy, "n1", Failure::Power);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_loses_its_power_around_the_switchover() {
    fails(Stage::Switchover, "n1", Failure::Power);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_loses_its_power_in_postcopy() {
    fails(Stage::Postcopy, "n1", Failure::Power);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destination_loses_its_power_in_precopy() {
    fails(Stage::Precopy, "n2", Failure::Power);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destination_loses_its_power_around_the_switchover() {
    fails(Stage::Switchover, "n2", Failure::Power);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destination_loses_its_power_in_postcopy() {
    fails(Stage::Postcopy, "n2", Failure::Power);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_is_cut_off_in_precopy() {
    fails(Stage::Precopy, "n1", Failure::Cable);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_is_cut_off_around_the_switchover() {
    fails(Stage::Switchover, "n1", Failure::Cable);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_is_cut_off_in_postcopy() {
    fails(Stage::Postcopy, "n1", Failure::Cable);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destination_is_cut_off_in_precopy() {
    fails(Stage::Precopy, "n2", Failure::Cable);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destination_is_cut_off_around_the_switchover() {
    fails(Stage::Switchover, "n2", Failure::Cable);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destination_is_cut_off_in_postcopy() {
    fails(Stage::Postcopy, "n2", Failure::Cable);
}

/// A node that was fenced comes back: its guest, which prefers it, was started elsewhere, and is
/// moved back with its memory.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_guest_goes_back_to_the_node_that_has_returned() {
    let laboratory = Laboratory::start(vec![Resource::new("web", 16)]);
    laboratory.wait_on("web", "n1");
    laboratory.order("crm configure location home web 1000: n1");
    laboratory.cluster.power().set_returns(true);
    laboratory.node("n1").power_off();
    laboratory.guest("web").wait_run(2, LONG).unwrap();
    let machine = laboratory.wait_on("web", "n1");
    assert_eq!(laboratory.cluster.power().fenced(), ["n1"]);
    laboratory.assert_whole("web", 2);
    // It was not started there, but moved.
    let first = laboratory
        .guest("web")
        .machines()
        .into_iter()
        .find(|one| one.name().contains("-2@"));
    assert_ne!(first.unwrap().name(), machine.name());
}

/// The source is fenced in post-copy before its agent has reported that the guest was handed over.
/// The node that has it ends it, before it is started elsewhere from its disk.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_source_is_fenced_before_it_has_reported() {
    let held = Held::in_stage_with(Stage::Postcopy, |laboratory| {
        let source = laboratory.node("n1");
        for agent in source.processes_with(&["ocf-agent", "migrate_to"]) {
            kill_process(Pid::from_raw(agent.cast_signed()).unwrap(), Signal::STOP).unwrap();
        }
    });
    let laboratory = &held.laboratory;
    laboratory
        .order("crm_resource --clear --resource web; crm configure location third web 1000: n3");
    laboratory.node("n1").power_off();
    laboratory.guest("web").wait_run(2, LONG).unwrap();
    laboratory.wait_on("web", "n3");
    laboratory.assert_whole("web", 2);
}

/// A third node does not start a guest from its disk whose memory is on two others.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_third_node_does_not_start_what_others_have() {
    let mut held = Held::in_stage(Stage::Postcopy);
    let mut start = held.laboratory.node("n3").command("crm_resource");
    start.args(["--force", "--force-start", "--resource", "web", "-V"]);
    let start = Program::start("crm_resource --force-start", start).wait();
    assert_ne!(start.code, Some(0), "{start:?}");
    let said = format!("{}{}", start.stdout, start.stderr);
    assert!(
        said.contains("a move of the guest to n2 was begun"),
        "{said}"
    );
    held.finish();
    held.laboratory.wait_on("web", "n2");
    held.laboratory.assert_whole("web", 1);
}
