//! Domains of libvirt are received by a `hikkoshi daemon`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::Daemon;
use crate::libvirt::at_once::HeldCreation;
use crate::libvirt::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_tests::{CertificateAuthority, Program, TestEnv, assert_command_refused, hikkoshi};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A daemon on that host.
fn daemon_on(host: &LibvirtHost, run: &Path, more: &[&str]) -> Daemon {
    let address = format!("{}:7100", host.address());
    Daemon::start_by(host.command(hikkoshi()), run, &address, more)
}

fn migrate(host: &LibvirtHost, journal: &Path, more: &[&str]) -> Command {
    migrate_domain("guest", host, journal, more)
}

fn migrate_domain(name: &str, host: &LibvirtHost, journal: &Path, more: &[&str]) -> Command {
    let mut command = host.command(hikkoshi());
    command.args(["migrate", "--domain", name, "--journal"]);
    command.arg(journal).args(more);
    command
}

/// A daemon on that host that admits the certificate of "source.example" for all domains, with the
/// options of that certificate.
fn admitting_daemon(env: &TestEnv, host: &LibvirtHost, run: &Path) -> (Daemon, [String; 6]) {
    let authority = CertificateAuthority::new(env.folder());
    let rules = env.folder().join("admit");
    fs::write(&rules, "source.example * --connect qemu:///system\n").unwrap();
    let certificate = authority.issue(host.address());
    let certificate = certificate.each_ref().map(String::as_str);
    let more = [&certificate[..], &["--admit", rules.to_str().unwrap()]].concat();
    let daemon = daemon_on(host, run, &more);
    (daemon, authority.issue("source.example"))
}

/// The invitation of the host's daemon for a domain, under this name.
fn invitation(host: &LibvirtHost, run: &Path, name: &str) -> String {
    let mut invite = host.command(hikkoshi());
    invite.args(["invite", "--connect", "qemu:///system", "--name", name]);
    invite.arg("--journal").arg(run);
    let invited = Program::start("invite", invite).wait();
    invited.assert(0, &[&format!("guest {name}: ")]);
    invited.stdout
}

/// There by an invitation, with a receiver that is killed in post-copy, and back by a certificate.
#[test]
#[ignore = "two hosts with libvirt: make test-daemon"]
fn a_domain_is_received_by_a_daemon() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let env = &test.env;
    let mut served = test.served();
    let [from, to] = served.hosts();
    let journal = env.folder().join("journals");
    let run = env.folder().join("run");
    let daemon = daemon_on(to, &run, &[]);
    let invitation = invitation(to, &run, "the-guest");

    // Nothing is pushed, so the migration stays in post-copy.
    let stay = [
        "--mode",
        "postcopy",
        "--background-delay",
        "3600000",
        "--to",
        "-",
    ];
    let command = migrate(from, &journal, &stay);
    let mut migrating = Program::start_with_input("migrate", command, &invitation);
    daemon
        .program
        .wait_stderr("the-guest: hikkoshi: the guest runs here now");
    let receivers = daemon.receivers("the-guest");
    assert_eq!(receivers.len(), 1);
    kill_process(receivers[0], Signal::KILL).unwrap();
    daemon
        .program
        .wait_stderr("guest the-guest: resuming its migration");
    migrating.wait_stderr("reconnected to the destination");
    migrating.kill();
    migrating.wait_stderr("'hikkoshi migrate' was interrupted");
    let resume = migrate(from, &journal, &["--resume", "--background-delay", "0"]);
    Program::start("migrate --resume", resume)
        .wait()
        .assert(0, &[]);
    daemon.program.wait_stderr("guest the-guest: received");
    daemon.wait_nothing_left();
    served.assert_arrived();

    let [from, to] = served.hosts();
    let run = env.folder().join("run-back");
    let (daemon, source) = admitting_daemon(env, to, &run);
    let address = format!("{}:7100", to.address());
    let source = source.each_ref().map(String::as_str);
    let named = |name| [&[address.as_str(), "--name", name][..], &source].concat();
    // Admitted for another name than the domain has.
    let refused = migrate(from, &journal, &named("back"));
    let part = "the destination accepts the domain back only (--only-domain), and guest is offered";
    assert_command_refused(refused, 1, &[part]);
    let named = named("guest");
    let exit = Program::start("migrate", migrate(from, &journal, &named)).wait();
    exit.assert(0, &[]);
    daemon.program.wait_stderr("guest guest: received");
    served.assert_arrived();
    served.end();
}

/// Two domains that run at the source.
fn two_domains(test: &LibvirtTest) -> [Domain<'_>; 2] {
    ["first", "second"].map(|name| {
        let workload = Workload::verify(16).option("every_ms", 200);
        Domain::boot(&test.hosts, DomainConfig::new(name, workload)).unwrap()
    })
}

/// All domains of a host are moved by one command, without their names.
#[test]
#[ignore = "two hosts with libvirt: make test-daemon"]
fn a_host_with_domains_is_evacuated() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let env = &test.env;
    let [from, to] = test.hosts();
    let domains = two_domains(&test);
    let (daemon, source) = admitting_daemon(env, to, &env.folder().join("run"));
    let mut command = from.command(hikkoshi());
    let address = format!("{}:7100", to.address());
    command.args(["evacuate", "--all", "--connect", "qemu:///system"]);
    command.args(["--to", &address, "--line", "1Gbit", "--seconds", "0.5"]);
    command.arg("--journal").arg(env.folder().join("source"));
    command.args(source);
    let moved = Program::start("evacuate", command).wait();
    moved.assert(0, &[]);
    let summary = "2 of 2 guests have moved";
    assert!(moved.stdout.contains(summary), "{moved:?}");
    for domain in &domains {
        assert_healthy(domain, to);
        assert_eq!(from.state(domain.name()).unwrap(), "absent");
    }
    daemon.wait_nothing_left();
}

/// libvirt creates the second domain while it still creates the first one.
#[test]
#[ignore = "two hosts with libvirt: make test-daemon"]
fn two_domains_are_received_at_once() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let env = &test.env;
    let [from, to] = test.hosts();
    let domains = two_domains(&test);
    let held = HeldCreation::start(to);
    let run = env.folder().join("run");
    let daemon = daemon_on(to, &run, &[]);
    let mut moving = domains.each_ref().map(|domain| {
        let name = domain.name();
        let invitation = invitation(to, &run, name);
        let journal = env.folder().join("journals");
        let command = migrate_domain(name, from, &journal, &["--to", "-"]);
        Program::start_with_input(&format!("migrate {name}"), command, &invitation)
    });
    for domain in &domains {
        held.wait(domain.name());
    }
    held.release();
    for (domain, moving) in domains.iter().zip(&mut moving) {
        moving.wait().assert(0, &[]);
        let received = format!("guest {}: received", domain.name());
        daemon.program.wait_stderr(&received);
        assert_healthy(domain, to);
        assert_eq!(from.state(domain.name()).unwrap(), "absent");
    }
    daemon.wait_nothing_left();
}
