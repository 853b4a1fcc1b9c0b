//! A guest on a tap device and a bridge serves a client during its migrations.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{GuestNetwork, VmConfig, Workload};
use hikkoshi_tests::{Guest, LONG, MigrationPlan, TestEnv, Transport, log};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A client that sends requests continuously, over one connection.
pub(super) struct Client {
    stop: Arc<AtomicBool>,
    /// Answers so far.
    answers: Arc<AtomicU64>,
    thread: JoinHandle<Duration>,
}

impl Client {
    pub(super) fn start(network: &GuestNetwork) -> Self {
        let stream = network
            .client()
            .run(|| TcpStream::connect((GuestNetwork::GUEST, 7000)).unwrap())
            .unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let (stop, answers) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answers));
        let thread = std::thread::spawn(move || ask(&stream, &stopped, &count));
        Self {
            stop,
            answers,
            thread,
        }
    }

    /// Waits for this many further answers.
    pub(super) fn wait_answers(&self, more: u64) {
        let wanted = self.answers.load(Ordering::Acquire) + more;
        let deadline = Instant::now() + LONG;
        while self.answers.load(Ordering::Acquire) < wanted {
            assert!(Instant::now() < deadline, "no answer on the connection");
            assert!(!self.thread.is_finished(), "the client has stopped");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the client, and returns the longest response time.
    pub(super) fn finish(self) -> Duration {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

fn ask(mut stream: &TcpStream, stop: &AtomicBool, answers: &AtomicU64) -> Duration {
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let (mut longest, mut guests_time) = (Duration::ZERO, 0);
    let mut number = 0u64;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        let asked = Instant::now();
        stream.write_all(format!("{number}\n").as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        longest = longest.max(asked.elapsed());
        // One answer for each request, in order, from a clock that never goes back.
        let (time, text) = reply.trim_end().split_once(' ').unwrap();
        assert_eq!(text, number.to_string());
        let time: u64 = time.parse().unwrap();
        assert!(time > guests_time, "the guest's clock went back");
        guests_time = time;
        answers.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(Duration::from_millis(2));
    }
    longest
}

fn serves_through(mode: &'static str) {
    let env = TestEnv::new();
    let network = GuestNetwork::new().unwrap();
    let workload = Workload::verify(32)
        .rate(10_000)
        .with_server(7000)
        .option("every_ms", 200);
    let config = VmConfig::new()
        .workload(workload)
        .nic(network.nic())
        .namespace(network.source());
    let mut guest = Guest::boot(&env, config);
    let client = Client::start(&network);
    client.wait_answers(50);
    let address = format!("{}:7100", GuestNetwork::DESTINATION);
    let plan = MigrationPlan::new(mode)
        .transport(Transport::Address(address))
        .between_namespaces(network.source(), network.destination());
    guest.migrate(&plan);
    // The same connection, with the guest on another port of the switch.
    client.wait_answers(50);
    let longest = client.finish();
    log(format!(
        "{mode}: longest response time {:.1} ms",
        longest.as_secs_f64() * 1e3
    ));
}

#[test]
#[ignore = "part of `make matrix`"]
fn a_connection_survives_precopy() {
    serves_through("precopy");
}

#[test]
#[ignore = "part of `make matrix`"]
fn a_connection_survives_hybrid() {
    serves_through("hybrid");
}

#[test]
fn a_connection_survives_postcopy() {
    serves_through("postcopy");
}
