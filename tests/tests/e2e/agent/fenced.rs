//! A node is fenced in the middle of a move.

use super::{Cluster, FAILED, NOT_RUNNING, OK, With};
use hikkoshi_lab::Vm;
use hikkoshi_tests::LONG;

/// Nothing is pushed, so the migration stays in post-copy.
const STAY: With<'_> = With {
    timeout: None,
    parameters: &[
        ("mode", "postcopy"),
        ("options", "--background-delay 3600000"),
    ],
};

/// A guest that was handed over from the first node to the second one.
fn handed_over(cluster: &Cluster) -> (Vm, Vm) {
    let here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    let moved = cluster.act(0, "migrate_to", STAY);
    assert_eq!(moved.code, Some(OK), "{}", moved.stderr);
    (here, cluster.received(1, expected))
}

/// The source is fenced in post-copy: the guest is lost, which is noticed, and it starts from its
/// disk once.
#[test]
#[ignore = "two guests: make test-cluster"]
fn a_guest_whose_source_is_fenced_is_lost() {
    let mut cluster = Cluster::start();
    let (_here, there) = handed_over(&cluster);
    cluster.assert_monitor(1, OK);
    cluster.fence(0);
    hikkoshi_tests::eventually("the loss to be noticed", || {
        let monitor = cluster.act(1, "monitor", With::default());
        match monitor.code {
            Some(FAILED) => Ok(()),
            code => Err(format!("{code:?}: {}", monitor.stderr)),
        }
    });
    cluster.assert(1, "stop", OK);
    there.wait_exit(LONG).unwrap();
    cluster.assert(1, "monitor", NOT_RUNNING);
    let again = cluster.start_guest(1);
    cluster.assert_monitor(1, OK);
    drop(again);
}

/// The destination is fenced in post-copy: what its source has is not run, and the guest starts
/// from its disk once, on either node.
#[test]
#[ignore = "two guests: make test-cluster"]
fn a_guest_whose_destination_is_fenced_starts_from_its_disk() {
    let mut cluster = Cluster::start();
    let (here, _there) = handed_over(&cluster);
    cluster.fence(1);
    cluster.assert(0, "monitor", NOT_RUNNING);
    let again = cluster.start_guest(0);
    here.wait_exit(LONG).unwrap();
    cluster.assert_monitor(0, OK);
    assert!(cluster.nodes[0].engines().is_empty());
    drop(again);
}

/// The source is fenced in pre-copy: what has arrived is not run, and the guest starts from its
/// disk.
#[test]
#[ignore = "two guests: make test-cluster"]
fn a_guest_whose_source_is_fenced_in_precopy_starts_from_its_disk() {
    let mut cluster = Cluster::start();
    let _here = cluster.start_guest(0);
    let expected = cluster.expect(1);
    let slowly = With {
        parameters: &[("mode", "precopy"), ("bandwidth", "1M")],
        ..With::default()
    };
    let command = cluster.command(0, "migrate_to", slowly);
    let mut agent = hikkoshi_tests::Program::start("migrate_to", command);
    let there = cluster.received(1, expected);
    cluster.assert(1, "monitor", NOT_RUNNING);
    agent.kill();
    cluster.fence(0);
    let again = cluster.start_guest(1);
    there.wait_exit(LONG).unwrap();
    cluster.assert_monitor(1, OK);
    drop(again);
}
