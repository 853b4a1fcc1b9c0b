//! Domains that become persistent where they move to, or do not: what each side keeps.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost, LibvirtHosts};
use hikkoshi_tests::MessageKind::{Complete, LeftToDo};
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, eventually};

/// Where libvirt keeps configurations.
const CONFIGURATIONS: &str = "/etc/libvirt/qemu";

/// Makes them read-only, for the processes of a mount namespace.
const READ_ONLY: &str = "mkdir -p /etc/libvirt/qemu; mount -t tmpfs -o ro none /etc/libvirt/qemu";

/// Persistent domains of a host.
const PERSISTENT: [&str; 4] = ["list", "--all", "--persistent", "--name"];

fn domain(hosts: &LibvirtHosts) -> Domain<'_> {
    let workload = Workload::verify(16).option("every_ms", 200);
    Domain::boot(hosts, DomainConfig::new("guest", workload).persistent()).unwrap()
}

/// A move that makes the domain persistent at the destination only.
fn plan(mode: &'static str) -> DomainPlan {
    DomainPlan::new(mode).migrate_args(&["--persistent", "--undefine-source", "--retry-for", "0"])
}

/// The engine's mounts are not the daemon's: its systemd unit makes `/etc` read-only for it.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_is_made_persistent_by_an_engine_that_cannot_write_configurations() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = domain(&test.hosts);
    let plan = plan("hybrid").receive_after(READ_ONLY);
    DomainMove::start(&test.env, &domain, [source, destination], &plan).complete();
    assert_eq!(destination.virsh(&PERSISTENT).unwrap(), "guest");
    assert_eq!(source.virsh(&PERSISTENT).unwrap(), "");
    assert_healthy(&domain, destination);
}

/// libvirt cannot write the new configuration, and keeps the domain with the older one.
#[test]
#[ignore = "long: make test-libvirt"]
fn a_domain_that_was_persistent_there_keeps_its_older_configuration() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = domain(&test.hosts);
    let xml = source.virsh(&["dumpxml", "guest", "--inactive"]).unwrap();
    std::fs::write(destination.folder().join("older.xml"), xml).unwrap();
    let define = format!("{}/older.xml", LibvirtHost::FOLDER);
    destination.virsh(&["define", &define]).unwrap();
    let read_only = format!("mount --bind -o ro {CONFIGURATIONS} {CONFIGURATIONS}");
    destination.shell(&read_only).unwrap();
    let moving = DomainMove::start(&test.env, &domain, [source, destination], &plan("hybrid"));
    let left = moving.wait_moved_but();
    for part in ["not made persistent: libvirt: ", "that older configuration"] {
        assert!(left.contains(part), "no {part:?} in {left}");
    }
    assert_eq!(destination.state("guest").unwrap(), "running");
    assert_eq!(destination.virsh(&PERSISTENT).unwrap(), "guest");
    assert_healthy(&domain, destination);
    assert_eq!(source.virsh(&PERSISTENT).unwrap(), "guest", "it stays");
}

/// The destination's engine, and perhaps the source's, is killed when libvirt has not taken the
/// configuration, before the source knows that. It is reported again, and the source keeps its own.
#[test]
#[ignore = "long: make test-libvirt"]
fn what_was_not_done_is_reported_again_by_the_engines_that_resume() {
    for (at, source_is_killed) in [(LeftToDo, false), (Complete, true)] {
        let Some(test) = LibvirtTest::start() else {
            return;
        };
        let [source, destination] = test.hosts();
        let domain = domain(&test.hosts);
        destination.shell(READ_ONLY).unwrap();
        let plan = plan("postcopy").hold_at(Breakpoint::before(at));
        let order = [source, destination];
        let mut moving = DomainMove::start(&test.env, &domain, order, &plan);
        moving.wait_held();
        moving.receive.kill();
        if source_is_killed {
            moving.migrate.kill();
        }
        moving.relay().cut();
        moving.receive.wait();
        moving.migrate.wait();
        moving.resume_receive();
        moving.resume_migrate();
        let left = moving.wait_moved_but();
        assert!(left.contains("not made persistent"), "{left}");
        assert!(left.contains(".not-defined.xml"), "{left}");
        assert_eq!(source.virsh(&PERSISTENT).unwrap(), "guest", "it stays");
        assert_eq!(source.state("guest").unwrap(), "shut off");
        assert_healthy(&domain, destination);
    }
}

/// The source's engine is killed when it knows that the guest has arrived, before it has ended its
/// domain. The next one does not know whether that is persistent there, and keeps it here.
#[test]
#[ignore = "long: make test-libvirt"]
fn an_engine_that_does_not_know_what_was_left_to_do_undefines_nothing() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let [source, destination] = test.hosts();
    let domain = domain(&test.hosts);
    let plan = plan("postcopy").hold_at(Breakpoint::before(Complete));
    let mut moving = DomainMove::start(&test.env, &domain, [source, destination], &plan);
    moving.wait_held();
    // The engine waits for it, to end its domain.
    source.stop_daemon().unwrap();
    moving.relay().release();
    moving.receive.wait().assert(0, &[]);
    eventually("the source to record the end", || {
        let journal = moving.journals().pop().ok_or("no journal")?;
        let text = std::fs::read_to_string(journal).map_err(|error| error.to_string())?;
        match text.contains(r#""stage": "done""#) {
            true => Ok(()),
            false => Err(text),
        }
    });
    moving.migrate.kill();
    moving.migrate.wait();
    source.continue_daemon().unwrap();
    assert_eq!(source.state("guest").unwrap(), "paused");
    moving.resume_migrate();
    let exit = moving.migrate.wait();
    exit.assert(0, &["--undefine-source was not done"]);
    assert_eq!(source.state("guest").unwrap(), "shut off", "still defined");
    assert_eq!(destination.virsh(&PERSISTENT).unwrap(), "guest");
    assert_healthy(&domain, destination);
}
