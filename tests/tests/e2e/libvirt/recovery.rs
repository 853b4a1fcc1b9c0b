//! Engines and daemons that are killed while a domain is moved, and moves that are refused.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::loaded_qemu::LoadedQemu;
use super::moved_domain::{LibvirtTest, Served};
use MessageKind::{Commit, DeviceStateChunk, GuestResumed, Pages, Ready};
use hikkoshi_tests::{Breakpoint, DomainPlan, MessageKind, eventually, log};

/// A place in the middle of the pages.
fn among_pages() -> Breakpoint {
    Breakpoint::after(Pages).nth(300)
}

/// Kills the engines of these sides (source, destination) in a move by that mode, and resumes it.
fn kill_and_resume(served: &mut Served<'_>, mode: &'static str, at: Breakpoint, sides: [bool; 2]) {
    let [source, destination] = sides;
    log(format!(
        "{mode}, killed: source {source}, destination {destination}"
    ));
    let plan = DomainPlan::new(mode)
        .migrate_args(&["--retry-for", "0"])
        .receive_args(&["--retry-for", "0"])
        .hold_at(at);
    let mut moving = served.start_move(&plan);
    moving.wait_held();
    if source {
        moving.migrate.kill();
    }
    if destination {
        moving.receive.kill();
    }
    moving.relay().cut();
    moving.receive.wait();
    moving.migrate.wait();
    moving.resume_receive();
    moving.resume_migrate();
    moving.complete();
    served.assert_arrived();
}

#[test]
#[ignore = "as the same of a QEMU alone: make test-libvirt"]
fn engines_killed_in_postcopy_are_resumed() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    for sides in [[false, true], [true, false], [true, true]] {
        kill_and_resume(&mut served, "postcopy", among_pages(), sides);
    }
    served.end();
}

/// The destination's engine is killed when the guest is loaded and may have been handed over:
/// libvirt is still restoring the domain, and QEMU itself holds its stream open.
#[test]
#[ignore = "takes long: make test-libvirt"]
fn an_engine_killed_at_the_handover_is_resumed() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    for (mode, source) in [("hybrid", false), ("precopy", true), ("postcopy", true)] {
        let at = Breakpoint::before(Commit);
        kill_and_resume(&mut served, mode, at, [source, true]);
    }
    served.end();
}

/// The destination's engine is killed right before it writes its journal: QEMU holds its stream
/// open already, and waits for ever. The next move of the domain ends it.
#[test]
#[ignore = "a few milliseconds of a move: make test-libvirt"]
fn what_a_killed_engine_has_left_is_ended_by_the_next_move() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [_, there] = served.hosts();
    let plan = DomainPlan::new("precopy").hold_at(Breakpoint::before(Ready));
    let mut moving = served.start_move(&plan);
    moving.wait_held();
    moving.receive.kill();
    moving.relay().cut();
    moving.migrate.wait();
    moving.forget_destination();
    assert_eq!(there.state("guest").unwrap(), "paused");
    let exits = moving.wait();
    exits.assert_source(1, &["still runs at the source"]);
    served.start_move(&DomainPlan::new("hybrid")).complete();
    served.assert_arrived();
    served.end();
}

#[test]
#[ignore = "long: make test-libvirt"]
fn daemons_killed_in_postcopy_cost_nothing() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    // By hybrid, the pages that are dirty are missing then.
    for (mode, at) in [
        ("postcopy", among_pages()),
        ("hybrid", Breakpoint::before(GuestResumed)),
    ] {
        let moving = served.start_move(&DomainPlan::new(mode).hold_at(at));
        moving.wait_held();
        // Both at once: neither engine has a daemon.
        for host in served.hosts() {
            host.kill_daemon().unwrap();
        }
        for host in served.hosts() {
            host.start_daemon().unwrap();
        }
        moving.relay().release();
        moving.complete();
        served.assert_arrived();
    }
    served.end();
}

#[test]
#[ignore = "long: make test-libvirt"]
fn a_daemon_of_the_source_killed_in_precopy_costs_nothing() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let plan = DomainPlan::new("precopy").hold_at(among_pages());
    let moving = served.start_move(&plan);
    moving.wait_held();
    test.hosts.source.kill_daemon().unwrap();
    test.hosts.source.start_daemon().unwrap();
    moving.relay().release();
    moving.complete();
    served.assert_arrived();
    served.end();
}

/// libvirt ends a domain that it was restoring. That is noticed in the first round, which would
/// take minutes.
#[test]
#[ignore = "long: make test-libvirt"]
fn the_domain_stays_if_the_daemon_of_the_destination_is_killed_in_precopy() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let plan = DomainPlan::new("precopy").migrate_args(&["--bandwidth", "256KiB"]);
    let moving = served.start_move(&plan);
    moving.migrate.wait_stderr("pre-copy, round 1: ");
    test.hosts.destination.kill_daemon().unwrap();
    let exits = moving.wait();
    let reason = "libvirt's daemon has ended while it restored the domain";
    exits.assert_source(1, &[reason, "the guest still runs at the source"]);
    exits.assert_destination(1, &[reason, "nothing is left of its domain here"]);
    assert!(!exits.migrate.stderr.contains("round 2"), "{exits:?}");
    test.hosts.destination.start_daemon().unwrap();
    served.assert_here();
    served.end();
}

/// The daemon is killed when the destination has got *commit*, before it runs the guest, and ends
/// the domain when it is started again. QEMU is stopped first: the guest runs some milliseconds
/// after *commit* otherwise.
#[test]
#[ignore = "long: make test-libvirt"]
fn the_domain_stays_if_the_daemon_of_the_destination_is_killed_at_commit() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [_, there] = test.hosts();
    for mode in ["postcopy", "precopy"] {
        let plan = DomainPlan::new(mode).hold_at(Breakpoint::before(Commit));
        let moving = served.start_move(&plan);
        moving.wait_held();
        let qemu = LoadedQemu::stop(there);
        moving.relay().release();
        qemu.wait_ended();
        there.kill_daemon().unwrap();
        qemu.continues();
        let exits = moving.wait();
        let reason = "libvirt's daemon has ended before it ran the guest";
        exits.assert_source(1, &[reason, "the guest still runs at the source"]);
        exits.assert_destination(1, &[reason, "nothing is left of its domain here"]);
        there.start_daemon().unwrap();
        served.assert_here();
    }
    // Nothing is in the way of the next move.
    served.start_move(&DomainPlan::new("hybrid")).complete();
    served.assert_arrived();
    served.end();
}

/// The guest has run at the destination, and a client has paused it, when the daemon is killed that
/// has not reported this yet: QEMU says the same of it as of one that has never run.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_has_run_is_not_given_back() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let served = test.served();
    let [here, there] = test.hosts();
    let plan = DomainPlan::new("precopy")
        .migrate_args(&["--retry-for", "0"])
        .hold_at(Breakpoint::before(Commit));
    let mut moving = served.start_move(&plan);
    moving.wait_held();
    let qemu = LoadedQemu::stop(there);
    // QEMU serves this connection after the daemon's, and before hikkoshi's.
    let mut monitor = qemu.connect();
    moving.relay().release();
    qemu.wait_ended();
    there.kill_daemon().unwrap();
    qemu.continues();
    monitor.execute("qmp_capabilities");
    eventually("QEMU to load its guest", || {
        let status = monitor.execute("query-status");
        match status.contains(r#""status": "paused""#) {
            true => Ok(()),
            false => Err(status),
        }
    });
    for command in ["cont", "stop"] {
        let answer = monitor.execute(command);
        assert!(answer.contains("return"), "{answer}");
    }
    drop(monitor);
    // The new daemon ends a domain that it has not seen running.
    there.start_daemon().unwrap();
    let exit = moving.receive.wait();
    let decides = "the guest was started in that QEMU, and may have run";
    exit.assert(3, &[decides, "Its owner has to decide"]);
    moving.relay().cut();
    let exit = moving.migrate.wait();
    exit.assert(3, &["never continue it"]);
    assert_eq!(here.state("guest").unwrap(), "paused");
}

/// The switchover fails when the guest is paused and the daemon is away: the guest does not wait
/// for the daemon.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_paused_domain_does_not_wait_for_the_daemon_of_the_source() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [here, _] = served.hosts();
    let plan = DomainPlan::new("hybrid").hold_at(Breakpoint::before(DeviceStateChunk));
    let moving = served.start_move(&plan);
    moving.wait_held();
    here.kill_daemon().unwrap();
    moving.relay().cut();
    // Without a daemon.
    let exits = moving.wait();
    exits.assert_source(1, &["the guest still runs at the source"]);
    served.assert_answers();
    here.start_daemon().unwrap();
    eventually("the daemon to notice that the guest runs", || {
        match here.state("guest").map_err(|error| error.to_string())? {
            state if state == "running" => Ok(()),
            state => Err(state),
        }
    });
    served.assert_here();
    served.start_move(&DomainPlan::new("hybrid")).complete();
    served.assert_arrived();
    served.end();
}

/// Card that is plugged while the domain is moved.
const CARD: &str =
    "<interface type='bridge'><source bridge='br0'/><model type='virtio'/></interface>";

#[test]
#[ignore = "long: make test-libvirt"]
fn moves_are_refused_and_the_domain_stays() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    let [here, there] = served.hosts();

    // A domain of that name.
    let other = "<domain type='qemu'><name>guest</name><memory>1024</memory>\
         <os><type arch='x86_64'>hvm</type></os></domain>";
    std::fs::write(there.folder().join("other.xml"), other).unwrap();
    there.virsh(&["define", "/srv/host/other.xml"]).unwrap();
    let exits = served.start_move(&DomainPlan::new("precopy")).refused();
    exits.assert_source(1, &["domain 'guest' already exists", "still runs"]);
    there.virsh(&["undefine", "guest"]).unwrap();
    served.assert_here();

    // Its disk is missing.
    let plan = DomainPlan::new("precopy").receive_args(&["--set", "disk=vda,path=/srv/none.qcow2"]);
    let exits = served.start_move(&plan).refused();
    exits.assert_source(1, &["/srv/none.qcow2", "No such file", "still runs"]);
    served.assert_here();

    // A device is plugged.
    std::fs::write(here.folder().join("card.xml"), CARD).unwrap();
    let moving = served.start_move(&DomainPlan::new("precopy").hold_at(among_pages()));
    moving.wait_held();
    here.virsh(&["attach-device", "guest", "/srv/host/card.xml", "--live"])
        .unwrap();
    moving.relay().release();
    let exits = moving.refused();
    exits.assert_source(1, &["<interface>", "was added", "still runs"]);
    exits.assert_destination(1, &["nothing is left of its domain here"]);
    served.assert_here();
    served.end();
}
