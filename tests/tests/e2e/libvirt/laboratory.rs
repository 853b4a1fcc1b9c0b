//! The laboratory of two libvirt hosts: libvirt itself moves domains between them.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::moved_domain::{
    Events, How, POSTCOPY_EVENTS, PRECOPY_EVENTS, Served, VIRSH_POSTCOPY, debian_is_moved,
    rich_domain_is_moved,
};
use hikkoshi_lab::libvirt::LibvirtHosts;
use hikkoshi_tests::TestEnv;

fn moved_by_virsh(hosts: &LibvirtHosts, env: &TestEnv, how: How, events: Events) {
    let mut served = Served::boot(hosts, env);
    served.assert_moved(how, events);
    served.end();
}

#[test]
#[ignore = "part of `make test-libvirt`"]
fn virsh_migrates_a_domain_by_precopy() {
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    moved_by_virsh(&hosts, &env, How::Virsh(&[]), PRECOPY_EVENTS);
}

#[test]
#[ignore = "as by pre-copy: make test-libvirt"]
fn virsh_migrates_a_domain_by_postcopy() {
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start_with_userfaultfd(env.lab()).unwrap();
    moved_by_virsh(&hosts, &env, VIRSH_POSTCOPY, POSTCOPY_EVENTS);
}

#[test]
#[ignore = "libvirt alone, for comparison: make test-libvirt"]
fn virsh_migrates_a_domain_with_disks_metadata_and_plugged_memory() {
    rich_domain_is_moved(How::Virsh(&["--persistent", "--undefinesource"]));
}

#[test]
#[ignore = "libvirt alone, for comparison: make test-libvirt"]
fn virsh_migrates_a_debian() {
    debian_is_moved(How::Virsh(&[]));
}
