//! hikkoshi moves domains between two libvirt daemons.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{
    Events, How, LibvirtTest, Served, debian_is_moved, rich_domain_is_moved,
};
use super::one_host::built_with_libvirt;
use hikkoshi_lab::libvirt::{LibvirtHosts, LibvirtVersion};
use hikkoshi_tests::{Program, Sshd, TestEnv, hikkoshi, log};

/// What the daemons report. It differs from what they report of `virsh migrate`: to libvirt, the
/// guest is paused by a monitor command, its QEMU is ended, and at the destination a domain is
/// restored.
const EVENTS: Events = [
    &[
        "lifecycle: Suspended Paused",
        "lifecycle: Stopped Destroyed",
    ],
    &["lifecycle: Started Restored", "lifecycle: Resumed Snapshot"],
];

/// One connection of `virsh console` and one client see all three moves.
#[test]
#[ignore = "as between 9.0 and 12.9: make test-libvirt"]
fn a_domain_is_moved_in_all_modes() {
    let Some(test) = LibvirtTest::start() else {
        return;
    };
    let mut served = test.served();
    for mode in ["hybrid", "precopy", "postcopy"] {
        let how = How::Hikkoshi(mode, &[]);
        let report = served.assert_moved(how, EVENTS).unwrap();
        let frames = report.frames.unwrap();
        log(format!("{mode}: {frames:?}"));
        assert_eq!(frames.kept, frames.delivered, "{frames:?}");
        assert_eq!(frames.dropped, 0, "{frames:?}");
    }
    assert_eq!(served.end(), 0, "lost datagrams");
}

#[test]
#[ignore = "as hikkoshi moves other domains: make test-libvirt"]
fn a_domain_with_disks_metadata_and_plugged_memory_is_moved() {
    if built_with_libvirt() {
        rich_domain_is_moved(How::Hikkoshi(
            "hybrid",
            &["--persistent", "--autostart", "--undefine-source"],
        ));
    }
}

/// The destination needs nothing of the domain, and its host needs no hikkoshi that runs.
#[test]
#[ignore = "a real sshd: make test-libvirt"]
fn a_domain_is_moved_by_ssh() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let mut served = Served::boot(&hosts, &env);
    let [from, to] = served.hosts();
    let on_host = |program: &str| to.command(program);
    let Some(sshd) = Sshd::start(env.folder(), on_host, to.address()) else {
        assert!(std::env::var_os("CI").is_none(), "build/openssh is missing");
        log("skipped: setup/setup.sh openssh was not run");
        return;
    };
    let mut migrate = from.command(hikkoshi());
    // Those of libvirt 9.0; newer ones are installed on their hosts.
    let libraries = match to.version() {
        LibvirtVersion::V9 => std::env::var("LD_LIBRARY_PATH").unwrap_or_default(),
        _ => String::new(),
    };
    let there = format!(
        "env 'LD_LIBRARY_PATH={libraries}' '{}'",
        hikkoshi().display()
    );
    let host = format!("root@{}", to.address());
    migrate.args(["migrate", "--domain", "guest", "--ssh", &host]);
    migrate.args(["--rsh", &sshd.command(), "--remote-hikkoshi", &there]);
    let exit = Program::start("migrate --ssh", migrate).wait();
    exit.assert(0, &[&format!("{host}: a guest arrives from ")]);
    served.assert_arrived();
    served.end();
}

#[test]
#[ignore = "long: make test-libvirt"]
fn a_debian_is_moved() {
    if built_with_libvirt() {
        debian_is_moved(How::Hikkoshi("hybrid", &[]));
    }
}
