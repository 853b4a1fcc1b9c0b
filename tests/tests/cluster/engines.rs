//! Engines and agents are killed in each stage of a move.

use crate::stages::{Held, Stage};
use hikkoshi_tests::{LONG, eventually, log};
use rustix::process::{Pid, Signal, kill_process};

/// Kills the engines of one side: the move is finished nevertheless, perhaps by another attempt.
fn are_killed(stage: Stage, node: &str, command: &str) {
    let mut held = Held::in_stage(stage);
    let engines = held.laboratory.node(node).processes_with(&[command]);
    assert!(!engines.is_empty(), "no engine on {node}");
    for engine in &engines {
        kill_process(Pid::from_raw(engine.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    log(format!("{} engines are killed on {node}", engines.len()));
    if node == "n2" && stage == Stage::Postcopy {
        let guest = held.laboratory.guest("web");
        eventually("another engine", || {
            match held.laboratory.node(node).processes_with(&[command]) {
                others if others.is_empty() || others == engines => Err(format!("{others:?}")),
                _ => Ok(()),
            }
        });
        // It fetches what the guest needs.
        guest.wait_beat(LONG).unwrap();
    }
    held.finish();
    let laboratory = &held.laboratory;
    laboratory.wait_on("web", "n2");
    laboratory.assert_whole("web", 1);
    assert!(laboratory.cluster.power().fenced().is_empty());
}

const SOURCE: &str = "migrate";
const DESTINATION: &str = "receiver";

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_sources_engine_is_killed_in_precopy() {
    are_killed(Stage::Precopy, "n1", SOURCE);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_sources_engine_is_killed_around_the_switchover() {
    are_killed(Stage::Switchover, "n1", SOURCE);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_sources_engine_is_killed_in_postcopy() {
    are_killed(Stage::Postcopy, "n1", SOURCE);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destinations_engine_is_killed_in_precopy() {
    are_killed(Stage::Precopy, "n2", DESTINATION);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destinations_engine_is_killed_around_the_switchover() {
    are_killed(Stage::Switchover, "n2", DESTINATION);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_destinations_engine_is_killed_in_postcopy() {
    are_killed(Stage::Postcopy, "n2", DESTINATION);
}

/// Kills the agent that waits for the move: it is finished nevertheless, and Pacemaker looks where
/// the guest is.
fn the_agent_is_killed(stage: Stage) {
    let mut held = Held::in_stage(stage);
    let (node, action) = ("n1", "migrate_to");
    let agents = |action| {
        let node = held.laboratory.node(node);
        node.processes_with(&["ocf-agent", action])
    };
    eventually("the move to be watched", || {
        match agents("watch-move").len() {
            0 => Err("nothing watches it".to_owned()),
            _ => Ok(()),
        }
    });
    let killed = agents(action);
    assert!(!killed.is_empty(), "no agent on {node}");
    for agent in killed {
        kill_process(Pid::from_raw(agent.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    let failed = format!("Result of {action} operation for web on {node}: Error");
    held.laboratory.wait("the action to fail", |_| {
        held.laboratory.node(node).pacemaker_log().contains(&failed)
    });
    held.finish();
    let laboratory = &held.laboratory;
    laboratory.wait_on("web", "n2");
    laboratory.assert_whole("web", 1);
    assert!(laboratory.cluster.power().fenced().is_empty());
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_sources_agent_is_killed_in_precopy() {
    the_agent_is_killed(Stage::Precopy);
}

#[test]
#[ignore = "a cluster: make test-cluster"]
fn the_sources_agent_is_killed_around_the_switchover() {
    the_agent_is_killed(Stage::Switchover);
}
