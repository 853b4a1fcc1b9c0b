//! A guest's clocks continue where they were: read inside the guest before and after its moves.
//!
//! While a guest is paused its clocks stop, in QEMU's own migration too (of the clocks
//! tested here; an emulated guest reads no clock of the host). So between two readings a clock runs
//! on by the time that has passed outside, at least without the downtime and at most with it.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestNetwork, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, Transport, log};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The guest reads its clocks one after the other; a reading that was interrupted for longer is
/// repeated.
const AT_ONCE: Duration = Duration::from_millis(2);

/// The host's clock and the guest's may differ by so much in rate.
const DRIFT: f64 = 0.01;

/// QEMU stops the clocks and then says so; another program may run in between.
const STOP_SLACK: Duration = Duration::from_millis(200);

/// The guest's clocks at one time.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// When the reading was requested and when it was here, by the host's clock.
    asked: Instant,
    answered: Instant,
    /// The monotonic clock before and after the other readings, s.
    monotonic: (f64, f64),
    /// The real-time clock, s.
    real: f64,
    /// The time-stamp counter.
    ticks: f64,
}

impl Clocks {
    fn read(stream: &mut TcpStream) -> Self {
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let deadline = Instant::now() + LONG;
        loop {
            let asked = Instant::now();
            stream.write_all(b"clocks\n").unwrap();
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            let answered = Instant::now();
            let words: Vec<f64> = line
                .split_whitespace()
                .map(|n| n.parse().unwrap())
                .collect();
            let [before, real, after, ticks] = words[..] else {
                panic!("not four numbers: {line:?}");
            };
            let clocks = Self {
                asked,
                answered,
                monotonic: (before * 1e-9, after * 1e-9),
                real: real * 1e-9,
                ticks,
            };
            if after - before < AT_ONCE.as_secs_f64() * 1e9 {
                return clocks;
            }
            assert!(Instant::now() < deadline, "always interrupted: {clocks:?}");
        }
    }

    /// Checks that the guest's clocks ran on from `self` to `later`; outside, it was paused for
    /// `paused` at most.
    fn assert_ran_on(&self, later: &Self, paused: Duration, what: &str) {
        let context = format!("{what}: {self:?} {later:?}, paused for {paused:?}");
        let least = later.monotonic.0 - self.monotonic.1;
        let most = later.monotonic.1 - self.monotonic.0;
        assert!(least > 0.0, "the monotonic clock went back; {context}");
        let outside = (later.answered - self.asked).as_secs_f64();
        assert!(
            least <= outside * (1.0 + DRIFT),
            "the monotonic clock jumped ahead by {} s; {context}",
            least - outside
        );
        let running = (later.asked.saturating_duration_since(self.answered))
            .saturating_sub(paused + STOP_SLACK)
            .as_secs_f64();
        assert!(
            most >= running * (1.0 - DRIFT),
            "the monotonic clock lost {} s; {context}",
            running - most
        );
        // What one clock is ahead of the other is known as exactly as they were read at once.
        let (a, b) = (self.ahead(), later.ahead());
        assert!(
            a.0 <= b.1 && b.0 <= a.1,
            "the real-time clock jumped against the monotonic one: ahead by {a:?}, then {b:?} s; \
             {context}"
        );
    }

    /// By how much the real-time clock is ahead of the monotonic one, s: at least and at most. A
    /// double holds these numbers to a microsecond.
    fn ahead(&self) -> (f64, f64) {
        const EXACT: f64 = 2e-6;
        (
            self.real - self.monotonic.1 - EXACT,
            self.real - self.monotonic.0 + EXACT,
        )
    }

    /// Ticks of the time-stamp counter in a second of the monotonic clock, from `self` to `later`.
    fn tick_rate(&self, later: &Self) -> f64 {
        (later.ticks - self.ticks) / (later.monotonic.0 - self.monotonic.0)
    }
}

/// The clocks are in the device state, which is the same in each mode.
#[test]
fn clocks_continue_after_a_move() {
    let mode = "hybrid";
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
    let mut stream = stream.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let first = Clocks::read(&mut stream);
    std::thread::sleep(Duration::from_millis(500));
    let before = Clocks::read(&mut stream);
    first.assert_ran_on(&before, Duration::ZERO, "without a move");
    let address = format!("{}:7100", GuestNetwork::DESTINATION);
    let plan = MigrationPlan::new(mode)
        .transport(Transport::Address(address))
        .between_namespaces(network.source(), network.destination());
    let report = guest.migrate(&plan);
    let after = Clocks::read(&mut stream);
    // The source's figure: from the pause until it knows that the guest runs.
    let downtime = report.downtime_ms * 1e-3;
    let paused = Duration::from_secs_f64(downtime);
    before.assert_ran_on(&after, paused, mode);
    std::thread::sleep(Duration::from_millis(500));
    let last = Clocks::read(&mut stream);
    after.assert_ran_on(&last, Duration::ZERO, "after the move");
    let rates = [
        first.tick_rate(&before),
        before.tick_rate(&after),
        after.tick_rate(&last),
    ];
    log(format!(
        "{mode}: paused for {paused:?}, ticks a second {rates:?}"
    ));
    for rate in rates {
        let off = (rate / rates[0] - 1.0).abs();
        assert!(off < 0.03, "the time-stamp counter jumped: {rates:?}");
    }
}

/// The check notices each kind of jump.
#[test]
fn a_jump_of_a_clock_is_noticed() {
    let zero = Instant::now();
    let at = |outside: f64, monotonic: f64, real: f64| Clocks {
        asked: zero + Duration::from_secs_f64(outside),
        answered: zero + Duration::from_secs_f64(outside + 0.001),
        monotonic: (monotonic, monotonic + 0.0001),
        real: real + 0.00005,
        ticks: 0.0,
    };
    let noticed = |monotonic: f64, real: f64| {
        let (before, after) = (at(1.0, 10.0, 110.0), at(3.0, monotonic, real));
        let paused = Duration::from_millis(100);
        std::panic::catch_unwind(|| before.assert_ran_on(&after, paused, "test")).is_err()
    };
    assert!(!noticed(12.0, 112.0), "without the downtime");
    assert!(!noticed(11.9, 111.9), "with it");
    assert!(noticed(9.9, 109.9), "back");
    assert!(noticed(12.5, 112.5), "ahead");
    assert!(noticed(11.0, 111.0), "behind");
    assert!(noticed(11.9, 112.0), "one against the other");
}
