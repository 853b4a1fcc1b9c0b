//! Daemons that hang while a domain is moved: they are stopped, and neither answer nor end.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::loaded_qemu::LoadedQemu;
use super::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_tests::MessageKind::{Commit, DeviceStateChunk, Pages};
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, Program, eventually, hikkoshi};

/// What each message says.
const HANGS: &str = "libvirt's daemon at qemu:///system has not answered for ";

/// Waits until the daemon says this of the domain.
fn wait_state(host: &LibvirtHost, expected: &str) {
    eventually(expected, || {
        match host.state("guest").map_err(|error| error.to_string())? {
            state if state == expected => Ok(()),
            state => Err(state),
        }
    });
}

fn config() -> DomainConfig {
    DomainConfig::new("guest", Workload::verify(16).option("every_ms", 200))
}

/// Runs `hikkoshi` on the host.
fn run(host: &LibvirtHost, words: &[&str]) -> hikkoshi_tests::Exit {
    let mut command = host.command(hikkoshi());
    command.args(words);
    Program::start(words[0], command).wait()
}

#[test]
#[ignore = "long: make test-libvirt"]
fn a_daemon_that_hangs_is_named_at_the_beginning() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = Domain::boot(&test.hosts, config()).unwrap();
    for host in [source, destination] {
        host.stop_daemon().unwrap();
    }
    let hangs = [HANGS, "it was asked to connect", "restart it"];
    run(source, &["check", "--domain", "guest"]).assert(1, &hangs);
    let migrate = ["migrate", "--domain", "guest", "127.0.0.1:7100"];
    run(source, &migrate).assert(1, &hangs);
    let receive = ["receive", "--connect", "qemu:///system"];
    let listen = ["--listen", "127.0.0.1:7100"];
    run(destination, &[&receive[..], &listen].concat()).assert(1, &hangs);
    for host in [source, destination] {
        host.continue_daemon().unwrap();
    }
    let plan = DomainPlan::new("hybrid");
    DomainMove::start(&test.env, &domain, [source, destination], &plan).complete();
    assert_healthy(&domain, destination);
}

/// In the first round, which would take minutes.
#[test]
#[ignore = "long: make test-libvirt"]
fn the_domain_stays_if_the_daemon_of_the_destination_hangs_in_precopy() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [_, there] = test.hosts();
    let plan = DomainPlan::new("precopy").migrate_args(&["--bandwidth", "256KiB"]);
    let moving = served.start_move(&plan);
    moving.migrate.wait_stderr("pre-copy, round 1: ");
    there.stop_daemon().unwrap();
    let exits = moving.wait();
    let reason = "libvirt's daemon has not answered for 15 s while it restored the domain";
    exits.assert_source(1, &[reason, "the guest still runs at the source"]);
    exits.assert_destination(1, &[reason, "nothing is left of its domain here"]);
    assert!(!exits.migrate.stderr.contains("round 2"), "{exits:?}");
    there.continue_daemon().unwrap();
    wait_state(there, "absent");
    served.assert_here();
    served.start_move(&DomainPlan::new("hybrid")).complete();
    served.assert_arrived();
    served.end();
}

/// The guest is paused on both sides, and does not wait: its stream is not ended, so that it has
/// certainly not run there.
#[test]
#[ignore = "long: make test-libvirt"]
fn the_domain_stays_if_the_daemon_of_the_destination_hangs_at_commit() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [_, there] = test.hosts();
    for mode in ["postcopy", "precopy"] {
        let plan = DomainPlan::new(mode).hold_at(Breakpoint::before(Commit));
        let moving = served.start_move(&plan);
        moving.wait_held();
        there.stop_daemon().unwrap();
        moving.relay().release();
        let exits = moving.wait();
        let parts = [HANGS, "the guest has not run here"];
        exits.assert_source(1, &[&parts[..], &["still runs at the source"]].concat());
        exits.assert_destination(
            1,
            &[&parts[..], &["nothing is left of its domain"]].concat(),
        );
        served.assert_answers();
        there.continue_daemon().unwrap();
        wait_state(there, "absent");
        served.assert_here();
    }
    served.start_move(&DomainPlan::new("hybrid")).complete();
    served.assert_arrived();
    served.end();
}

/// The daemon hangs when QEMU can run the guest, before it has told it to: the guest is paused on
/// both sides, and neither may run it. A daemon that ends lets it go back. One that continues runs
/// it.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_whose_stream_has_ended_waits_for_the_daemon_of_the_destination() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [here, there] = test.hosts();
    for is_killed in [true, false] {
        // One that goes back says so by a new connection.
        let retry_for = if is_killed { "120" } else { "0" };
        let plan = DomainPlan::new("postcopy")
            .migrate_args(&["--retry-for", retry_for])
            .hold_at(Breakpoint::before(Commit));
        let mut moving = served.start_move(&plan);
        moving.wait_held();
        let qemu = LoadedQemu::stop(there);
        moving.relay().release();
        qemu.wait_ended();
        there.stop_daemon().unwrap();
        qemu.continues();
        if is_killed {
            moving.receive.wait_stderr("waiting for libvirt's daemon");
            there.kill_daemon().unwrap();
            let exits = moving.wait();
            let reason = "libvirt's daemon has ended before it ran the guest";
            exits.assert_destination(1, &[reason, "nothing is left of its domain here"]);
            exits.assert_source(1, &[reason, "the guest still runs at the source"]);
            there.start_daemon().unwrap();
            served.assert_here();
            continue;
        }
        let exit = moving.receive.wait();
        exit.assert(3, &[HANGS, "--resume"]);
        moving.relay().cut();
        moving.migrate.wait().assert(3, &["never continue it"]);
        assert_eq!(here.state("guest").unwrap(), "paused");
        there.continue_daemon().unwrap();
        moving.resume_receive();
        moving.resume_migrate();
        moving.complete();
        served.assert_arrived();
    }
    served.end();
}

/// The switchover fails while the guest is paused. Only the daemon, which has QEMU's monitor, can
/// resume it; or QEMU itself, when the daemon has ended.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_paused_domain_is_resumed_as_soon_as_the_daemon_of_the_source_answers_or_ends() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [here, _] = test.hosts();
    for is_killed in [true, false] {
        let plan = DomainPlan::new("hybrid").hold_at(Breakpoint::before(DeviceStateChunk));
        let moving = served.start_move(&plan);
        moving.wait_held();
        here.stop_daemon().unwrap();
        moving.relay().cut();
        let said = "the guest is resumed as soon as the daemon answers or has ended";
        moving.migrate.wait_stderr(said);
        match is_killed {
            true => here.kill_daemon().unwrap(),
            false => here.continue_daemon().unwrap(),
        }
        let exits = moving.wait();
        exits.assert_source(1, &[HANGS, "the guest still runs at the source"]);
        served.assert_answers();
        if is_killed {
            here.start_daemon().unwrap();
        }
        wait_state(here, "running");
        served.assert_here();
    }
    served.start_move(&DomainPlan::new("hybrid")).complete();
    served.assert_arrived();
    served.end();
}

/// The guest has moved. Only the source's domain is not ended.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_daemon_of_the_source_that_hangs_in_postcopy_leaves_its_domain() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [here, _] = test.hosts();
    let at = Breakpoint::after(Pages).nth(300);
    let mut moving = served.start_move(&DomainPlan::new("postcopy").hold_at(at));
    moving.wait_held();
    here.stop_daemon().unwrap();
    moving.relay().release();
    let exit = moving.migrate.wait();
    exit.assert(0, &["the source's QEMU was not ended", HANGS]);
    moving.receive.wait().assert(0, &[]);
    served.assert_answers();
    here.continue_daemon().unwrap();
    assert_eq!(here.state("guest").unwrap(), "paused");
    moving.resume_migrate();
    moving.migrate.wait().assert(0, &[]);
    wait_state(here, "absent");
    served.assert_arrived();
    served.end();
}

/// Its guest has arrived. The domain is not made persistent, as both sides say.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_daemon_of_the_destination_that_hangs_at_the_end_leaves_a_transient_domain() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = Domain::boot(&test.hosts, config().persistent()).unwrap();
    let plan = DomainPlan::new("postcopy")
        .migrate_args(&["--persistent", "--undefine-source"])
        .hold_at(Breakpoint::after(Pages).nth(300));
    let moving = DomainMove::start(&test.env, &domain, [source, destination], &plan);
    moving.wait_held();
    moving.wait_running();
    destination.stop_daemon().unwrap();
    moving.relay().release();
    let left = moving.wait_moved_but();
    let not_made = format!("the domain guest was not made persistent: {HANGS}");
    assert!(left.starts_with(&not_made), "{left}");
    destination.continue_daemon().unwrap();
    assert_eq!(destination.state("guest").unwrap(), "running");
    assert_healthy(&domain, destination);
    let persistent = ["list", "--all", "--persistent", "--name"];
    assert_eq!(source.virsh(&persistent).unwrap(), "guest", "it stays");
    // What the message says.
    let define = left
        .split('\'')
        .find(|part| part.starts_with("virsh "))
        .unwrap();
    destination.shell(define).unwrap();
    assert_eq!(destination.virsh(&persistent).unwrap(), "guest");
}
