//! The nano guest, under KVM with asynchronous page faults, serves clients while it is moved.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::frames::{PORT, Setup};
use std::fs::File;

use hikkoshi_account::AsynchronousFaults;
use hikkoshi_lab::{FileClients, Files, GuestNetwork, Nic, Ram, RamBackend, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, Transport, kvm_present, log};

/// A processor model with KVM's asynchronous page faults.
const PROCESSOR: [&str; 2] = ["-cpu", "qemu64,kvm-asyncpf-int=on"];

fn guest(nic: Nic, workload: Workload) -> VmConfig {
    VmConfig::new()
        .kvm()
        .nano()
        .ram(Ram::new(RamBackend::File { share: true }, 64))
        .workload(workload.option("every_ms", 200))
        .nic(nic)
        .arguments(PROCESSOR)
}

/// Datagrams and lines over TCP, and pages that are written and checked.
fn nothing_is_lost(mode: &'static str) {
    let network = GuestNetwork::new().unwrap();
    nothing_is_lost_on(network.nic(), &network, mode);
}

fn nothing_is_lost_on(nic: Nic, network: &GuestNetwork, mode: &'static str) {
    if !kvm_present() {
        return;
    }
    let workload = Workload::verify(16).rate(1000).with_server(PORT);
    let config = guest(nic, workload).cpus(2);
    let moved = Setup::with_lines(network, config).moved(mode);
    moved.assert_all_answered();
    assert_eq!(
        moved.report.asynchronous_faults,
        Some(AsynchronousFaults::Used)
    );
}

#[test]
fn nothing_is_lost_in_precopy() {
    nothing_is_lost("precopy");
}

#[test]
fn nothing_is_lost_in_hybrid() {
    nothing_is_lost("hybrid");
}

#[test]
fn nothing_is_lost_in_postcopy() {
    nothing_is_lost("postcopy");
}

#[test]
fn nothing_is_lost_on_vhost_net() {
    if let Err(error) = File::open("/dev/vhost-net") {
        log(format!(
            "NOT TESTED: a card on vhost-net: /dev/vhost-net: {error}"
        ));
        return;
    }
    for mode in ["precopy", "hybrid", "postcopy"] {
        let network = GuestNetwork::new().unwrap();
        let nic = Nic {
            vhost: true,
            ..network.nic()
        };
        nothing_is_lost_on(nic, &network, mode);
    }
}

const CLIENTS: u64 = 16;
const FILES: Files = Files {
    count: 200,
    bytes: 102_400,
};

/// Every byte of every answer is checked, before, during and after the move.
#[test]
fn files_are_served_while_their_pages_are_missing() {
    if !kvm_present() {
        return;
    }
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let workload = Workload::idle().with_files(FILES.count, FILES.bytes);
    let config = guest(network.nic(), workload).namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let server = format!("{}:80", GuestNetwork::GUEST).parse().unwrap();
    let clients = FileClients::start(network.client(), server, CLIENTS, FILES).unwrap();
    assert!(clients.wait_answers(CLIENTS, LONG), "{clients:?}");
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Address(format!(
            "{}:7100",
            GuestNetwork::DESTINATION
        )))
        .between_namespaces(network.source(), network.destination())
        // Until then, a page only comes when it is requested.
        .migrate_args(&["--background-delay", "2000"]);
    let (exits, finished) = guest.start_migration(&plan).wait();
    let report = guest.complete_migration(&exits, finished, "running");
    assert!(clients.wait_answers(CLIENTS, LONG), "{clients:?}");
    let answers = clients.finish().unwrap();
    let totals = guest.vm().totals(LONG).unwrap();
    log(format!("{answers} answers, {totals:?}"));
    assert_eq!(report.asynchronous_faults, Some(AsynchronousFaults::Used));
    // At least as many as there are clients: each one's task has waited for a page of its own.
    assert!(totals.not_present > CLIENTS, "{totals:?}");
    assert_eq!(totals.waiting, 0, "{totals:?}");
}
