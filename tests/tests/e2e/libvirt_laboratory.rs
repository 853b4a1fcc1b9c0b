//! The laboratory of two libvirt hosts: libvirt itself moves a domain between them.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::libvirt::{Domain, DomainConfig, DomainConsole, DomainEvents, LibvirtHosts};
use hikkoshi_lab::{
    DatagramClient, Disk, DiskContent, DiskFormat, DiskImage, GuestNetwork, Pace, Workload,
};
use hikkoshi_tests::{LONG, TestEnv, log};
use std::time::Duration;

const PORT: u16 = 7000;

/// Moves a domain with a shared qcow2 disk and a client by `virsh migrate`.
fn virsh_migrates(hosts: &LibvirtHosts, env: &TestEnv, options: &[&str], expected: [&[&str]; 2]) {
    let content = DiskContent::FileSystem {
        mib: 24,
        blocks_mib: 4,
    };
    let image = DiskImage::new(env.lab(), "disk", DiskFormat::Qcow2, content).unwrap();
    let disk = Disk::new(image);
    let workload = Workload::verify(32)
        .with_server(PORT)
        .option("every_ms", 200);
    let config = DomainConfig::new("guest", workload)
        .file_system(disk.clone())
        .bridge(LibvirtHosts::BRIDGE)
        .console(DomainConsole::Terminal);
    let (source, destination) = (&hosts.source, &hosts.destination);
    let events = [source, destination].map(|host| DomainEvents::record(host).unwrap());
    let mut domain = Domain::boot(hosts, config).unwrap();
    let server = format!("{}:{PORT}", GuestNetwork::GUEST).parse().unwrap();
    let pace = Pace::FixedTimes(Duration::from_millis(5));
    let client = DatagramClient::start(hosts.network().client(), server, 1, pace).unwrap();
    assert!(client.wait_answers(20, LONG), "the guest does not answer");
    let migrate_uri = format!("tcp://{}", destination.address());
    let uri = destination.uri();
    let words = ["migrate", "--live", "--unsafe", "guest", &uri, &migrate_uri];
    source.virsh(&[&words, options].concat()).unwrap();
    assert_eq!(source.state("guest").unwrap(), "absent");
    assert_eq!(destination.state("guest").unwrap(), "running");
    domain.open_terminal(destination).unwrap();
    let verdict = domain.sweep(destination, LONG).unwrap();
    assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
    assert!(client.wait_answers(20, LONG), "the guest does not answer");
    log(format!("{options:?}: {:?}", client.finish().unwrap()));
    let events = events.map(|events| events.of("guest").unwrap());
    for (events, expected) in events.iter().zip(expected) {
        log(events.join(", "));
        // How many rounds there are depends on the guest.
        let round = |event: &&String| event.starts_with("migration-iteration");
        let events: Vec<_> = events.iter().filter(|event| !round(event)).collect();
        assert_eq!(events, expected);
    }
    domain.destroy(destination).unwrap();
    disk.image().check().unwrap();
}

#[test]
fn virsh_migrates_a_domain_by_precopy() {
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start(env.lab()).unwrap();
    let at_source = [
        "lifecycle: Resumed Unpaused",
        "lifecycle: Started Booted",
        "lifecycle: Suspended Migrated",
        "lifecycle: Stopped Migrated",
        "job-completed:",
    ];
    let at_destination = ["lifecycle: Started Migrated", "lifecycle: Resumed Migrated"];
    virsh_migrates(&hosts, &env, &[], [&at_source, &at_destination]);
}

#[test]
#[ignore = "as by pre-copy: make test-libvirt"]
fn virsh_migrates_a_domain_by_postcopy() {
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start_with_userfaultfd(env.lab()).unwrap();
    let options = [
        "--bandwidth",
        "50",
        "--postcopy",
        "--postcopy-after-precopy",
    ];
    let at_source = [
        "lifecycle: Resumed Unpaused",
        "lifecycle: Started Booted",
        "lifecycle: Suspended Migrated",
        "lifecycle: Suspended Post-copy",
        "lifecycle: Stopped Migrated",
        "job-completed:",
    ];
    let at_destination = [
        "lifecycle: Started Migrated",
        "lifecycle: Resumed Post-copy",
        "lifecycle: Resumed Migrated",
    ];
    virsh_migrates(&hosts, &env, &options, [&at_source, &at_destination]);
}
