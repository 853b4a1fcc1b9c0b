//! A guest is started, moved and stopped.

use super::{Cluster, FAILED, NOT_RUNNING, OK, With, assert_healthy};
use hikkoshi_tests::{LONG, Program, assert_command_refused, eventually, hikkoshi};
use rustix::process::{Signal, kill_process};
use std::process::Command;

/// The whole life of a guest in a cluster.
#[test]
fn a_guest_starts_moves_and_stops() {
    let cluster = Cluster::start();
    cluster.assert(0, "monitor", NOT_RUNNING);
    let here = cluster.start_guest(0);
    cluster.assert(0, "start", OK);
    cluster.assert(0, "monitor", OK);
    cluster.assert_monitor(0, OK);
    cluster.assert(1, "monitor", NOT_RUNNING);

    // Pacemaker would start it again.
    let mut behind = Command::new(hikkoshi());
    let node = &cluster.nodes[0];
    behind.args(["migrate", "--qmp"]).arg(node.qmp());
    behind.arg("--journal").arg(&node.run).arg("unix:/nowhere");
    assert_command_refused(behind, 2, &["Pacemaker manages the guest web"]);
    let mut check = Command::new(hikkoshi());
    check.args(["check", "--qmp"]).arg(node.qmp());
    check.arg("--journal").arg(&node.run);
    let checked = Program::start("hikkoshi check", check).wait();
    assert_eq!(checked.code, Some(1), "{}", checked.stdout);
    let obstacle = "Pacemaker manages the guest web";
    assert!(checked.stdout.contains(obstacle), "{}", checked.stdout);

    let expected = cluster.expect(1);
    cluster.assert(0, "migrate_to", OK);
    let there = cluster.received(1, expected);
    cluster.assert(1, "migrate_from", OK);
    cluster.assert(0, "monitor", NOT_RUNNING);
    cluster.assert(0, "stop", OK);
    here.wait_exit(LONG).unwrap();
    cluster.assert_monitor(1, OK);
    assert_healthy(&there);

    cluster.assert(1, "stop", OK);
    there.wait_exit(LONG).unwrap();
    cluster.assert(1, "monitor", NOT_RUNNING);
    cluster.assert(1, "stop", OK);
}

/// Moves the guest by post-copy, in which it stays: nothing is pushed. That option is not stored
/// for another engine.
fn hand_over(cluster: &Cluster) {
    let stay = With {
        parameters: &[
            ("mode", "postcopy"),
            ("options", "--background-delay 3600000"),
        ],
        ..With::default()
    };
    let moved = cluster.act(0, "migrate_to", stay);
    assert_eq!(moved.code, Some(OK), "{}", moved.stderr);
}

/// A guest that is handed over and not finished is neither active at its source nor ended there,
/// and is not started from its disk. A killed engine is resumed.
#[test]
#[ignore = "a guest and several engines: make test-cluster"]
fn pages_that_are_owed_are_sent() {
    let cluster = Cluster::start();
    let here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    hand_over(&cluster);
    let there = cluster.received(1, expected);
    let short = With {
        timeout: Some(4),
        ..With::default()
    };
    let from = cluster.act(1, "migrate_from", short);
    assert_eq!(from.code, Some(OK), "{}", from.stderr);
    assert!(from.stderr.contains("pages are missing"), "{}", from.stderr);
    cluster.assert(0, "monitor", NOT_RUNNING);
    assert_eq!(cluster.act(0, "start", short).code, Some(FAILED));
    cluster.assert(1, "monitor", OK);
    cluster.assert_monitor(1, OK);
    cluster.assert(1, "start", OK);
    // The time is over, and nothing was ended.
    assert_eq!(cluster.act(0, "stop", short).code, Some(OK));
    assert_eq!(here.status().unwrap(), "paused");

    for engine in cluster.nodes[0].engines() {
        kill_process(engine, Signal::KILL).unwrap();
    }
    // Nothing is called at the source meanwhile: `migrate_to` has left a process behind.
    here.wait_exit(LONG).unwrap();
    cluster.assert(0, "monitor", NOT_RUNNING);
    cluster.assert(0, "stop", OK);
    cluster.assert(1, "migrate_from", OK);
    assert_healthy(&there);
}

/// The destination's QEMU ends while pages are missing there: the guest is lost, and known to be on
/// both nodes. Neither has anything left that would make `stop` fail, and it is started once.
#[test]
#[ignore = "a guest and several engines: make test-cluster"]
fn a_guest_that_is_lost_at_its_destination_is_over_on_both_nodes() {
    let cluster = Cluster::start();
    let here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    hand_over(&cluster);
    let there = cluster.received(1, expected);
    cluster.assert(0, "monitor", NOT_RUNNING);
    there.kill();
    here.wait_exit(LONG).unwrap();
    cluster.assert(1, "monitor", FAILED);
    cluster.assert(1, "stop", OK);
    cluster.assert(0, "monitor", NOT_RUNNING);
    cluster.assert(0, "stop", OK);
    for node in [0, 1] {
        cluster.assert(node, "monitor", NOT_RUNNING);
    }
    let again = cluster.start_guest(0);
    cluster.assert(0, "monitor", OK);
    cluster.assert(0, "stop", OK);
    again.wait_exit(LONG).unwrap();
}

/// Pacemaker kills an agent that takes too long: the move goes on.
#[test]
#[ignore = "a guest and several engines: make test-cluster"]
fn a_move_does_not_need_its_agent() {
    let cluster = Cluster::start();
    let here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    let slowly = With {
        parameters: &[("mode", "hybrid"), ("bandwidth", "8M")],
        ..With::default()
    };
    let mut agent = Program::start("migrate_to", cluster.command(0, "migrate_to", slowly));
    let there = cluster.received(1, expected);
    agent.kill();
    // Another agent waits for it.
    let moved = cluster.act(0, "migrate_to", slowly);
    assert_eq!(moved.code, Some(OK), "{}", moved.stderr);
    cluster.assert(1, "migrate_from", OK);
    cluster.assert(0, "stop", OK);
    here.wait_exit(LONG).unwrap();
    assert_healthy(&there);
}

/// The guest is stopped while it moves: before the handover at its source, and after it at its
/// destination.
#[test]
#[ignore = "two guests: make test-cluster"]
fn a_guest_is_stopped_in_a_move() {
    let cluster = Cluster::start();
    let here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    let slowly = With {
        parameters: &[("mode", "precopy"), ("bandwidth", "1M")],
        ..With::default()
    };
    let mut agent = Program::start("migrate_to", cluster.command(0, "migrate_to", slowly));
    let there = cluster.received(1, expected);
    eventually("the move to begin", || {
        match cluster.nodes[0].engines().is_empty() {
            true => Err("no engine".to_owned()),
            false => Ok(()),
        }
    });
    agent.kill();
    cluster.assert(1, "monitor", NOT_RUNNING);
    cluster.assert(0, "stop", OK);
    here.wait_exit(LONG).unwrap();
    there.wait_exit(LONG).unwrap();
    cluster.assert(1, "stop", OK);
    cluster.assert(1, "monitor", NOT_RUNNING);

    let here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    let stay = With {
        parameters: &[("mode", "postcopy"), ("options", "--background-delay 20")],
        ..With::default()
    };
    let moved = cluster.act(0, "migrate_to", stay);
    assert_eq!(moved.code, Some(OK), "{}", moved.stderr);
    let there = cluster.received(1, expected);
    // All pages arrive first.
    let stopped = cluster.assert(1, "stop", OK);
    assert!(
        !stopped.stderr.contains("before all of its pages"),
        "{}",
        stopped.stderr
    );
    there.wait_exit(LONG).unwrap();
    cluster.assert(0, "stop", OK);
    here.wait_exit(LONG).unwrap();
    for node in [0, 1] {
        cluster.assert(node, "monitor", NOT_RUNNING);
    }
}
