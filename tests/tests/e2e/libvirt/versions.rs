//! Domains that move between hosts with several versions of libvirt, as in a rolling upgrade.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::loaded_qemu::LoadedQemu;
use super::moved_domain::{How, assert_healthy};
use super::one_host::built_with_libvirt;
use LibvirtVersion::{V9, V11, V12};
use hikkoshi_lab::Workload;
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHosts, LibvirtVersion};
use hikkoshi_tests::{Breakpoint, DomainMove, DomainPlan, MessageKind, TestEnv, log};

/// Moves a domain to the second version of these by each mode, and back to the first in between.
fn move_between(versions: [LibvirtVersion; 2], modes: &[&'static str]) {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start_versions(env.lab(), versions).unwrap();
    let config = DomainConfig::new("guest", Workload::verify(16).option("every_ms", 200));
    let domain = Domain::boot(&hosts, config).unwrap();
    let mut order = [&hosts.source, &hosts.destination];
    for mode in modes {
        let [from, to] = order.map(|host| host.version().number());
        log(format!("libvirt {from} to {to}"));
        How::Hikkoshi(mode, &[]).moves(&env, &domain, order);
        assert_healthy(&domain, order[1]);
        order.reverse();
    }
}

/// Its libvirt opens the stream twice, and has a helper between the stream and QEMU.
#[test]
fn a_domain_is_moved_to_libvirt_12_and_back() {
    move_between([V9, V12], &["hybrid", "postcopy", "precopy"]);
}

/// Its libvirt opens the stream twice, and QEMU reads it itself.
#[test]
#[ignore = "between 9.0 and 12.9: make test-libvirt"]
fn a_domain_is_moved_to_libvirt_11_and_back() {
    move_between([V9, V11], &["precopy", "hybrid"]);
}

#[test]
#[ignore = "as from 9.0: make test-libvirt"]
fn a_domain_is_moved_between_two_of_libvirt_11() {
    move_between([V11, V11], &["precopy", "postcopy", "hybrid"]);
}

#[test]
#[ignore = "as from 9.0: make test-libvirt"]
fn a_domain_is_moved_between_libvirt_11_and_12() {
    move_between([V11, V12], &["postcopy", "precopy"]);
}

#[test]
#[ignore = "as from 9.0: make test-libvirt"]
fn a_domain_is_moved_between_two_of_libvirt_12() {
    move_between([V12, V12], &["precopy", "postcopy", "hybrid"]);
}

/// QEMU refuses the device state after the helper has read it: the error says what QEMU wrote, and
/// nothing waits for the helper.
#[test]
#[ignore = "a fault of QEMU: make test-libvirt"]
fn a_qemu_that_ends_while_libvirt_12_has_a_helper_is_an_error() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start_versions(env.lab(), [V9, V12]).unwrap();
    let config = DomainConfig::new("guest", Workload::verify(16).option("every_ms", 200));
    let domain = Domain::boot(&hosts, config).unwrap();
    let order = [&hosts.source, &hosts.destination];
    let plan = DomainPlan::new("precopy").hold_at(Breakpoint::before(MessageKind::Commit));
    let moving = DomainMove::start(&env, &domain, order, &plan);
    moving.wait_held();
    LoadedQemu::stop(order[1]).kill();
    moving.relay().release();
    let exits = moving.wait();
    exits.assert_source(1, &["the guest still runs at the source"]);
    exits.assert_destination(1, &["nothing is left of its domain here"]);
    assert_eq!(order[1].state("guest").unwrap(), "absent");
    assert_healthy(&domain, order[0]);
    How::Hikkoshi("hybrid", &[]).moves(&env, &domain, order);
    assert_healthy(&domain, order[1]);
}
