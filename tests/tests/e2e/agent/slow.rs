//! A move fails, or takes too long.

use super::{Cluster, FAILED, NOT_RUNNING, OK, With, assert_healthy};
use hikkoshi_lab::VmConfig;
use hikkoshi_tests::{LONG, Program, eventually};

/// A move that fails before the handover leaves the guest where it is, and says why.
#[test]
#[ignore = "a guest and several moves: make test-cluster"]
fn a_move_that_fails_leaves_the_guest() {
    let cluster = Cluster::start();
    let here = cluster.start_guest(0);
    // Another machine: it is not tried again.
    let other = VmConfig::new().cpus(2);
    let other = other.expect(cluster.env.lab(), "other").unwrap();
    let template = cluster.template(&cluster.nodes[1]);
    crate::daemon::write_template(&template, &other.command_line());
    let soon = With {
        parameters: &[("refresh", "1")],
        ..With::default()
    };
    let refused = cluster.act(0, "migrate_to", soon);
    assert_eq!(refused.code, Some(FAILED), "{}", refused.stderr);
    let reason = "ocf-exit-reason:the guest was not moved and stays here";
    assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    // Pacemaker leaves such a guest alone, until it is asked to look again.
    eventually("Pacemaker to be asked to look again", || {
        let asked = cluster.pacemaker.refreshed();
        match asked.contains("--refresh --resource web") {
            true => Ok(()),
            false => Err(asked),
        }
    });
    cluster.assert(0, "monitor", OK);

    // No machine can be started there: it is tried again as long as there is time.
    std::fs::write(&template, "false\n").unwrap();
    let short = With {
        timeout: Some(8),
        ..With::default()
    };
    let failed = cluster.act(0, "migrate_to", short);
    assert_eq!(failed.code, Some(FAILED), "{}", failed.stderr);
    assert!(failed.stderr.contains("trying again"), "{}", failed.stderr);
    cluster.assert_monitor(0, OK);
    assert_healthy(&here);
    cluster.assert(1, "monitor", NOT_RUNNING);
    let from = cluster.act(1, "migrate_from", short);
    assert_eq!(from.code, Some(FAILED), "{}", from.stderr);
}

/// The time for a move ends in pre-copy: it is cancelled, or the guest is handed over.
#[test]
#[ignore = "a guest and two slow moves: make test-cluster"]
fn a_move_that_is_too_slow_is_cancelled_or_switched() {
    let cluster = Cluster::start();
    let here = cluster.start_guest(0);
    let act = |on_timeout| {
        let parameters = [
            ("mode", "precopy"),
            ("bandwidth", "4M"),
            ("on_timeout", on_timeout),
        ];
        let with = With {
            timeout: Some(12),
            parameters: &parameters,
        };
        let expected = cluster.expect(1);
        let command = cluster.command(0, "migrate_to", with);
        let mut agent = Program::start("migrate_to", command);
        let there = cluster.received(1, expected);
        (agent.wait(), there)
    };
    let (cancelled, there) = act("cancel");
    assert_eq!(cancelled.code, Some(FAILED), "{}", cancelled.stderr);
    assert!(
        cancelled.stderr.contains("stays here"),
        "{}",
        cancelled.stderr
    );
    there.wait_exit(LONG).unwrap();
    cluster.assert(0, "monitor", OK);
    assert_eq!(here.status().unwrap(), "running");

    let (switched, there) = act("postcopy");
    assert_eq!(switched.code, Some(OK), "{}", switched.stderr);
    cluster.assert(0, "monitor", NOT_RUNNING);
    cluster.assert(1, "migrate_from", OK);
    cluster.assert(0, "stop", OK);
    here.wait_exit(LONG).unwrap();
    assert_healthy(&there);
}
