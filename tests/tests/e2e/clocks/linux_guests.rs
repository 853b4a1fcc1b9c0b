//! A guest's clocks continue where they were: read inside the guest before and after its moves.
//!
//! An emulated guest reads no clock of the host: its time-stamp counter stops with the others while
//! it is paused.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestNetwork, VmConfig, Workload};
use hikkoshi_tests::{
    ClockPause, ClockRates, ClockReading, Guest, LONG, MigrationPlan, PausedCounter, TestEnv,
    Transport, assert_clocks_run_on, ran_on,
};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// By how much the real-time clock is ahead of the monotonic one, s: at least and at most.
#[derive(Clone, Copy, Debug)]
struct RealTimeLead(f64, f64);

impl RealTimeLead {
    /// The real-time clock was read between two readings of the monotonic one.
    fn new(real: f64, monotonic: (f64, f64)) -> Self {
        /// A double holds these numbers to a microsecond.
        const EXACT: f64 = 2e-6;
        Self(real - monotonic.1 - EXACT, real - monotonic.0 + EXACT)
    }

    /// Whether both can be the same.
    fn is_same(self, other: Self) -> bool {
        self.0 <= other.1 && other.0 <= self.1
    }
}

/// Asks the guest's server for all of its clocks.
fn read(stream: &TcpStream) -> (ClockReading, RealTimeLead) {
    let mut answers = BufReader::new(stream);
    let asked = Instant::now();
    (&mut &*stream).write_all(b"clocks\n").unwrap();
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    let answered = Instant::now();
    let numbers: Vec<f64> = line
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let [before, real, after, ticks] = numbers[..] else {
        panic!("not four numbers: {line:?}");
    };
    let monotonic = (before * 1e-9, after * 1e-9);
    (
        ClockReading::new(asked, answered, monotonic, ticks),
        RealTimeLead::new(real * 1e-9, monotonic),
    )
}

#[test]
#[ignore = "part of `make matrix`"]
fn clocks_continue_after_moves() {
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let workload = Workload::verify(32)
        .rate(5000)
        .with_server(7000)
        .option("every_ms", 200);
    let config = VmConfig::new()
        .workload(workload)
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let stream = network
        .client()
        .run(|| TcpStream::connect((GuestNetwork::GUEST, 7000)).unwrap());
    let stream = stream.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let (first, _) = ClockReading::most_exact(|| read(&stream));
    std::thread::sleep(Duration::from_secs(1));
    let (second, _) = ClockReading::most_exact(|| read(&stream));
    let rates = ClockRates::between(&first, &second);
    let (one, other) = (
        (network.source(), GuestNetwork::SOURCE),
        (network.destination(), GuestNetwork::DESTINATION),
    );
    let mut hosts = (one, other);
    for mode in ["hybrid", "precopy", "postcopy"] {
        let plan = || {
            let (from, to) = hosts;
            hosts = (to, from);
            MigrationPlan::new(mode)
                .transport(Transport::Address(format!("{}:7100", to.1)))
                .between_namespaces(from.0, to.0)
        };
        let counter = PausedCounter::Stops;
        let [before, after] =
            assert_clocks_run_on(&mut guest, &rates, counter, plan, |_| read(&stream));
        // What one clock is ahead of the other is known as exactly as they were read at once.
        assert!(
            before.1.is_same(after.1),
            "{mode}: the real-time clock jumped against the monotonic one: {before:?} {after:?}"
        );
        let (later, _) = ClockReading::most_exact(|| read(&stream));
        let readings = (&after.0, &later);
        if let Err(why) = ran_on(readings, &rates, ClockPause::NONE, counter) {
            panic!("after {mode}: {why}");
        }
    }
}

#[test]
fn a_jump_of_the_real_time_clock_is_noticed() {
    let lead = |ahead: f64| RealTimeLead::new(10.000_05 + ahead, (10.0, 10.000_1));
    assert!(lead(100.0).is_same(lead(100.0)));
    assert!(lead(100.0).is_same(lead(100.000_05)), "not noticeable");
    assert!(!lead(100.0).is_same(lead(100.03)));
    assert!(!lead(100.0).is_same(lead(99.97)));
}
