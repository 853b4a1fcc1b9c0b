//! A whole Debian is moved while it serves a client: systemd, ext4 on a shared qcow2 with
//! `cache=none`, redis with its append-only log, and the workload, which checks its memory and a
//! disk. At the end, the file system and the disk are checked.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::{self, V7_2, V10_0};
use hikkoshi_lab::{
    Disk, DiskContent, DiskFormat, DiskImage, GuestNetwork, Ram, RamBackend, VmConfig, Workload,
};
use hikkoshi_tests::{Guest, MigrationPlan, RedisLoad, TestEnv, Transport, log};

/// Answers of redis between two trips.
const ANSWERS: u64 = 300;

const RAM_MIB: u64 = 512;

/// Moves the guest so often, to and fro between two hosts with these QEMUs, each time by the next
/// of these modes.
fn trips(ram: Ram, versions: [QemuVersion; 2], modes: &[&'static str]) {
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let disk = |name, content| {
        Disk::new(DiskImage::new(env.lab(), name, DiskFormat::Qcow2, content).unwrap())
    };
    let workload = Workload::verify(32)
        .rate(5000)
        .in_debian(40)
        .option("every_ms", 200);
    let config = VmConfig::new()
        .version(versions[0])
        .cpus(2)
        .ram(ram)
        .workload(workload)
        .disk(disk("debian", DiskContent::Debian))
        .disk(disk("blocks", DiskContent::Blocks { mib: 64 }))
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let client = RedisLoad::start(&network);
    client.wait_answers(ANSWERS);
    let hosts = [
        (network.source(), GuestNetwork::SOURCE),
        (network.destination(), GuestNetwork::DESTINATION),
    ];
    for (trip, &mode) in modes.iter().enumerate() {
        let ((from, _), (to, address)) = (hosts[trip % 2], hosts[(trip + 1) % 2]);
        let plan = MigrationPlan::new(mode)
            .destination_version(versions[(trip + 1) % 2])
            .transport(Transport::Address(format!("{address}:7100")))
            .between_namespaces(from, to);
        guest.migrate(&plan);
        // The same connection.
        client.wait_answers(ANSWERS);
    }
    let longest = client.finish();
    log(format!(
        "{} trips: longest response time {:.1} ms",
        modes.len(),
        longest.as_secs_f64() * 1e3
    ));
}

/// As with `-m` alone.
fn private_memory() -> Ram {
    Ram::new(RamBackend::Default, RAM_MIB)
}

#[test]
#[ignore = "a whole Debian: make drills"]
fn a_debian_that_serves_is_moved() {
    trips(private_memory(), [V10_0; 2], &["hybrid"]);
}

#[test]
#[ignore = "many trips: `make drills`"]
fn a_debian_that_serves_is_moved_to_and_fro() {
    let modes = |times| ["hybrid", "precopy", "postcopy"].repeat(times);
    trips(private_memory(), [V10_0; 2], &modes(6));
    trips(Ram::shared(RAM_MIB), [V10_0; 2], &modes(2));
}

#[test]
#[ignore = "many trips: `make drills`"]
fn a_debian_that_serves_is_moved_to_and_fro_between_qemu_versions() {
    let modes = ["hybrid", "precopy", "postcopy"].repeat(2);
    trips(private_memory(), [V7_2, V10_0], &modes);
}
