//! What `hikkoshi dashboard` costs: CPU time for a guest of 1 TiB, with pages open (`make
//! bench-dashboard`; docs/dashboard.md has the table).
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::{Mode, Side};
use hikkoshi_status::{StatusFolder, StatusRecord, StatusServer};
use hikkoshi_tests::recordings::RecordedCase;
use hikkoshi_tests::{Program, TestEnv, hikkoshi};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// States a second, as engines send them.
const PERIOD: Duration = Duration::from_millis(100);
/// States for each line of the table.
const STATES: usize = 200;

/// CPU time of a process so far, in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = fields.split(' ').collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Kilobytes of memory of a process that are not shared.
fn memory_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "a measurement; make bench-dashboard runs it"]
fn the_cost_of_a_guest_of_one_tib() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let mut command = Command::new(hikkoshi());
    command
        .args(["dashboard", "--listen", "127.0.0.1:0", "--journal"])
        .arg(&run);
    let dashboard = Program::start("dashboard", command);
    let url = dashboard.wait_stdout("http://");
    let address = url
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix('/')
        .unwrap()
        .to_owned();

    let case = RecordedCase {
        cells: 1024,
        cell_pages: 1 << 18,
        // 100 Gbit/s
        link_pages: 300_000,
        ..RecordedCase::new("large", Mode::Hybrid)
    };
    let recorded = case.record();
    let folder = StatusFolder::in_run_folder(&run);
    let mut recorder = recorded.recorder(Side::Source);
    let mut server = StatusServer::start(&folder, &recorder).unwrap();
    let all: Vec<_> = recorded.states_of(Side::Source).collect();
    let mut states = all.iter().copied().cycle();
    let length = |state| serde_json::to_vec(state).unwrap().len();
    let longest = all.iter().copied().map(length).max().unwrap();

    println!("a state has up to {longest} bytes; {STATES} states, one every {PERIOD:?}\n");
    println!(
        "| open pages | CPU share | received by each page | memory |\n| --- | --- | --- | --- |"
    );
    let mut number = 0_u64;
    let mut readers = Vec::new();
    for pages in [0, 1, 4] {
        while readers.len() < pages {
            let received = Arc::new(AtomicU64::new(0));
            let mut stream = TcpStream::connect(&*address).unwrap();
            stream
                .write_all(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let counted = Arc::clone(&received);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 20];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                    counted.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            });
            readers.push(received);
        }
        let mut next = Instant::now();
        let mut publish = |count: usize| {
            for _ in 0..count {
                next += PERIOD;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
                number += 1;
                let mut state = states.next().unwrap().clone();
                state.at_ms = number * 100;
                server.accept(&recorder);
                server.publish(&StatusRecord::State(Box::new(state.clone())));
                recorder.add(state);
            }
        };
        // Until all are connected, and have what came before.
        publish(20);
        let begun = (Instant::now(), cpu_seconds(dashboard.pid()));
        let before: Vec<_> = readers
            .iter()
            .map(|it| it.load(Ordering::Relaxed))
            .collect();
        publish(STATES);
        let share = (cpu_seconds(dashboard.pid()) - begun.1) / begun.0.elapsed().as_secs_f64();
        let received = readers
            .iter()
            .zip(before)
            .map(|(it, before)| it.load(Ordering::Relaxed) - before);
        let received = received.min().unwrap_or(0) / STATES as u64;
        let memory = memory_kb(dashboard.pid()) / 1024;
        println!(
            "| {pages} | {:.2} % of a core | {received} bytes a state | {memory} MiB |",
            share * 100.0
        );
        assert!(
            received > 1000 || pages == 0,
            "the pages receive the states"
        );
    }
}
