//! Guests are started, moved and stopped.

use crate::laboratory::{Laboratory, Resource};
use crate::stages::{Held, Stage};
use hikkoshi_tests::{LONG, log};
use std::fs;

/// The sample: the life of a guest in a cluster.
#[test]
fn a_guest_starts_moves_and_stops() {
    let laboratory = Laboratory::start(vec![Resource::new("web", 16)]);
    laboratory.wait_on("web", "n1");
    laboratory.move_to("web", "n2");
    laboratory.wait_on("web", "n2");
    laboratory.move_to("web", "n1");
    laboratory.wait_on("web", "n1");
    laboratory.assert_whole("web", 1);
    laboratory.order("crm resource stop web");
    laboratory.assert_stopped("web");
    assert!(laboratory.cluster.power().fenced().is_empty());
}

/// A node with six guests is emptied by a standby: at most two move at a time.
#[test]
#[ignore = "six guests: make test-cluster"]
fn a_node_with_six_guests_is_emptied() {
    const NAMES: [&str; 6] = ["g1", "g2", "g3", "g4", "g5", "g6"];
    let resource = |name| {
        let mut resource =
            Resource::new(name, 12).params("bandwidth=8M options=\"--compress off\"");
        resource.config = resource.config.workload(Resource::workload(12).rate(200));
        resource
    };
    let laboratory = Laboratory::start(NAMES.map(resource).into());
    laboratory.order("crm configure property migration-limit=2");
    for name in NAMES {
        if laboratory.where_is(name) != "n1" {
            laboratory.move_to(name, "n1");
        }
    }
    for name in NAMES {
        laboratory.wait_on(name, "n1");
        laboratory.order(&format!("crm_resource --clear --resource {name}"));
    }
    laboratory.order("crm_standby --node n1 --update on");
    let mut most = 0;
    laboratory.wait("all guests to have left", |_| {
        let moving = laboratory
            .node("n1")
            .processes_with(&["ocf-agent", "migrate_to"]);
        most = most.max(moving.len());
        let here = NAMES.map(|name| laboratory.guest(name).on("n1"));
        here.iter().flatten().count() == 0
    });
    log(format!("at most {most} moves at a time"));
    assert!((1..=2).contains(&most), "{most}");
    for name in NAMES {
        let on = laboratory.where_is(name);
        laboratory.wait_on(name, &on);
    }
    laboratory.assert_all_whole(1);
    // The scheduler wants each move until it has ended, also while others end.
    let log = laboratory.node("n1").pacemaker_log();
    assert!(!log.contains("would not order"), "{log}");
    assert!(laboratory.cluster.power().fenced().is_empty());
}

/// The destination refuses the guest: it stays, is watched again after a while, and the move that
/// is still ordered is made when it can be.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_refused_move_is_tried_again() {
    let laboratory = Laboratory::start(vec![Resource::new("web", 16).params("refresh=3")]);
    laboratory.wait_on("web", "n1");
    let template = laboratory.node("n2").etc().join("web.template");
    let right = fs::read_to_string(&template).unwrap();
    fs::write(&template, right.replace("'-smp' \\\n'1'", "'-smp' \\\n'2'")).unwrap();
    assert_ne!(fs::read_to_string(&template).unwrap(), right);
    laboratory.move_to("web", "n2");
    laboratory.wait("the move to fail", |status| status.resource("web").blocked);
    assert_eq!(laboratory.where_is("web"), "n1");
    fs::write(&template, right).unwrap();
    laboratory.wait_on("web", "n2");
    laboratory.assert_whole("web", 1);
    let log = laboratory.node("n1").pacemaker_log();
    assert!(
        log.contains("the guest was not moved and stays here"),
        "{log}"
    );
    assert!(laboratory.cluster.power().fenced().is_empty());
}

/// Its owner did not order that.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_guest_that_shuts_itself_down_is_started_again() {
    let laboratory = Laboratory::start(vec![Resource::new("web", 16)]);
    let machine = laboratory.wait_on("web", "n1");
    machine.send("stop").unwrap();
    laboratory.guest("web").wait_run(2, LONG).unwrap();
    laboratory.wait_on("web", "n1");
    laboratory.assert_whole("web", 2);
}

/// A guest whose disk is one of its node's own: a move copies it, there and further.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_disk_is_copied_with_its_guest() {
    let laboratory = Laboratory::start(vec![Resource::new("web", 16).local()]);
    laboratory.wait_on("web", "n1");
    for node in ["n2", "n3"] {
        laboratory.move_to("web", node);
        laboratory.wait_on("web", node);
        laboratory.assert_whole("web", 1);
    }
    assert!(laboratory.cluster.power().fenced().is_empty());
}

/// The node that a guest's pages are still arriving at is to be emptied: the guest is moved on when
/// they are there.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn an_order_in_postcopy_moves_the_guest_on() {
    let mut held = Held::in_stage(Stage::Postcopy);
    // From now on `stop` at the source waits for the pages.
    held.laboratory
        .wait("the move to be over for Pacemaker", |_| {
            let node = held.laboratory.node("n1");
            !node.processes_with(&["ocf-agent", "stop"]).is_empty()
        });
    held.laboratory.order("crm_standby --node n2 --update on");
    held.finish();
    // Where it started. That move is a post-copy in which nothing is pushed, too.
    let laboratory = &held.laboratory;
    let guest = laboratory.guest("web");
    laboratory.wait("the guest to be moved on", |_| {
        guest
            .running()
            .is_some_and(|machine| machine.node() == "n1")
    });
    held.push_from("n2");
    laboratory.wait_on("web", "n1");
    laboratory.assert_whole("web", 1);
    assert!(laboratory.cluster.power().fenced().is_empty());
}

/// Before the guest is handed over, it is to be on a third node instead: the move is cancelled, and
/// the guest moved there. Pacemaker alone would let the first move end, and then start the guest
/// from its disk.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn an_order_in_precopy_replaces_the_move() {
    let held = Held::in_stage(Stage::Precopy);
    let laboratory = &held.laboratory;
    laboratory.move_to("web", "n3");
    laboratory.wait_on("web", "n3");
    laboratory.assert_whole("web", 1);
    assert_withdrawn(laboratory);
}

/// The node that the guest is being sent to is to be emptied: the guest stays.
#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_standby_in_precopy_leaves_the_guest() {
    let held = Held::in_stage(Stage::Precopy);
    let laboratory = &held.laboratory;
    laboratory.order("crm_standby --node n3 --update on; crm_standby --node n2 --update on");
    laboratory.wait("the move to be cancelled", |_| {
        laboratory.guest("web").on("n2").is_none()
    });
    laboratory.wait_on("web", "n1");
    laboratory.assert_whole("web", 1);
    assert_withdrawn(laboratory);
}

/// The agent has cancelled the move from the first node because Pacemaker would not order it now.
fn assert_withdrawn(laboratory: &Laboratory) {
    let log = laboratory.node("n1").pacemaker_log();
    assert!(
        log.contains("Pacemaker would not order this move any more, and it was cancelled"),
        "{log}"
    );
    assert!(laboratory.cluster.power().fenced().is_empty());
}
