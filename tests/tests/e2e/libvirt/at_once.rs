//! Several programs create domains at one libvirt daemon, at the same time.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{LibvirtTest, assert_healthy};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost};
use hikkoshi_tests::{Program, eventually, hikkoshi, left_in};
use std::path::Path;

/// libvirt calls it while it restores a domain, before it starts QEMU, and waits for it.
const HOOK: &str = r#"
mkdir -p /etc/libvirt/hooks
cat >/etc/libvirt/hooks/qemu <<'HOOK'
#!/bin/sh
cat >/dev/null
[ "$2" = restore ] || exit 0
touch "/srv/host/$1.is-created"
until [ -e /srv/host/may-be-created ]; do sleep 0.05; done
HOOK
chmod +x /etc/libvirt/hooks/qemu
"#;

/// A host whose libvirt creates domains only so far that QEMU is not started.
pub(crate) struct HeldCreation<'h>(&'h LibvirtHost);

impl<'h> HeldCreation<'h> {
    /// Restarts the host's daemon, which looks for hooks when it is started.
    pub(crate) fn start(host: &'h LibvirtHost) -> Self {
        host.shell(HOOK).unwrap();
        host.kill_daemon().unwrap();
        host.start_daemon().unwrap();
        Self(host)
    }

    /// Waits until libvirt is creating this domain.
    pub(crate) fn wait(&self, domain: &str) {
        let file = self.0.folder().join(format!("{domain}.is-created"));
        eventually(&format!("libvirt to create {domain}"), || {
            match file.exists() {
                true => Ok(()),
                false => Err(self.0.daemon_log()),
            }
        });
    }

    /// Lets libvirt create domains, those that wait and later ones.
    pub(crate) fn release(&self) {
        std::fs::write(self.0.folder().join("may-be-created"), "").unwrap();
    }
}

impl Drop for HeldCreation<'_> {
    /// A test that failed ends its host, whose daemon would wait.
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.folder().join("may-be-created"), "");
    }
}

/// A `receive` of the host, at this port, and its invitation.
fn receive(host: &LibvirtHost, run: &Path, port: u16) -> (Program, String) {
    let mut command = host.command(hikkoshi());
    command.args(["receive", "--connect", "qemu:///system", "--listen"]);
    command.arg(format!("{}:{port}", host.address()));
    command.arg("--journal").arg(run);
    let program = Program::start(&format!("receive at {port}"), command);
    let invitation = program.wait_stdout("hikkoshi1:");
    (program, invitation)
}

fn migrate(host: &LibvirtHost, name: &str, run: &Path, invitation: &str) -> Program {
    let mut command = host.command(hikkoshi());
    command.args(["migrate", "--domain", name, "--to", "-", "--journal"]);
    command.arg(run);
    Program::start_with_input(&format!("migrate {name}"), command, invitation)
}

/// Two domains with one UUID, of two hosts: their destination has the first of them only, whoever
/// is faster.
#[test]
#[ignore = "three hosts: make test-libvirt"]
fn a_domain_is_created_by_one_program_at_a_time() {
    const UUID: &str = "<uuid>6f0b9a3c-52c8-4c7e-9a53-0d1f7f6b7a11</uuid>";
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let third = test.hosts.third(test.env.lab()).unwrap();
    let [source, destination] = test.hosts();
    let config = |name| {
        let workload = Workload::verify(16).option("every_ms", 200);
        DomainConfig::new(name, workload).elements(UUID)
    };
    let first = Domain::boot(&test.hosts, config("first")).unwrap();
    let second = Domain::boot_on(&third, &test.hosts, config("second")).unwrap();
    let runs = ["here", "there", "third"].map(|name| test.env.folder().join(name));
    let [here, there, on_third] = runs.each_ref().map(|run| run.as_path());

    let held = HeldCreation::start(destination);
    let (mut receiving, invitation) = receive(destination, there, 7100);
    let (other_receiving, other_invitation) = receive(destination, there, 7200);
    let mut moving = migrate(source, "first", here, &invitation);
    held.wait("first");
    let refused = migrate(&third, "second", on_third, &other_invitation).wait();
    let reason = "creating the domain second: another hikkoshi is creating it";
    refused.assert(1, &[reason, "still runs at the source"]);
    held.release();
    moving.wait().assert(0, &[]);
    receiving.wait().assert(0, &[]);
    drop(other_receiving);
    assert_healthy(&first, destination);
    assert_healthy(&second, &third);

    // Back, and then nothing holds the two.
    let (mut receiving, invitation) = receive(source, here, 7100);
    let exit = migrate(destination, "first", there, &invitation).wait();
    exit.assert(0, &[]);
    receiving.wait().assert(0, &[]);
    let receiving = [7100, 7200].map(|port| receive(destination, there, port));
    let mut moving = [
        migrate(source, "first", here, &receiving[0].1),
        migrate(&third, "second", on_third, &receiving[1].1),
    ];
    let exits = moving.each_mut().map(Program::wait);
    let codes = exits.each_ref().map(|exit| exit.code);
    let [at_first, at_second] = match codes {
        [Some(0), Some(1)] => [destination, &third],
        [Some(1), Some(0)] => [source, destination],
        _ => panic!("{exits:?}"),
    };
    let stays = exits.iter().find(|exit| exit.code == Some(1)).unwrap();
    stays.assert(1, &["creating the domain ", "still runs at the source"]);
    assert_healthy(&first, at_first);
    assert_healthy(&second, at_second);
    let running = destination.virsh(&["list", "--name"]).unwrap();
    assert_eq!(running.lines().count(), 1, "{running}");
    // Nothing is left of the domain that was not created.
    let mut left = left_in(there);
    left.retain(|name| name.starts_with("domain-"));
    assert!(left.is_empty(), "{left:?}");
}
