//! `hikkoshi dashboard`: what the process may do, real moves in its metrics and events, and a real
//! Prometheus.
#![allow(clippy::unwrap_used)] // a test's failure is the message

mod cost;
mod example_reports;
mod page;
pub(crate) mod reports;
mod resumed;

use hikkoshi_account::{Converges, DiskCopy, Mode, Phase, Side, State};
use hikkoshi_lab::http_get;
use hikkoshi_lab::prometheus::{Prometheus, check_metrics, check_rules, test_rules};
use hikkoshi_status::{StatusFolder, StatusRecord, StatusServer};
use hikkoshi_tests::recordings::RecordedCase;
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, MigrationPlan, Program, TestEnv, busy_guest, eventually,
    hikkoshi,
};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A running `hikkoshi dashboard` on a free port.
pub(crate) struct Dashboard {
    program: Program,
    pub(crate) address: SocketAddr,
}

impl Dashboard {
    pub(crate) fn start(run_folder: &Path) -> Self {
        Self::start_with(run_folder, &[])
    }

    pub(crate) fn start_with(run_folder: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(hikkoshi());
        command.args(["dashboard", "--listen", "127.0.0.1:0", "--journal"]);
        command.arg(run_folder).args(more);
        let program = Program::start("dashboard", command);
        let url = program.wait_stdout("http://");
        let address = url
            .strip_prefix("http://")
            .unwrap()
            .strip_suffix('/')
            .unwrap();
        Self {
            program,
            address: address.parse().unwrap(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Ends it as a service manager does.
    pub(crate) fn end(mut self) {
        self.program.signal(Signal::TERM);
        let exit = self.program.wait();
        assert_eq!(exit.code, Some(0), "{exit:?}");
        assert_eq!(exit.stderr, "");
        assert_eq!(exit.stdout.lines().count(), 1, "{exit:?}");
    }

    pub(crate) fn get(&self, path: &str) -> String {
        http_get(self.address, path).unwrap()
    }

    /// Reads `/events` in a thread until both sides of a migration have ended. The result are, by
    /// side, the phases that it saw and the exit status.
    fn read_events(&self) -> impl FnOnce() -> [(BTreeSet<String>, u8); 2] + use<> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
            .write_all(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let (sender, result) = channel();
        std::thread::spawn(move || {
            let mut sides: [(BTreeSet<String>, Option<u8>); 2] = Default::default();
            for line in BufReader::new(stream).lines() {
                let line = line.unwrap();
                let Some(data) = line.strip_prefix("data: ") else {
                    continue;
                };
                let data: serde_json::Value = serde_json::from_str(data).unwrap();
                // That all was sent.
                let Some(name) = data["name"].as_str() else {
                    continue;
                };
                let side = &mut sides[usize::from(name.starts_with("destination"))];
                match serde_json::from_value(data["record"].clone()).unwrap() {
                    StatusRecord::State(state) => {
                        side.0.insert(format!("{:?}", state.phase));
                    }
                    StatusRecord::End(end) => side.1 = Some(end.exit_status),
                    StatusRecord::Recording(recording) => {
                        side.1 = side.1.or(recording.end.map(|end| end.exit_status));
                    }
                    StatusRecord::Notice(_) => {}
                }
                if let [(_, Some(_)), (_, Some(_))] = &sides {
                    break;
                }
            }
            sender
                .send(sides.map(|(phases, end)| (phases, end.unwrap())))
                .unwrap();
        });
        move || result.recv_timeout(LONG).unwrap()
    }
}

pub(crate) fn run_folder(env: &TestEnv) -> PathBuf {
    env.folder().join("run")
}

fn documents() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/assets/monitoring")
}

/// The address, no rights, the end, and what cannot be listened on.
#[test]
fn the_process_has_no_privileges_and_ends_cleanly() {
    let env = TestEnv::new();
    let folder = run_folder(&env);
    let dashboard = Dashboard::start(&folder);
    assert!(dashboard.get("/").contains("<!doctype html>"));
    let tasks = format!("/proc/{}/task", dashboard.program.pid());
    let tasks: Vec<_> = std::fs::read_dir(tasks).unwrap().collect();
    assert!(tasks.len() >= 2, "the thread that watches, too");
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for (name, value) in [
            ("CapInh", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("CapEff", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            let line = format!("{name}:\t{value}");
            assert!(status.lines().any(|l| l == line), "{line}\n{status}");
        }
    }
    if rustix::process::geteuid().is_root() {
        let root = std::fs::read_link(format!("/proc/{}/root", dashboard.program.pid()));
        assert_eq!(root.unwrap(), StatusFolder::in_run_folder(&folder).path());
    }
    dashboard.end();

    // On a unix socket, which only this user can connect to.
    let socket = env.folder().join("page.sock");
    let mut command = Command::new(hikkoshi());
    let listen = format!("unix:{}", socket.display());
    command
        .args(["dashboard", "--listen", &listen, "--journal"])
        .arg(&folder);
    let mut program = Program::start("dashboard", command);
    program.wait_stdout(&listen);
    assert_eq!(
        socket.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost:8077\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("hikkoshi_build_info"), "{answer}");
    program.signal(Signal::TERM);
    let exit = program.wait();
    assert_eq!((exit.code, &*exit.stderr), (Some(0), ""), "{exit:?}");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (listen, part) in [
        (&*taken, "Address already in use"),
        ("0.0.0.0:0", "--allow-remote"),
        ("example.com:80", "is not IP:PORT or unix:PATH"),
    ] {
        let mut command = Command::new(hikkoshi());
        command
            .args(["dashboard", "--listen", listen, "--journal"])
            .arg(&folder);
        let exit = Program::start("dashboard", command).wait();
        assert_eq!(exit.code, Some(2), "{exit:?}");
        assert!(exit.stderr.contains(part), "{exit:?}");
    }
    let mut command = Command::new(hikkoshi());
    command.args([
        "dashboard",
        "--listen",
        "127.0.0.1:0",
        "--journal",
        "/proc/none",
    ]);
    let exit = Program::start("dashboard", command).wait();
    assert_eq!(exit.code, Some(2), "{exit:?}");
    assert!(exit.stderr.contains("/proc/none/status"), "{exit:?}");
}

/// A guest is moved by post-copy, and held in the middle. Prometheus and a reader of the events see
/// both sides, while it moves and afterwards.
#[test]
fn prometheus_scrapes_a_move_and_its_end() {
    let env = TestEnv::new();
    let folder = run_folder(&env);
    let dashboard = Dashboard::start(&folder);
    let prometheus = Prometheus::start(env.lab(), dashboard.address).unwrap();
    let mut guest = Guest::boot(&env, busy_guest());
    let events = dashboard.read_events();
    let plan = MigrationPlan::new("postcopy")
        .journals_at(&folder, &folder)
        .hold_at(Breakpoint::after(MessageKind::Request).nth(20));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    let running = "hikkoshi_migration_running == 1 \
                   and on (id, side) hikkoshi_migration_phase{phase=\"postcopy\"} == 1";
    eventually("both sides in post-copy", || {
        let sides = prometheus.query(running).unwrap();
        (sides.len() == 2).then_some(()).ok_or(format!("{sides:?}"))
    });
    let missing = "hikkoshi_migration_missing_pages{side=\"destination\"} > 0";
    prometheus.wait_query(missing, LONG).unwrap();
    let info = prometheus
        .wait_query("hikkoshi_migration_info{mode=\"postcopy\"}", LONG)
        .unwrap();
    let label = |name: &str| {
        info.iter()
            .map(|it| it.labels[name].clone())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(label("id").len(), 1, "one migration: {info:?}");
    assert_eq!(label("side").len(), 2, "on two sides: {info:?}");
    check_metrics(&dashboard.get("/metrics")).unwrap();
    migration.relay().release();

    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    let ended = "hikkoshi_migrations_ended_total{reason=\"moved\"} == 1";
    eventually("both sides to end", || {
        let sides = prometheus.query(ended).unwrap();
        (sides.len() == 2).then_some(()).ok_or(format!("{sides:?}"))
    });
    // The values of the end are those of the result.
    let there = exits.json_reports[1].as_ref().unwrap();
    let value = |query: &str| prometheus.wait_query(query, LONG).unwrap()[0].value;
    for (kind, pages) in [
        ("urgent", report.pages.urgent),
        ("background", report.pages.background),
    ] {
        let query = format!("hikkoshi_migration_pages_total{{side=\"source\", kind=\"{kind}\"}}");
        assert_eq!(value(&query), pages as f64, "{query}");
    }
    let latency = "hikkoshi_migration_request_latency_seconds_count{side=\"destination\"}";
    assert_eq!(
        value(latency),
        there.requests.request_latency_us.count as f64
    );
    assert_eq!(
        value("hikkoshi_migration_missing_pages{side=\"destination\"}"),
        0.0
    );
    check_metrics(&dashboard.get("/metrics")).unwrap();

    let sides = events();
    for (phases, status) in &sides {
        assert!(
            phases.contains(&format!("{:?}", Phase::Postcopy)),
            "{phases:?}"
        );
        assert_eq!(*status, 0);
    }
    let list: serde_json::Value = serde_json::from_str(&dashboard.get("/api/migrations")).unwrap();
    for entry in list.as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        assert_eq!(entry["end"]["reason"], "moved", "{entry}");
        let report = dashboard.get(&format!("/report/{name}.html"));
        assert!(report.contains(entry["migration"]["id"].as_str().unwrap()));
    }
    dashboard.end();
}

/// The rules and the queries of the Grafana dashboard are valid, and each query of the dashboard
/// has a result for a recorded migration.
#[test]
fn rules_and_queries_work_on_the_exported_metrics() {
    check_rules(&documents().join("alerts.yaml")).unwrap();
    test_rules(&documents().join("alerts.test.yaml")).unwrap();

    let env = TestEnv::new();
    let folder = run_folder(&env);
    let dashboard = Dashboard::start(&folder);
    let prometheus = Prometheus::start(env.lab(), dashboard.address).unwrap();
    let status = StatusFolder::in_run_folder(&folder);
    let recorded = RecordedCase::new("web", Mode::Hybrid).record();
    // In the middle, so that all values are there.
    let is_measured = |side, state: &State| match side {
        Side::Source => state.dirty_pages_per_second.is_some() && state.time_left.is_some(),
        Side::Destination => state.missing_pages.is_some() && state.requests.count > 0,
    };
    let ended = Arc::new(AtomicBool::new(false));
    let engines = [Side::Source, Side::Destination].map(|side| {
        let mut recorder = recorded.recorder(side);
        let state = recorded
            .states_of(side)
            .find(|state| is_measured(side, state));
        let mut state = state.unwrap().clone();
        // A source has the one in pre-copy without post-copy, and the other at the end.
        if side == Side::Source {
            state.converges = Some(Converges::Switches);
            state.likely_downtime_ms = Some(10.5);
            state.disks = vec![DiskCopy {
                name: "vda".into(),
                copied_bytes: 5,
                total_bytes: 9,
                in_sync: false,
            }];
        }
        recorder.add(state.clone());
        let mut server = StatusServer::start(&status, &recorder).unwrap();
        let ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                server.accept(&recorder);
                server.publish(&StatusRecord::State(Box::new(state.clone())));
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    });
    let grafana = std::fs::read_to_string(documents().join("grafana-dashboard.json")).unwrap();
    let grafana: serde_json::Value = serde_json::from_str(&grafana).unwrap();
    prometheus
        .wait_query("hikkoshi_migration_info", LONG)
        .unwrap();
    let mut queries = 0;
    for panel in grafana["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let query = query
                .replace("$instance", ".*")
                .replace("$id", ".*")
                .replace("$__rate_interval", "10s");
            // Nothing has ended.
            let is_empty = query.contains("ended_total")
                || query.contains("side) (hikkoshi_migration_exit_status");
            match is_empty {
                true => assert_eq!(prometheus.query(&query).unwrap(), [], "{query}"),
                false => drop(prometheus.wait_query(&query, LONG).unwrap()),
            }
            queries += 1;
        }
    }
    assert!(queries > 20, "{queries}");
    check_metrics(&dashboard.get("/metrics")).unwrap();
    ended.store(true, Ordering::Relaxed);
    engines
        .into_iter()
        .for_each(|engine| engine.join().unwrap());
    dashboard.end();
}
