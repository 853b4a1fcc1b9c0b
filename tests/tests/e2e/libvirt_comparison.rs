//! The same domain moved by libvirt and by hikkoshi, alternating, with a client: a table.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::libvirt::built_with_libvirt;
use super::libvirt_domains::{How, PORT, VIRSH_POSTCOPY, assert_healthy, file_system};
use hikkoshi_lab::libvirt::{Domain, DomainConfig, LibvirtHost, LibvirtHosts};
use hikkoshi_lab::{DatagramClient, Datagrams, GuestNetwork, Pace, Workload};
use hikkoshi_tests::{LONG, TestEnv, log};
use std::time::{Duration, Instant};

/// Between two datagrams of the client.
const INTERVAL: Duration = Duration::from_millis(2);

/// How often each moves the domain; `ROUNDS` in the environment changes it.
const ROUNDS: usize = 5;

const SYSTEMS: [(&str, How); 5] = [
    ("virsh migrate", How::Virsh(&[])),
    ("virsh migrate --postcopy", VIRSH_POSTCOPY),
    ("hikkoshi precopy", How::Hikkoshi("precopy", &[])),
    ("hikkoshi hybrid", How::Hikkoshi("hybrid", &[])),
    ("hikkoshi postcopy", How::Hikkoshi("postcopy", &[])),
];

/// What came of one move, in ms.
struct Measured {
    total: f64,
    downtime: f64,
    gap: f64,
    lost: usize,
}

#[test]
#[ignore = "prints a table: make bench-libvirt"]
fn libvirt_and_hikkoshi_move_the_same_domain() {
    if !built_with_libvirt() {
        return;
    }
    let env = TestEnv::new();
    let hosts = LibvirtHosts::start_with_userfaultfd(env.lab()).unwrap();
    let disk = file_system(&env);
    // 8 MiB a second: pre-copy converges.
    let workload = Workload::verify(64)
        .rate(4000)
        .with_server(PORT)
        .option("every_ms", 200);
    let config = DomainConfig::new("guest", workload)
        .memory_mib(256)
        .file_system(disk.clone())
        .bridge(LibvirtHosts::BRIDGE);
    let domain = Domain::boot(&hosts, config).unwrap();
    let rounds = std::env::var("ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut measured: [Vec<Measured>; SYSTEMS.len()] = Default::default();
    let mut order = [&hosts.source, &hosts.destination];
    for _ in 0..rounds.unwrap_or(ROUNDS) {
        for ((_, how), measured) in SYSTEMS.iter().zip(&mut measured) {
            measured.push(one_move(*how, &env, &hosts, &domain, order));
            order.reverse();
        }
    }
    assert_healthy(&domain, order[0]);
    domain.destroy(order[0]).unwrap();
    disk.image().check().unwrap();
    let mut table = "medians | total ms | downtime ms | longest gap ms | lost\n".to_owned();
    for ((name, _), measured) in SYSTEMS.iter().zip(&measured) {
        let of = |value: fn(&Measured) -> f64| median(measured.iter().map(value).collect());
        table.push_str(&format!(
            "{name} | {:.0} | {} | {:.1} | {}\n",
            of(|one| one.total),
            match of(|one| one.downtime) {
                unknown if unknown.is_nan() => "not reported".to_owned(),
                downtime => format!("{downtime:.1}"),
            },
            of(|one| one.gap),
            measured.iter().map(|one| one.lost).sum::<usize>(),
        ));
    }
    log(table);
}

fn one_move(
    how: How,
    env: &TestEnv,
    hosts: &LibvirtHosts,
    domain: &Domain<'_>,
    [from, to]: [&LibvirtHost; 2],
) -> Measured {
    let server = format!("{}:{PORT}", GuestNetwork::GUEST).parse().unwrap();
    let pace = Pace::FixedTimes(INTERVAL);
    let client = DatagramClient::start(hosts.network().client(), server, 1, pace).unwrap();
    assert!(client.wait_answers(100, LONG), "the guest does not answer");
    let started = Instant::now();
    let report = how.moves(env, domain, [from, to]);
    let total = started.elapsed().as_secs_f64() * 1e3;
    assert!(client.wait_answers(100, LONG), "the guest does not answer");
    let datagrams = client.finish().unwrap();
    let downtime = match report {
        Some(report) => report.downtime_ms,
        None => virsh_downtime(domain.name(), to),
    };
    Measured {
        total,
        downtime,
        gap: longest_gap(&datagrams),
        lost: datagrams.lost.len(),
    }
}

/// What the destination's daemon says of the last move, in ms; NaN if it says nothing, as after
/// post-copy.
fn virsh_downtime(domain: &str, host: &LibvirtHost) -> f64 {
    let info = host.virsh(&["domjobinfo", domain, "--completed"]).unwrap();
    let line = info
        .lines()
        .find(|line| line.starts_with("Total downtime:"));
    let words = line.and_then(|line| line.split_whitespace().nth(2));
    words.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// The longest time between two answers, in ms.
fn longest_gap(datagrams: &Datagrams) -> f64 {
    let gaps = datagrams.answered.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default().as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
