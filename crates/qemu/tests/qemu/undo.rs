//! Tests undoing the changes of an engine that is killed at any step before commit, with
//! real QEMUs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::SourceGuest;
use hikkoshi_qemu::qmp::MonitorAddress;
use hikkoshi_qemu::{
    QemuIdentity, QemuSource, Settings, SourceReattachInfo, UndoError, UndoOutcome, UndoRecord,
    undo,
};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::support::{Qemu, device_state, eventually, monitor, says, with_each};

const SOCKET: &str = "HIKKOSHI_TEST_SOCKET";
const STEP: &str = "HIKKOSHI_TEST_STEP";

/// The steps after which the engine is killed, in order.
const STEPS: [&str; 4] = ["attached", "logging", "paused", "saved"];

/// The engine: a copy of this program that stops after the given step and then waits to be
/// killed.
#[test]
fn engine() {
    let Some(path) = std::env::var_os(SOCKET) else {
        return;
    };
    let step = std::env::var(STEP).unwrap();
    let mut source = QemuSource::attach(Path::new(&path)).unwrap();
    let keep = |record: &UndoRecord| {
        let settings = &record.settings;
        assert!(settings.capabilities.is_empty() && settings.parameters.is_empty());
        let record = json!({ "discard": settings.discard, "stopped": record.stopped });
        println!("\nRECORD {record}");
        Ok(())
    };
    source.on_undo_record(keep).unwrap();
    let mut log = None;
    for at in STEPS {
        match at {
            "logging" => log = Some(source.start_dirty_log().unwrap()),
            "paused" => drop(source.pause().unwrap()),
            "saved" => drop(device_state(&mut source)),
            _ => {}
        }
        if at == step {
            break;
        }
    }
    println!("\nAT {step}");
    sleep(Duration::from_secs(600));
    drop(log);
}

/// Starts an engine, kills it after `step`, and returns QEMU's identity and the last undo
/// record.
fn kill_at(qemu: &Qemu, step: &str) -> (QemuIdentity, UndoRecord) {
    let identity = qemu.source().reattach_info().identity;
    let mut engine = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "undo::engine", "--nocapture"])
        .env(SOCKET, qemu.qmp())
        .env(STEP, step)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut record = None;
    for line in BufReader::new(engine.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("RECORD ") {
            record = Some(parse(text));
        }
        if line.starts_with("AT ") {
            break;
        }
    }
    engine.kill().unwrap();
    engine.wait().unwrap();
    (identity, record.expect("the engine ended early"))
}

/// What the engine printed: at the source only `discard-data` is changed.
fn parse(record: &str) -> UndoRecord {
    let record: Value = serde_json::from_str(record).unwrap();
    let discard = record["discard"].as_object().unwrap().iter();
    UndoRecord {
        settings: Settings {
            discard: discard
                .map(|(path, on)| (path.clone(), on.as_bool().unwrap()))
                .collect(),
            ..Settings::default()
        },
        stopped: record["stopped"].as_bool(),
        copies: 0,
    }
}

/// What undoing by the QMP socket of that QEMU has found.
fn undone(identity: &QemuIdentity, record: &UndoRecord) -> UndoOutcome {
    undo(identity, record, &*monitor(identity)).unwrap()
}

fn state(name: &str) -> UndoOutcome {
    UndoOutcome::Restored { state: name.into() }
}

#[test]
fn a_killed_engine_is_undone_after_every_step() {
    with_each(|program| {
        for step in STEPS {
            let qemu = Qemu::usual(program, "-vga std");
            let before = qemu.traces();
            let (identity, record) = kill_at(&qemu, step);
            assert_eq!(identity.pid, qemu.pid());
            let stopped = matches!(step, "paused" | "saved");
            assert_eq!(record.stopped, stopped.then_some(true), "{step}");
            assert_eq!(qemu.state() == "running", !stopped, "{step}");
            assert_eq!(undone(&identity, &record), state("running"));
            assert_eq!(qemu.state(), "running", "{step}");
            assert_eq!(qemu.traces(), before, "{step}");
            // A second call changes nothing, also if the owner has paused or saved the
            // guest in the meantime.
            assert_eq!(undone(&identity, &record), state("running"));
            qemu.execute("stop", json!({}));
            assert_eq!(undone(&identity, &record), state("paused"));
            qemu.execute("migrate", json!({ "uri": "exec:cat > /dev/null" }));
            eventually("the owner's own migration", || {
                qemu.state() == "postmigrate"
            });
            assert_eq!(undone(&identity, &record), state("postmigrate"));
            assert_eq!(qemu.traces(), before);
        }
    });
}

#[test]
fn a_guest_that_its_owner_paused_stays_paused() {
    with_each(|program| {
        for step in STEPS {
            let qemu = Qemu::usual(program, "");
            qemu.execute("stop", json!({}));
            let before = qemu.traces();
            let (identity, record) = kill_at(&qemu, step);
            undone(&identity, &record);
            assert_ne!(qemu.state(), "running", "{step}");
            assert_eq!(qemu.traces(), before, "{step}");
            assert!(!qemu.is_marked());
            // Its owner can resume it.
            qemu.execute("cont", json!({}));
            assert_eq!(qemu.state(), "running");
        }
    });
}

#[test]
fn a_pause_by_the_owner_stays() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let (identity, record) = kill_at(&qemu, "logging");
        qemu.execute("stop", json!({}));
        assert_eq!(undone(&identity, &record), state("paused"));
        assert_eq!(qemu.descriptors("userfaultfd"), 0);
    });
}

#[test]
fn a_guest_that_its_owner_has_resumed_is_not_an_error() {
    with_each(|program| {
        for step in ["paused", "saved"] {
            let qemu = Qemu::usual(program, "");
            let before = qemu.traces();
            let (identity, record) = kill_at(&qemu, step);
            assert_eq!(qemu.state(), "paused");
            let refused = qemu.client().execute("cont", json!({}));
            assert_eq!(refused.is_err(), step == "saved");
            qemu.resume_by_hand();
            assert_eq!(qemu.state(), "running");
            assert_eq!(undone(&identity, &record), state("running"));
            assert_eq!(qemu.traces(), before);
        }
    });
}

/// QEMU creates RAM files that all users may read, and therefore lock. Such a lock does not
/// affect an engine, a guard, or reattaching.
#[test]
fn another_user_has_locked_the_ram_file() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let stranger = std::fs::File::open(&qemu.ram.0).unwrap();
        flock(&stranger, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (identity, record) = kill_at(&qemu, "saved");
        assert_eq!(undone(&identity, &record), state("running"));
        let reattach_info = SourceReattachInfo {
            identity,
            undo: record,
            oom_kills: Vec::new(),
        };
        let taken_up =
            QemuSource::reattach(&reattach_info, monitor(&reattach_info.identity)).unwrap();
        // Still only one at a time.
        says(
            &QemuSource::attach(&qemu.qmp()).unwrap_err(),
            &["another hikkoshi process is migrating this guest"],
        );
        taken_up.unwrap().release().unwrap();
    });
}

/// That engine, with its own journal, may be about to hand the guest over.
#[test]
fn another_engine_has_the_guest() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let (identity, record) = kill_at(&qemu, "logging");
        let another = qemu.source();
        let error = undo(&identity, &record, &*monitor(&identity)).unwrap_err();
        assert!(matches!(error, UndoError::Occupied(_)), "{error}");
        let error = Report::new(error).to_string();
        assert!(
            error.contains("another hikkoshi process is migrating this guest"),
            "{error}"
        );
        drop(another);
        assert_eq!(undone(&identity, &record), state("running"));
    });
}

#[test]
fn the_wrong_qemu_and_an_exited_one() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let reattach_info = qemu.source().reattach_info();
        let SourceReattachInfo {
            identity,
            undo: record,
            ..
        } = reattach_info;
        // Another process has its number: that QEMU has ended.
        let other = QemuIdentity {
            start_time: identity.start_time + 1,
            ..identity.clone()
        };
        assert_eq!(
            undo(&other, &record, &*monitor(&other)).unwrap(),
            UndoOutcome::QemuExited
        );
        // It runs, but its socket is missing: it has not ended.
        let away = QemuIdentity {
            monitor: MonitorAddress::Socket(qemu.qmp().with_extension("away")),
            ..identity.clone()
        };
        let error = undo(&away, &record, &*monitor(&away)).unwrap_err();
        assert!(matches!(error, UndoError::Connect(_)), "{error}");
        // Another process listens on the socket.
        let second = Qemu::usual(program, "");
        let elsewhere = QemuIdentity {
            monitor: MonitorAddress::Socket(second.qmp()),
            ..identity.clone()
        };
        let error = undo(&elsewhere, &record, &*monitor(&elsewhere)).unwrap_err();
        assert!(matches!(error, UndoError::AnotherQemu { .. }), "{error}");
        // From another namespace its state is unknown.
        let mut unseen = identity.clone();
        unseen.namespaces.pid_namespace += 1;
        let error = undo(&unseen, &record, &*monitor(&unseen)).unwrap_err();
        assert!(matches!(error, UndoError::FindProcess(_)), "{error}");
        drop(qemu);
        assert_eq!(undone(&identity, &record), UndoOutcome::QemuExited);
    });
}

#[test]
fn a_run_after_a_killed_one_without_undo() {
    with_each(|program| {
        let qemu = Qemu::usual(program, "");
        let untouched = qemu.traces();
        // Killed while the guest was paused; its owner resumes it by hand.
        kill_at(&qemu, "saved");
        assert_eq!(qemu.state(), "paused");
        assert!(qemu.is_marked());
        qemu.resume_by_hand();
        let mut source = qemu.source();
        source.start_dirty_log().unwrap();
        source.pause().unwrap();
        device_state(&mut source);
        source.resume().unwrap();
        drop(source);
        assert_eq!(qemu.state(), "running");
        assert!(!qemu.is_marked());
        assert_eq!(qemu.traces(), untouched);
    });
}
