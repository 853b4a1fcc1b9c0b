//! Moves of domains that are given up (`--resume --give-up`) after both engines were killed.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost, LibvirtHosts};
use hikkoshi_tests::MessageKind::{Commit, Pages};
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, TestEnv, eventually};

/// A domain without a disk: what a guest that continues from an earlier state would damage.
fn domain(hosts: &LibvirtHosts) -> Domain<'_> {
    let workload = Workload::verify(32).option("every_ms", 200);
    Domain::boot(hosts, DomainConfig::new("guest", workload)).unwrap()
}

/// Starts a move by post-copy that would make the domain persistent, and kills both engines.
fn killed<'h>(env: &TestEnv, domain: &Domain<'h>, at: Breakpoint) -> DomainMove<'h> {
    let hosts = domain.hosts();
    let plan = DomainPlan::new("postcopy")
        .migrate_args(&["--persistent", "--autostart"])
        .hold_at(at);
    let mut moving = DomainMove::start(env, domain, [&hosts.source, &hosts.destination], &plan);
    moving.wait_held();
    moving.migrate.kill();
    moving.receive.kill();
    moving.relay().cut();
    moving
}

/// Whether only a journal is left, and perhaps the lock of a killed engine: no configuration, which
/// may have passwords, and no pipe.
fn is_journal(left: &[String]) -> bool {
    let ends_with = |end| left.iter().filter(move |name| name.ends_with(end)).count();
    ends_with(".json") == 1 && ends_with(".json") + ends_with(".lock") == left.len()
}

/// The daemon notices the end of QEMU a moment later.
fn wait_absent(host: &LibvirtHost) {
    eventually("the domain's end", || {
        match host.state("guest").map_err(|error| error.to_string())? {
            state if state == "absent" => Ok(()),
            state => Err(state),
        }
    });
}

/// The guest may have been handed over, but has not run at the destination: its domain ends there.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn a_domain_that_has_not_run_is_given_up() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = domain(&test.hosts);
    let moving = killed(&test.env, &domain, Breakpoint::before(Commit));
    assert_eq!(source.state("guest").unwrap(), "paused");
    assert_eq!(destination.state("guest").unwrap(), "paused");

    let exit = moving.give_up_receive(&[]);
    exit.assert(
        1,
        &["the guest has not run here and never will: nothing is left of its domain here"],
    );
    wait_absent(destination);
    // The source has not been informed: only the journal is left.
    let left = moving.left_at_destination();
    assert!(is_journal(&left), "{left:?}");

    let exit = moving.give_up_migrate(&[]);
    let needs = ["two copies of the guest run", "--other-side-is-lost"];
    exit.assert(3, &needs);
    assert_eq!(source.state("guest").unwrap(), "paused");
    let exit = moving.give_up_migrate(&["--other-side-is-lost"]);
    exit.assert(1, &["the guest runs at the source"]);
    assert_eq!(source.state("guest").unwrap(), "running");
    assert_healthy(&domain, source);

    // Nothing is in the way of the next move.
    let order = [source, destination];
    DomainMove::start(&test.env, &domain, order, &DomainPlan::new("hybrid")).complete();
    assert_healthy(&domain, destination);
}

/// The guest runs at the destination, and pages are missing: it ends there, and continues at the
/// source from the moment when it was paused.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn a_domain_with_missing_pages_is_given_up() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = domain(&test.hosts);
    let moving = killed(&test.env, &domain, Breakpoint::after(Pages).nth(300));
    assert_eq!(source.state("guest").unwrap(), "paused");
    assert_eq!(destination.state("guest").unwrap(), "running");

    let exit = moving.give_up_receive(&[]);
    exit.assert(3, &["would be ended", "--other-side-is-lost"]);
    assert_eq!(destination.state("guest").unwrap(), "running");
    let exit = moving.give_up_receive(&["--other-side-is-lost"]);
    exit.assert(4, &["the guest has ended here"]);
    wait_absent(destination);
    assert_eq!(moving.left_at_destination(), [""; 0]);
    assert_eq!(destination.virsh(&["list", "--all", "--name"]).unwrap(), "");

    let exit = moving.give_up_migrate(&[]);
    exit.assert(3, &["otherwise two copies of the guest run"]);
    let exit = moving.give_up_migrate(&["--other-side-is-lost"]);
    exit.assert(1, &["the guest runs at the source"]);
    assert_eq!(source.state("guest").unwrap(), "running");
    assert!(moving.journals().is_empty(), "{:?}", moving.journals());
    assert_healthy(&domain, source);
}

/// The domain ends at the destination while pages are missing: the guest is lost. What was kept to
/// make it persistent is removed, by the engine that sees it, or by one that is started later.
#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn nothing_but_the_journal_is_left_of_a_lost_domain() {
    for engine_is_killed in [false, true] {
        let Some(test) = LibvirtTest::start() else {
            return;
        };
        let [source, destination] = test.hosts();
        let domain = domain(&test.hosts);
        let plan = DomainPlan::new("postcopy")
            .migrate_args(&["--persistent", "--retry-for", "0"])
            .receive_args(&["--retry-for", "0"])
            .hold_at(Breakpoint::after(Pages).nth(300));
        let order = [source, destination];
        let mut moving = DomainMove::start(&test.env, &domain, order, &plan);
        moving.wait_held();
        moving.wait_running();
        if engine_is_killed {
            moving.receive.kill();
        }
        destination.virsh(&["destroy", "guest"]).unwrap();
        wait_absent(destination);
        let exit = match engine_is_killed {
            true => moving.refused_resume_receive(),
            false => moving.receive.wait(),
        };
        exit.assert(4, &["the guest is lost"]);
        let left = moving.left_at_destination();
        assert!(is_journal(&left), "{left:?}");
    }
}
