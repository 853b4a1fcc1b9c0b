//! Domains of libvirt are started, moved and stopped by the agent.

use super::pacemaker::Pacemaker;
use super::{Action, FAILED, NOT_RUNNING, OK, PORT};
use crate::daemon::Daemon;
use crate::libvirt::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_tests::{CertificateAuthority, Program, hikkoshi};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::PathBuf;

/// The domain, which has the same UUID on each node.
const NAME: &str = "guest";
const UUID: &str = "<uuid>8a4d7f1e-52b0-4a39-9d0e-6a2f0c1b7e55</uuid>";

/// A node with libvirt.
struct Node<'h> {
    host: &'h LibvirtHost,
    run: PathBuf,
    daemon: Daemon,
    certificate: [String; 6],
    domain: String,
}

impl Node<'_> {
    /// Does an action, which has so many seconds, with these parameters of the resource.
    fn act(
        &self,
        nodes: &[Node<'_>; 2],
        pacemaker: &Pacemaker,
        action: &str,
        (seconds, parameters): (u32, &[(&str, &str)]),
    ) -> (Option<i32>, String) {
        let other = nodes.iter().find(|other| other.run != self.run).unwrap();
        let map = nodes
            .each_ref()
            .map(|node| format!("{}:{}", node.host.name(), node.host.address()));
        let mut command = self.host.command(hikkoshi());
        Action {
            name: action,
            node: self.host.name(),
            target: other.host.name(),
            resource: NAME,
            run: &self.run,
            certificate: &self.certificate,
            map: &map.join(" "),
            timeout_s: seconds,
        }
        .set(&mut command, pacemaker);
        command.env("OCF_RESKEY_domain", &self.domain);
        for (name, value) in parameters {
            command.env(format!("OCF_RESKEY_{name}"), value);
        }
        let name = format!("{action} on {}", self.host.name());
        let exit = Program::start(&name, command).wait();
        (exit.code, exit.stderr)
    }
}

/// The whole life of a domain: it starts, moves in post-copy, in which the destination's engine is
/// killed and neither node ends or starts it, moves back and is stopped.
#[test]
#[ignore = "two hosts with libvirt: make test-cluster"]
fn a_domain_starts_moves_and_stops() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let env = &test.env;
    let hosts = test.hosts();
    let config = DomainConfig::new(NAME, Workload::verify(32).rate(8000)).elements(UUID);
    let domain = Domain::expect(&test.hosts, config).unwrap();
    let pacemaker = Pacemaker::new(env.folder(), &hosts.map(LibvirtHost::name));
    let authority = CertificateAuthority::new(env.folder());
    let rules = env.folder().join("admit");
    fs::write(&rules, "* * --connect qemu:///system\n").unwrap();
    let nodes = hosts.map(|host| {
        let run = env.folder().join(format!("run-{}", host.name()));
        let certificate = authority.issue(host.address());
        let more = [
            &certificate.each_ref().map(String::as_str)[..],
            &["--admit", rules.to_str().unwrap()],
        ];
        let address = format!("{}:{PORT}", host.address());
        Node {
            host,
            daemon: Daemon::start_by(host.command(hikkoshi()), &run, &address, &more.concat()),
            run,
            certificate,
            domain: domain.write_xml(host).unwrap(),
        }
    });
    let act = |node: usize, action: &str, with| nodes[node].act(&nodes, &pacemaker, action, with);
    let assert = |node: usize, action: &str, code: i32| {
        let (answer, said) = act(node, action, (120, &[]));
        assert_eq!(answer, Some(code), "{action}: {said}");
    };

    assert(0, "monitor", NOT_RUNNING);
    assert(0, "start", OK);
    domain.wait_ready(hosts[0]).unwrap();
    assert(0, "start", OK);
    assert(0, "monitor", OK);
    assert(1, "monitor", NOT_RUNNING);

    // Without its libvirt daemon the guest is here all the same.
    hosts[0].kill_daemon().unwrap();
    for action in ["monitor", "start"] {
        let (answer, said) = act(0, action, (20, &[]));
        assert_eq!(answer, Some(OK), "{action}: {said}");
    }
    let (moved, said) = act(0, "migrate_to", (4, &[]));
    assert_eq!(moved, Some(FAILED), "{said}");
    assert!(said.contains("libvirt daemon does not answer"), "{said}");
    hosts[0].start_daemon().unwrap();
    assert(0, "monitor", OK);

    // Nothing is pushed, so the migration stays in post-copy. It is not stored for another engine.
    let stay = [
        ("mode", "postcopy"),
        ("options", "--background-delay 3600000"),
    ];
    let (moved, said) = act(0, "migrate_to", (120, &stay));
    assert_eq!(moved, Some(OK), "{said}");
    let (arriving, said) = act(1, "migrate_from", (4, &[]));
    assert_eq!(arriving, Some(OK), "{said}");
    assert!(said.contains("pages are missing"), "{said}");
    assert(0, "monitor", NOT_RUNNING);
    assert_eq!(act(0, "start", (4, &[])).0, Some(FAILED));
    assert_eq!(act(0, "stop", (4, &[])).0, Some(OK));
    assert_eq!(hosts[0].state(NAME).unwrap(), "paused");
    let receivers = nodes[1].daemon.receivers(NAME);
    kill_process(receivers[0], Signal::KILL).unwrap();
    assert(1, "monitor", OK);
    for engine in super::engines(&nodes[0].run) {
        kill_process(engine, Signal::KILL).unwrap();
    }
    assert(0, "stop", OK);
    assert_eq!(hosts[0].state(NAME).unwrap(), "absent");
    assert(1, "migrate_from", OK);
    assert(1, "monitor", OK);
    assert_healthy(&domain, hosts[1]);

    assert(1, "migrate_to", OK);
    assert(0, "migrate_from", OK);
    assert(1, "stop", OK);
    assert_eq!(hosts[1].state(NAME).unwrap(), "absent");
    assert_healthy(&domain, hosts[0]);
    assert(0, "stop", OK);
    assert_eq!(hosts[0].state(NAME).unwrap(), "absent");
    assert(0, "monitor", NOT_RUNNING);
}
