//! A resource is stopped in each stage of a move.

use crate::stages::{Held, Stage};
use hikkoshi_tests::LONG;

/// The guest is stopped, nothing is left of it on any node, and it can be started again.
fn is_stopped(stage: Stage) {
    let mut held = Held::in_stage(stage);
    held.laboratory.order("crm resource stop web");
    // In post-copy all pages arrive first.
    held.finish();
    let laboratory = &held.laboratory;
    laboratory.assert_stopped("web");
    assert!(laboratory.cluster.power().fenced().is_empty());
    laboratory.order("crm resource start web");
    laboratory.guest("web").wait_run(2, LONG).unwrap();
    laboratory.wait_on("web", "n2");
    laboratory.assert_whole("web", 2);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_guest_is_stopped_in_precopy() {
    is_stopped(Stage::Precopy);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_guest_is_stopped_around_the_switchover() {
    is_stopped(Stage::Switchover);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn a_guest_is_stopped_in_postcopy() {
    is_stopped(Stage::Postcopy);
}
