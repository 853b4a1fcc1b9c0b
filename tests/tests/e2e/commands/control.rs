//! `hikkoshi status`, `set`, `switch` and `cancel`: a migration that runs is shown and changed.

#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use hikkoshi_lab::DiskFormat;
use hikkoshi_tests::{
    Breakpoint, Exit, Guest, JsonSchema, LONG, MessageKind, Migration, MigrationPlan, Program,
    TestEnv, busy_guest, eventually, hikkoshi,
};
use rustix::process::{DumpableBehavior, Signal, Uid, set_dumpable_behavior};
use rustix::thread::set_thread_res_uid;
use serde_json::Value;

use crate::dashboard::Dashboard;
use crate::disks::copied::{blank_disk, copying, full_disk, guest_with};

/// Runs `hikkoshi` with these words, for the migrations in this run folder.
fn run(folder: &Path, words: &[&str]) -> Exit {
    let mut command = Command::new(hikkoshi());
    command.args(words).arg("--journal").arg(folder);
    Program::start(words[0], command).wait()
}

/// The run folder of both sides.
fn folder(migration: &Migration) -> PathBuf {
    migration.journal_folders()[0].clone()
}

/// What `hikkoshi status` says of a side, if it runs.
fn status(folder: &Path, side: &str) -> Option<Value> {
    let exit = run(folder, &["status", "--json"]);
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let schema = JsonSchema::of_status();
    let lines = exit.stdout.lines();
    let mut all = lines.map(|line| schema.assert("migration_status", line));
    all.find(|one| one["migration"]["side"] == side)
}

/// Waits until the state of the source fulfils `is`, and returns it.
fn wait_for(folder: &Path, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    eventually(what, || {
        last = status(folder, "source").map_or(Value::Null, |mut one| one["state"].take());
        match is(&last) {
            true => Ok(()),
            false => Err(last.to_string()),
        }
    });
    last
}

fn in_precopy(state: &Value) -> bool {
    state["phase"] == "precopy"
}

/// A request, as a client writes it.
fn request(key: &str, command: &str) -> Vec<u8> {
    format!("{{\"version\":1,\"key\":\"{key}\",\"command\":{command}}}\n").into_bytes()
}

/// What the engine answers to these bytes: the outcome.
fn answer(stream: &mut UnixStream, bytes: &[u8]) -> Value {
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The engine may have closed the connection before all was written.
    let _ = stream.write_all(bytes);
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    let mut answer = JsonSchema::of_control().assert("answer", &answer);
    answer["outcome"].take()
}

/// The source's control socket, and its key.
fn control_socket(folder: &Path) -> (PathBuf, String) {
    let files = std::fs::read_dir(folder.join("control")).unwrap();
    let mut sockets = files.map(|file| file.unwrap().path()).filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "sock")
    });
    let socket = sockets.next().unwrap();
    assert_eq!(sockets.next(), None, "the destination has none");
    let key = std::fs::read_to_string(socket.with_extension("key")).unwrap();
    (socket, key)
}

/// Requests that are not requests disturb nothing.
fn send_bad_requests(folder: &Path) {
    let (socket, key) = control_socket(folder);
    let connect = || UnixStream::connect(&socket).unwrap();
    let schema = JsonSchema::of_control();
    for (bytes, reason) in [
        (b"\xff\x00\n".to_vec(), "malformed"),
        (vec![b'{'; 1 << 20], "malformed"),
        (b"{\"version\":9}\n".to_vec(), "version"),
        (request("00", "\"cancel\""), "not_permitted"),
        (request(&key, r#"{"set":{"bandwidth":0}}"#), "invalid"),
        (request(&key, r#"{"set":{}}"#), "invalid"),
        (request(&key, r#"{"set":{"speed":1}}"#), "malformed"),
        (request(&key, r#""switch""#), "mode"),
    ] {
        let outcome = answer(&mut connect(), &bytes);
        assert_eq!(outcome["refused"]["reason"], reason, "{outcome}");
    }
    let cancel = String::from_utf8(request(&key, "\"cancel\"")).unwrap();
    schema.assert("request", &cancel);
}

/// A thread of another user cannot enter the folder, and if it could, would be refused.
fn try_as_another_user(folder: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (socket, key) = control_socket(folder);
    let control = folder.join("control");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&control), mode(&socket)), (0o700, 0o600));
    // Opened before, so that no folder above it matters.
    let opened = std::fs::File::open(&control).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&opened);
    let name = socket.file_name().unwrap().to_owned();
    let as_nobody = || {
        let (name, key) = (name.clone(), key.clone());
        let thread = std::thread::spawn(move || {
            let nobody = Uid::from_raw(65_534);
            // Only of this thread.
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let path = Path::new("/proc/thread-self/fd")
                .join(fd.to_string())
                .join(name);
            UnixStream::connect(path)
                .map(|mut stream| answer(&mut stream, &request(&key, "\"cancel\"")))
        });
        let answered = thread.join().unwrap();
        // The kernel has changed it for the process, because of the thread.
        set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        answered
    };
    let error = as_nobody().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&control, 0o711);
    set(&socket, 0o666);
    let outcome = as_nobody().unwrap();
    assert_eq!(outcome["refused"]["reason"], "not_permitted", "{outcome}");
    let message = outcome["refused"]["message"].as_str().unwrap();
    assert!(message.contains("user 65534"), "{message}");
    // A client of the owner does not trust such a folder either.
    let exit = run(folder, &["cancel"]);
    exit.assert(2, &["mode 711"]);
    set(&control, 0o700);
    set(&socket, 0o600);
}

/// The dashboard's process cannot reach the control socket.
fn check_dashboard(folder: &Path) {
    let dashboard = Dashboard::start(folder);
    assert!(dashboard.get("/metrics").contains("hikkoshi_"));
    if rustix::process::geteuid().is_root() {
        let root = std::fs::read_link(format!("/proc/{}/root", dashboard.pid())).unwrap();
        assert_eq!(root, folder.join("status"));
    }
    dashboard.end();
}

/// A pre-copy that would take minutes is shown, cannot be ended by post-copy, and is cancelled. A
/// hybrid migration, whose first round alone would, is ended by post-copy in it.
#[test]
fn a_migration_is_shown_cancelled_and_switched() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let slowly = ["--bandwidth", "1M", "--max-downtime", "1"];
    let plan = MigrationPlan::new("precopy").migrate_args(&slowly);
    let migration = guest.start_migration(&plan);
    let folder = folder(&migration);
    let state = wait_for(&folder, "pre-copy", in_precopy);
    assert_eq!(state["limits"]["bandwidth"], 1_000_000);
    assert_eq!(state["limits"]["max_downtime_ms"], 1);
    let pid = migration.migrate.pid().to_string();
    let table = run(&folder, &["status"]).stdout;
    for part in [
        "GUEST",
        "source",
        "destination",
        &pid,
        "pre-copy, round 1",
        "MiB/s",
    ] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    // By their names: `-name` of QEMU.
    let name = guest.vm().name().to_owned();
    let named = |line: &str| line.split(' ').next() == Some(&name);
    assert!(table.lines().any(named), "no {name} in {table}");
    assert!(!table.contains(".qmp"), "{table}");
    let details = run(&folder, &["status", &name]).stdout;
    let first = format!("guest      {name} ({})\n", guest.vm().qmp_path().display());
    assert!(details.starts_with(&first), "{details}");
    assert!(
        details.contains("limits     bandwidth 1.0 MiB/s, downtime 1 ms"),
        "{details}"
    );
    run(&folder, &["status", "nothing"]).assert(2, &["no migration of \"nothing\""]);

    let silent = UnixStream::connect(control_socket(&folder).0).unwrap();
    send_bad_requests(&folder);
    try_as_another_user(&folder);
    check_dashboard(&folder);
    run(&folder, &["switch"]).assert(1, &["the mode is precopy", "nothing was changed"]);
    let there = migration.receive.pid().to_string();
    run(&folder, &["cancel", &there]).assert(1, &["this host is its destination"]);
    wait_for(&folder, "pre-copy still", in_precopy);
    let cancelled = run(&folder, &["cancel", &pid]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    assert!(
        cancelled
            .stdout
            .contains("the guest continues at the source")
    );
    let (exits, finished) = migration.wait();
    exits.assert_source(
        1,
        &["'hikkoshi cancel'", "cancelled", "still runs at the source"],
    );
    exits.assert_destination(1, &["cancelled at the source"]);
    guest.assert_stayed(finished, "precopy, cancelled by command");
    drop(silent);
    let left = std::fs::read_dir(folder.join("control")).unwrap().count();
    assert_eq!(left, 0, "socket and key are gone");
    run(&folder, &["cancel", &name]).assert(1, &["the migration has ended: cancelled"]);
    let page = env.folder().join("report.html");
    let made = run(
        &folder,
        &["report", &name, "--output", page.to_str().unwrap()],
    );
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(std::fs::read_to_string(&page).unwrap().contains(&name));
    run(&folder, &["cancel"]).assert(2, &["no migration runs"]);

    let plan = MigrationPlan::new("hybrid").migrate_args(&["--bandwidth", "1M"]);
    let migration = guest.start_migration(&plan);
    wait_for(&folder, "pre-copy", in_precopy);
    run(&folder, &["set", "--max-downtime", "5"]).assert(1, &["the mode is hybrid"]);
    let switched = run(&folder, &["switch"]);
    assert_eq!(switched.code, Some(0), "{switched:?}");
    // The rest would take minutes, too.
    let faster = run(&folder, &["set", "--bandwidth", "none"]);
    assert_eq!(faster.code, Some(0), "{faster:?}");
    assert!(
        faster.stdout.ends_with(": bandwidth: 1.0 MiB/s -> none\n"),
        "{faster:?}"
    );
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    assert!(report.postcopy && report.rounds == 1, "{report:?}");
    let in_postcopy = report.pages.urgent + report.pages.background;
    assert!(in_postcopy > report.pages.precopy, "{report:?}");
    assert!(
        exits
            .migrate
            .stderr
            .contains("'hikkoshi switch': pre-copy ends now")
    );
}

/// The status socket of the source.
fn status_socket(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder.join("status")).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("source-") && name.ends_with(".sock")
    };
    files.find(is_meant).unwrap()
}

/// A client of the source's status socket that reads what it gets, to the end. Its place is taken.
fn served_client(folder: &Path) -> JoinHandle<()> {
    let mut served = None;
    // Those of `hikkoshi status` have a place for a moment longer.
    eventually("a place for a client", || {
        let connected = UnixStream::connect(status_socket(folder));
        let mut client = connected.map_err(|error| error.to_string())?;
        let first = client.read_exact(&mut [0]);
        first.map_err(|error| error.to_string())?;
        served = Some(client);
        Ok(())
    });
    let mut client = served.unwrap();
    std::thread::spawn(move || {
        // It may be cut.
        let _ = std::io::copy(&mut client, &mut std::io::sink());
    })
}

/// An engine that is stopped, and one with as many clients as it serves: it runs, and is not said
/// to have ended. The second one is cancelled. One that was killed is not said to have ended.
#[test]
#[ignore = "one of its kind runs in CI: make test-control"]
fn an_engine_that_does_not_answer_has_not_ended() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("hybrid").migrate_args(&["--bandwidth", "1M"]);
    let migration = guest.start_migration(&plan);
    let folder = folder(&migration);
    wait_for(&folder, "pre-copy", in_precopy);
    let pid = migration.migrate.pid().to_string();
    let silent = || {
        let one = status(&folder, "source").unwrap();
        let known = [&one["running"], &one["answers"], &one["end"]];
        assert_eq!(
            known,
            [&Value::Bool(true), &Value::Bool(false), &Value::Null]
        );
        let shown = run(&folder, &["status", "--all"]);
        let line = shown.stdout.lines().find(|line| line.contains(&pid));
        let line = line.unwrap_or_else(|| panic!("{shown:?}"));
        assert!(line.contains("engine does not answer"), "{shown:?}");
        assert!(!shown.stdout.contains("killed"), "{shown:?}");
        run(&folder, &["status", &pid])
    };
    migration.migrate.signal(Signal::STOP);
    silent().assert(
        0,
        &["runs, and its present state is not known", "is it stopped?"],
    );
    migration.migrate.signal(Signal::CONT);
    wait_for(&folder, "pre-copy again", in_precopy);

    // They read what they get, and stay.
    let clients: Vec<_> = (0..16).map(|_| served_client(&folder)).collect();
    silent().assert(0, &["as many clients as it serves"]);
    let cancelled = run(&folder, &["cancel", &pid]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["'hikkoshi cancel'", "still runs at the source"]);
    for client in clients {
        client.join().unwrap();
    }
    guest.assert_stayed(finished, "hybrid, with many clients");

    let mut migration = guest.start_migration(&plan);
    wait_for(&folder, "pre-copy", in_precopy);
    let pid = migration.migrate.pid().to_string();
    migration.migrate.kill();
    let killed = run(&folder, &["cancel", &pid]);
    killed.assert(1, &["was killed", "nothing was changed"]);
    assert!(!killed.stderr.contains("has ended"), "{killed:?}");
    let (exits, finished) = migration.wait_for_source_first();
    exits.assert_destination(1, &[]);
    guest.assert_stayed(finished, "hybrid, engine killed");
}

/// Post-copy cannot follow as long as the disks are not in sync.
#[test]
#[ignore = "one of its kind runs in CI: make test-control"]
fn a_migration_is_not_switched_while_its_disks_are_copied() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let there = guest_with(&to).version(guest.config().qemu_version());
    let plan = copying("hybrid")
        .destination_config(there.clone())
        .hold_at(Breakpoint::after(MessageKind::DiskBytes).nth(4));
    let migration = guest.start_migration(&plan);
    let folder = folder(&migration);
    migration.wait_held();
    let why = "the disks are still being copied";
    run(&folder, &["switch"]).assert(1, &[why, "nothing was changed"]);
    let changed = run(&folder, &["set", "--bandwidth", "500M"]);
    assert_eq!(changed.code, Some(0), "{changed:?}");
    migration.relay().release();
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    guest.set_config(there);
    assert!(report.postcopy && report.pages.precopy > 0, "{report:?}");
}

/// Bytes of pre-copy per second of the engine's clock, over at least four seconds. They are counted
/// when a range of up to 2 MiB has been sent.
fn rate(folder: &Path) -> f64 {
    let bytes = |state: &Value| state["bytes"]["precopy"].as_f64().unwrap();
    let at = |state: &Value| state["at_ms"].as_f64().unwrap();
    let first = wait_for(folder, "pre-copy", in_precopy);
    let last = wait_for(folder, "four seconds", |state| {
        in_precopy(state) && at(state) >= at(&first) + 4000.0
    });
    (bytes(&last) - bytes(&first)) * 1e3 / (at(&last) - at(&first))
}

/// A limited pre-copy becomes faster, and converges when the downtime allows it.
#[test]
#[ignore = "waits for rates; make test-control runs it"]
fn limits_are_changed_while_a_migration_runs() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let endless = [
        "--bandwidth",
        "2M",
        "--max-downtime",
        "1",
        "--max-rounds",
        "1000000",
        "--links",
        "1",
        "--compress",
        "off",
    ];
    let plan = MigrationPlan::new("precopy").migrate_args(&endless);
    let migration = guest.start_migration(&plan);
    let folder = folder(&migration);
    let slow = rate(&folder);
    assert!(slow < 3_500_000.0, "{slow}");
    let changed = run(&folder, &["set", "--bandwidth", "16M"]);
    assert_eq!(changed.code, Some(0), "{changed:?}");
    assert!(
        changed
            .stdout
            .contains("bandwidth: 1.9 MiB/s -> 15.3 MiB/s")
    );
    let mut fast = 0.0;
    eventually("a higher rate", || {
        fast = rate(&folder);
        match fast > 7_000_000.0 {
            true => Ok(()),
            false => Err(fast.to_string()),
        }
    });
    assert!(fast < 20_000_000.0, "{fast}");
    // The guest writes all of its 16 MiB in each round, and would not converge.
    let round = |state: &Value| state["round"].as_u64();
    let state = wait_for(&folder, "a later round", |state| round(state) >= Some(3));
    assert!(
        state["expected_downtime_ms"].as_f64() > Some(20.0),
        "{state}"
    );
    let changed = run(&folder, &["set", "--max-downtime", "60000"]);
    assert_eq!(changed.code, Some(0), "{changed:?}");
    assert!(
        changed.stdout.contains("max-downtime: 1 ms -> 60000 ms"),
        "{changed:?}"
    );
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    assert!(!report.postcopy && report.rounds >= 3, "{report:?}");
}

/// A hybrid migration with endless rounds is ended in a later one.
#[test]
#[ignore = "several rounds; make test-control runs it"]
fn a_hybrid_migration_that_never_converges_is_switched() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let endless = ["--bandwidth", "30M", "--rounds", "1000000"];
    let plan = MigrationPlan::new("hybrid").migrate_args(&endless);
    let migration = guest.start_migration(&plan);
    let folder = folder(&migration);
    wait_for(&folder, "a later round", |state| {
        state["round"].as_u64() >= Some(3)
    });
    let switched = run(&folder, &["switch"]);
    assert_eq!(switched.code, Some(0), "{switched:?}");
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    assert!(report.postcopy && report.rounds >= 3, "{report:?}");
}

/// In post-copy the guest needs its pages: it is not cancelled, and its bandwidth can be changed.
#[test]
#[ignore = "as a signal in post-copy, which is tested; make test-control runs it"]
fn a_migration_in_post_copy_is_not_cancelled() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let held = Breakpoint::after(MessageKind::Pages).nth(400);
    let migration = guest.start_migration(&MigrationPlan::new("postcopy").hold_at(held));
    let folder = folder(&migration);
    migration.wait_held();
    wait_for(&folder, "post-copy", |state| state["phase"] == "postcopy");
    let needs = ["the guest already runs at the destination", "--give-up"];
    run(&folder, &["cancel"]).assert(1, &needs);
    run(&folder, &["switch"]).assert(1, &["post-copy is in progress"]);
    run(&folder, &["set", "--max-downtime", "5"]).assert(1, &["the mode is postcopy"]);
    let changed = run(&folder, &["set", "--bandwidth", "500M"]);
    assert_eq!(changed.code, Some(0), "{changed:?}");
    let there = status(&folder, "destination").unwrap();
    assert!(
        there["state"]["requests"]["count"].as_u64() > Some(0),
        "{there}"
    );
    assert!(
        there["state"]["missing_pages"].as_u64() > Some(0),
        "{there}"
    );
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}

/// A paused guest continues at the source. From *commit* on it is too late.
#[test]
#[ignore = "as a signal at the same steps, which is tested; make test-control runs it"]
fn a_paused_guest_is_cancelled_until_it_is_handed_over() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let held = Breakpoint::before(MessageKind::Ready);
    let migration = guest.start_migration(&MigrationPlan::new("hybrid").hold_at(held));
    let folder = folder(&migration);
    migration.wait_held();
    run(&folder, &["switch"]).assert(1, &["pre-copy has ended"]);
    let cancelled = run(&folder, &["cancel"]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    migration.relay().release();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["'hikkoshi cancel'", "still runs at the source"]);
    guest.assert_stayed(finished, "hybrid, cancelled by command while it is paused");

    let held = Breakpoint::before(MessageKind::Commit);
    let migration = guest.start_migration(&MigrationPlan::new("hybrid").hold_at(held));
    migration.wait_held();
    for command in ["cancel", "switch"] {
        run(&folder, &[command]).assert(1, &["it is too late"]);
    }
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}
