//! The agent is replaced by another program while guests run and move.

use crate::stages::{Held, Stage};
use hikkoshi_tests::hikkoshi;
use rustix::process::{Pid, Signal, kill_process};

/// The program is replaced, and the daemons are restarted, in that stage of a move.
fn is_upgraded(stage: Stage) {
    let mut held = Held::in_stage(stage);
    for node in held.laboratory.cluster.nodes() {
        node.install(&hikkoshi()).unwrap();
        for daemon in node.processes_with(&["hikkoshi", "daemon"]) {
            kill_process(Pid::from_raw(daemon.cast_signed()).unwrap(), Signal::TERM).unwrap();
        }
    }
    // In post-copy the new program resumes the move.
    held.finish();
    let laboratory = &held.laboratory;
    laboratory.wait_on("web", "n2");
    laboratory.assert_whole("web", 1);
    // A guest that is held in post-copy would be held there in each of its moves.
    if stage == Stage::Precopy {
        laboratory.move_to("web", "n3");
        laboratory.wait_on("web", "n3");
        laboratory.assert_whole("web", 1);
    }
    assert!(laboratory.cluster.power().fenced().is_empty());
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_program_is_replaced_in_precopy() {
    is_upgraded(Stage::Precopy);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_program_is_replaced_in_postcopy() {
    is_upgraded(Stage::Postcopy);
}
